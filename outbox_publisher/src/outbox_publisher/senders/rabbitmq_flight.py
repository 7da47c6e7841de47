"""One batch on its way to RabbitMQ: a result for each event, filled in by the I/O thread, and an event to wait for.

Only the I/O thread writes here, so nothing is locked; whoever waits looks when everything is there, or when time is up.
"""

import threading
from collections.abc import Callable, Sequence

from pika import BasicProperties

from outbox_publisher.event import Event
from outbox_publisher.senders.base import SendResult
from outbox_publisher.senders.rabbitmq_client import SHORT_STRING
from outbox_shared.clock import Clock
from outbox_shared.wire import amqp_headers

DELIVERED = SendResult.delivered()
MARGIN = 0.5
"""Seconds beyond the deadline in which the I/O thread must have given its results."""
UNSENT, EARLIER = 0, -1
"""Instead of a delivery tag: never published; published on a channel that is closed now."""


class RabbitFlight:
    def __init__(self, events: Sequence[Event], deadline: float, clock: Clock) -> None:
        self.events, self.deadline = events, deadline
        self.closed = not events
        self.tags = [UNSENT] * len(events)
        self.on_closed: Callable[[], None] | None = None
        self._clock = clock
        self._found: list[SendResult | None] = [None] * len(events)
        self._open = len(events)
        self._finished = threading.Event()
        self._results: list[SendResult] | None = None

    def done(self) -> bool:
        return self.closed or self._clock.monotonic() >= self.deadline + MARGIN

    def results(self) -> Sequence[SendResult]:
        if self._results is None:
            until = self.deadline + MARGIN
            while not self.closed and (left := until - self._clock.monotonic()) > 0:
                self._finished.wait(min(left, 1.0))
            nobody = SendResult.unavailable("the I/O thread has not answered", maybe_sent=True)
            self._results = [found or nobody for found in self._found]
        return self._results

    # The I/O thread's side.

    def settle(self, index: int, result: SendResult) -> None:
        """The first word counts; what comes after the deadline comes too late."""
        if not self.closed and self._found[index] is None:
            self._found[index] = result
            self._open -= 1
            if not self._open:
                self._close()

    def is_open(self, index: int) -> bool:
        return not self.closed and self._found[index] is None

    def give_up(self, reason: str) -> None:
        """The way to the broker is gone, and with it every answer that is still missing."""
        for index in self._unanswered():
            self.settle(index, SendResult.unavailable(reason, maybe_sent=self.tags[index] != UNSENT))
        self._close()

    def expire(self, reason: str, confirmed: int) -> bool:
        """Time is up; `confirmed` is the channel's last confirmed tag. Returns whether published events are without an answer."""
        silent = False
        for index in self._unanswered():
            tag = self.tags[index]
            silent = silent or tag > UNSENT
            if tag == EARLIER:
                late = "its channel was closed, and no time was left to publish it again"
                self.settle(index, SendResult.retry(late, charged=False, maybe_sent=True, after=0))
            elif UNSENT < tag < confirmed:
                self.settle(index, SendResult.retry("not confirmed in time, but later messages were", maybe_sent=True))
            else:
                self.settle(index, SendResult.unavailable(reason, maybe_sent=tag != UNSENT))
        self._close()
        return silent

    def _unanswered(self) -> list[int]:
        return [index for index, found in enumerate(self._found) if found is None]

    def _close(self) -> None:
        if not self.closed:
            self.closed = True
            self._finished.set()
            if self.on_closed is not None:
                self.on_closed()


def properties_of(event: Event) -> BasicProperties:
    """What the contract repeats in headers is left out as a property where AMQP has no room for it."""
    seconds = int((event.occurred_at or event.created_at).timestamp())
    return BasicProperties(
        content_type=_short(event.content_type),
        headers=amqp_headers(event),
        delivery_mode=2,
        correlation_id=_short(event.correlation_id),
        message_id=str(event.id),
        timestamp=seconds if seconds >= 0 else None,
        type=event.event_type,
    )


def _short(text: str | None) -> str | None:
    # most texts are far below; only what may be too long is worth the encoding
    if text is None or (len(text) * 4 > SHORT_STRING and len(text.encode()) > SHORT_STRING):
        return None
    return text
