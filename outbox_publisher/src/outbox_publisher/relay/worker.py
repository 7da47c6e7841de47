"""One turn of a worker reads as claim → send → settle: the only place where the three meet."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from outbox_publisher.claims import Batch, ClaimStrategy
from outbox_publisher.event import Event
from outbox_publisher.relay.conflicts import Transactions
from outbox_publisher.relay.inflight import InFlight
from outbox_publisher.relay.settlement import decide, release
from outbox_publisher.relay.settler import Settler
from outbox_publisher.senders.base import Flight, Kind, Sender, SendResult, Stoppable
from outbox_publisher.senders.grace import Grace
from outbox_publisher.settings import PublisherSettings
from outbox_publisher.store import Settlement, Wanted
from outbox_publisher.validation import headers_of
from outbox_shared.clock import Clock
from outbox_shared.errors import InvalidHeader

log = logging.getLogger(__name__)

REPORTS_LATE = timedelta(seconds=1)
"""A client may tell of its own timeout up to this much late."""
WATCH = 0.02
"""Seconds between two looks at an unhurried flight, which may have to be stopped."""

Outcomes = list[tuple[Event, SendResult]]


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
        settler: Settler,
        settings: PublisherSettings,
        inflight: InFlight,
        clock: Clock,
        stopping: Callable[[], bool],
    ) -> None:
        self._transactions, self._claims, self._sender, self._settings = transactions, claims, sender, settings
        self._settler, self._inflight, self._clock, self._stopping = settler, inflight, clock, stopping
        self._grace = Grace(settings.sender.unknown_topic_grace.total_seconds(), clock)
        unhurried = getattr(sender, "unhurried", False)
        longest = settings.sender.emergency_timeout if unhurried else settings.sender.publish_timeout + REPORTS_LATE
        self._send_takes = longest.total_seconds()
        self._sends_within_lease = not unhurried  # a renewed lease is as long as it takes

    def turn(self, event_type: str, wanted: Wanted, *, suspects: bool = False) -> tuple[Turn, Outcomes]:
        """Claim a batch of one type, send it, settle it; also what the sender said.

        If this process dies on the way, the lease runs out and another takes over.
        """
        started = self._clock.monotonic()  # before the claim: our idea of the lease must end before the database's
        claim = self._claims.claim_suspects if suspects else self._claims.claim
        batch = self._transactions.run(lambda it: claim(it, event_type, wanted))
        if batch is None:
            return Turn(), []
        with self._inflight.holding(batch.token, started):
            return self._carry_out(batch, wanted, started)

    def _carry_out(self, batch: Batch, wanted: Wanted, started: float) -> tuple[Turn, Outcomes]:
        delivery = self._settings.delivery_of(batch.event_type)
        lease_ends = started + self._settings.lease.total_seconds()
        deadline = self._clock.monotonic() + self._send_takes
        outcomes: Outcomes = []
        if self._clock.monotonic() >= lease_ends or (self._sends_within_lease and deadline >= lease_ends):
            # the database is slow: give the rows back unsent, and slow down
            log.warning(
                "claimed %d %s events too slowly to send them within the lease", len(batch.events), batch.event_type
            )
            fate, unavailable = release(batch.events), True
        else:
            told, outcomes = self._send(batch, deadline)
            fate = decide(told, delivery)
            unavailable = any(result.kind is Kind.UNAVAILABLE for _, result in told)
        ours = self._settler.settle(batch, fate, lease_ends)
        return self._told(batch, wanted, fate, ours, unavailable=unavailable), outcomes

    def _told(self, batch: Batch, wanted: Wanted, fate: Settlement, ours: int, *, unavailable: bool) -> Turn:
        fenced = len(batch.events) - ours
        if fenced:
            log.warning("%d %s events were no longer ours to settle", fenced, batch.event_type)
        return Turn(
            claimed=len(batch.events),
            delivered=len(fate.delivered),
            rescheduled=len(fate.rescheduled),
            buried=len(fate.buried),
            fenced=fenced,
            unavailable=unavailable,
            full=len(batch.events) >= wanted.limit,
        )

    def _send(self, batch: Batch, deadline: float) -> tuple[Outcomes, Outcomes]:
        """One result per event; and those alone that the sender was given, as it was given them.

        What cannot be sent, or has nowhere to go, never reaches the sender, and tells nothing about its broker.
        """
        told: dict[object, SendResult] = {}
        sendable: list[Event] = []
        for event in batch.events:
            routed, refusal = self._route(event)
            if refusal is None:
                sendable.append(routed)
            else:
                told[event.id] = refusal
        try:
            results = self._wait(self._sender.send(sendable, deadline))
            told |= dict(zip((event.id for event in sendable), results, strict=True))
        except Exception as error:  # a sender's own mistake must not strand its batch until the lease is over
            log.exception("the sender failed on a batch of %d %s events", len(batch.events), batch.event_type)
            failed = SendResult.retry(f"{type(error).__name__}: {error}", maybe_sent=True)
            told |= {event.id: failed for event in sendable}
        return [(event, told[event.id]) for event in batch.events], [(event, told[event.id]) for event in sendable]

    def _wait(self, flight: Flight) -> Sequence[SendResult]:
        """A relay that is told to stop lets an unhurried flight begin nothing more."""
        if isinstance(flight, Stoppable):
            while not flight.done() and not self._stopping():
                self._clock.sleep(WATCH)
            if self._stopping():
                flight.stop()
        return flight.results()

    def _route(self, event: Event) -> tuple[Event, SendResult | None]:
        """The stored topic counts; without one, what the settings say of the type. What another program wrote may be unsendable."""
        if event.headers and (why := unsendable(event)):
            return event, SendResult.reject(why)
        if event.topic is not None or not getattr(self._sender, "needs_topic", True):
            return event, None
        topic = self._settings.delivery_of(event.event_type).topic
        if topic is None:
            why = f"stored without a topic, and the settings name none for event type {event.event_type!r}"
            return event, self._grace.refused(event.event_type, why)
        return replace(event, topic=topic), None


def unsendable(event: Event) -> str | None:
    """Why the event's own headers cannot be sent. `publish` lets none of them through, but the table is open to others."""
    try:
        headers_of(event.headers)
    except InvalidHeader as error:
        return str(error)
    return None
