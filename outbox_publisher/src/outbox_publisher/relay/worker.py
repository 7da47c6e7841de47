"""One turn of a worker reads as claim → send → settle: the only place where the three meet."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from outbox_publisher.claims import Batch, ClaimStrategy
from outbox_publisher.event import Event
from outbox_publisher.relay.conflicts import Transactions
from outbox_publisher.relay.settlement import decide, release
from outbox_publisher.senders.base import Kind, Sender, SendResult
from outbox_publisher.settings import PublisherSettings
from outbox_publisher.store import Settlement
from outbox_publisher.validation import headers_of
from outbox_shared.clock import Clock
from outbox_shared.errors import InvalidHeader

log = logging.getLogger(__name__)

REPORTS_LATE = timedelta(seconds=1)
"""A client may tell of its own timeout up to this much late."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What was done. `fenced` counts rows that were no longer ours when we came to settle them."""

    claimed: int = 0
    delivered: int = 0
    rescheduled: int = 0
    buried: int = 0
    fenced: int = 0
    unavailable: bool = False
    full: bool = False

    def __add__(self, other: "Turn") -> "Turn":
        return Turn(
            self.claimed + other.claimed,
            self.delivered + other.delivered,
            self.rescheduled + other.rescheduled,
            self.buried + other.buried,
            self.fenced + other.fenced,
            self.unavailable or other.unavailable,
            self.full or other.full,
        )


class Worker:
    def __init__(
        self,
        transactions: Transactions,
        claims: ClaimStrategy,
        sender: Sender,
        settings: PublisherSettings,
        clock: Clock,
        stopping: Callable[[], bool],
    ) -> None:
        self._transactions, self._claims, self._sender, self._settings = transactions, claims, sender, settings
        self._clock, self._stopping = clock, stopping

    def turn(self, event_type: str) -> Turn:
        """Claim a batch of one type, send it, settle it. If this process dies on the way, the lease runs out and another takes over."""
        started = self._clock.monotonic()  # before the claim: our idea of the lease must end before the database's
        delivery = self._settings.delivery_of(event_type)
        batch = self._transactions.run(lambda it: self._claims.claim(it, event_type, delivery.batch_size))
        if batch is None:
            return Turn()
        lease_ends = started + self._settings.lease.total_seconds()
        send_takes = (self._settings.sender.publish_timeout + REPORTS_LATE).total_seconds()
        deadline = self._clock.monotonic() + send_takes
        if deadline >= lease_ends:  # the database is slow: give the rows back unsent, and slow down
            log.warning("claimed %d %s events too slowly to send them within the lease", len(batch.events), event_type)
            fate, unavailable = release(batch.events), True
        else:
            results = self._send(batch, deadline)
            fate = decide(zip(batch.events, results, strict=True), delivery)
            unavailable = any(result.kind is Kind.UNAVAILABLE for result in results)
        ours = self._settle(batch, fate, lease_ends)
        if ours < len(batch.events):
            log.warning("%d %s events were no longer ours to settle", len(batch.events) - ours, event_type)
        return Turn(
            claimed=len(batch.events),
            delivered=len(fate.delivered),
            rescheduled=len(fate.rescheduled),
            buried=len(fate.buried),
            fenced=len(batch.events) - ours,
            unavailable=unavailable,
            full=len(batch.events) >= delivery.batch_size,
        )

    def _send(self, batch: Batch, deadline: float) -> Sequence[SendResult]:
        """One result per event. What another program wrote may be more than a client survives: such rows never reach the sender."""
        refused = {
            event.id: SendResult.reject(why) for event in batch.events if event.headers and (why := unsendable(event))
        }
        sendable = [event for event in batch.events if event.id not in refused]
        try:
            results = self._sender.send(sendable, deadline).results()
            told = dict(zip((event.id for event in sendable), results, strict=True))
        except Exception as error:  # a sender's own mistake must not strand its batch until the lease is over
            log.exception("the sender failed on a batch of %d %s events", len(batch.events), batch.event_type)
            failed = SendResult.retry(f"{type(error).__name__}: {error}", maybe_sent=True)
            told = {event.id: failed for event in sendable}
        told |= refused
        return [told[event.id] for event in batch.events]

    def _settle(self, batch: Batch, fate: Settlement, lease_ends: float) -> int:
        """What the broker acknowledged should not be sent again because the database blinked: try again while the rows are ours.

        The token says whether they are, not the lease: while nobody can reach the database, nobody can take them.
        """
        wait = 0.1
        while True:
            try:
                return self._transactions.run(lambda it: self._claims.settle(it, batch, fate))
            except SQLAlchemyError as error:
                away = not isinstance(error, DBAPIError) or error.connection_invalidated
                if self._clock.monotonic() + wait >= lease_ends and (not away or self._stopping()):
                    raise
                count, why = len(batch.events), database_error(error)
                log.warning("settling %d %s events again in %.1f s: %s", count, batch.event_type, wait, why)
            self._clock.sleep(wait)
            wait = min(wait * 2, 2.0)


def database_error(error: SQLAlchemyError) -> str:
    """For the log: what the database said, without the statement and its parameters."""
    return str(getattr(error, "orig", None) or error).strip()


def unsendable(event: Event) -> str | None:
    """Why the event's own headers cannot be sent. `publish` lets none of them through, but the table is open to others."""
    try:
        headers_of(event.headers)
    except InvalidHeader as error:
        return str(error)
    return None
