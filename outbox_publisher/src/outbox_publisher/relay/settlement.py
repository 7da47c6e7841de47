"""What becomes of each event of a batch, given what the sender said. Pure: values in, values out.

delivered                    PROCESSED
retry, charged               one attempt more, PENDING after its backoff; beyond max-retries: dead letters
retry, uncharged             PENDING after the sender's own delay
reject                       dead letters
unavailable                  PENDING as it was: no attempt is used while a broker is away
"""

import random
from collections.abc import Callable, Iterable

from outbox_publisher.event import Event
from outbox_publisher.relay.backoff import retry_delay
from outbox_publisher.senders.base import Kind, SendResult
from outbox_publisher.settings import DeliverySettings
from outbox_publisher.store.changes import Buried, Delivered, Rescheduled, Settlement

ERROR_LENGTH = 2000

DELIVERED = Kind.DELIVERED
NOWHERE = (None, None)
EXHAUSTED = "retries exhausted"
REJECTED = "rejected"


def decide(
    outcomes: Iterable[tuple[Event, SendResult]],
    delivery: DeliverySettings,
    chance: Callable[[], float] = random.random,
) -> Settlement:
    fate = Settlement()
    for event, result in outcomes:
        if result.kind is DELIVERED:  # nearly always: Delivered(…) takes twice as long
            fate.delivered.append(tuple.__new__(Delivered, (event.id, *(result.position or NOWHERE))))
            continue
        match result.kind:
            case Kind.REJECT:
                fate.buried.append(_bury(event, result, event.attempts + 1, REJECTED))
            case Kind.RETRY if result.charged and event.attempts >= delivery.max_retries:
                fate.buried.append(_bury(event, result, event.attempts + 1, EXHAUSTED))
            case Kind.RETRY if result.charged:
                attempts = event.attempts + 1
                fate.rescheduled.append(
                    _reschedule(event, result, attempts, retry_delay(delivery.backoff, attempts, chance()))
                )
            case Kind.RETRY | Kind.UNAVAILABLE:
                fate.rescheduled.append(_reschedule(event, result, event.attempts, result.after))
    return fate


def release(events: Iterable[Event]) -> Settlement:
    """Back as they were, unsent."""
    return Settlement(
        rescheduled=[Rescheduled(event.id, event.attempts, None, None, maybe_sent=False) for event in events]
    )


def clean_error(text: str) -> str:
    """Text that every database stores and every log takes: one NUL or lone surrogate would fail the settle of the whole batch."""
    return text.replace("\x00", "�").encode("utf-8", "replace").decode()[:ERROR_LENGTH]


def _bury(event: Event, result: SendResult, attempts: int, reason: str) -> Buried:
    return Buried(event.id, attempts, reason, clean_error(result.reason), result.maybe_sent)


def _reschedule(event: Event, result: SendResult, attempts: int, delay: float | None) -> Rescheduled:
    return Rescheduled(event.id, attempts, delay, clean_error(result.reason), result.maybe_sent)
