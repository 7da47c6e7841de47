"""The batches that one worker has in the air: claimed and handed to the sender, until they are settled.

Claim, send and settle meet here. Several batches fly at once, so that the next is claimed while the last is being acknowledged; a batch
that has landed is settled in the transaction of the next claim.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from outbox_publisher.claims import Batch, ClaimStrategy
from outbox_publisher.event import Event
from outbox_publisher.relay.inflight import InFlight
from outbox_publisher.relay.settlement import decide, release
from outbox_publisher.relay.settler import Claim, Landed, Settler
from outbox_publisher.relay.turn import Turn
from outbox_publisher.senders.base import Flight, Kind, Sender, SendResult, Stoppable, Waiting
from outbox_publisher.senders.grace import Grace
from outbox_publisher.settings import PublisherSettings
from outbox_publisher.store import Wanted
from outbox_publisher.validation import headers_of
from outbox_shared.clock import Clock
from outbox_shared.errors import InvalidHeader

log = logging.getLogger(__name__)

REPORTS_LATE = timedelta(seconds=1)
"""A client may tell of its own timeout up to this much late."""
WATCH = 0.02
"""Seconds between two looks at a flight that cannot be waited for."""

LEAST_ROOM = 4
"""A batch waits rather than make do with less than this part of the bytes."""

Outcomes = list[tuple[Event, SendResult]]
Report = Callable[[Outcomes, float], None]
"""Hears what the sender said of a batch, and when the batch took off."""


@dataclass(frozen=True, slots=True, eq=False)
class _Airborne:
    batch: Batch
    flight: Flight
    sent: Sequence[Event]
    """Those that the sender was given, as it was given them."""
    refused: dict[UUID, SendResult]
    """What cannot be sent, or has nowhere to go, never reached the sender, and tells nothing about its broker."""
    took_off: float
    deadline: float
    lease_ends: float
    weight: int
    """Bytes of its payloads."""


class Flights:
    """Not for several threads: each worker has its own."""

    def __init__(
        self,
        claims: ClaimStrategy,
        sender: Sender,
        settler: Settler,
        settings: PublisherSettings,
        inflight: InFlight,
        clock: Clock,
        stopping: Callable[[], bool],
        report: Report,
    ) -> None:
        self._claims, self._sender, self._settler, self._settings = claims, sender, settler, settings
        self._inflight, self._clock, self._stopping, self._report = inflight, clock, stopping, report
        self._grace = Grace(settings.sender.unknown_topic_grace.total_seconds(), clock)
        unhurried = getattr(sender, "unhurried", False)
        longest = settings.sender.emergency_timeout if unhurried else settings.sender.publish_timeout + REPORTS_LATE
        self._send_takes = longest.total_seconds()
        self._sends_within_lease = not unhurried  # a renewed lease is as long as it takes
        self._needs_topic = getattr(sender, "needs_topic", True)
        # whoever writes handlers need not think of several of them at once
        self._window = 1 if unhurried else settings.window
        self._ready: tuple[Batch, float] | None = None
        """Claimed, and since when; the sender gets it while the database is busy with the next claim."""
        self._air: list[_Airborne] = []
        self._landed: list[Landed] = []

    # What is in the air.

    def __len__(self) -> int:
        return len(self._air) + (self._ready is not None)

    @property
    def landed(self) -> bool:
        """Whether anything waits to be settled."""
        return bool(self._landed)

    @property
    def room(self) -> int:
        """Bytes that another batch may have now; 0 where it must wait."""
        if len(self) >= self._window:
            return 0
        most = self._settings.max_batch_bytes
        ready = _weight(self._ready[0]) if self._ready else 0
        left = most - ready - sum(one.weight for one in self._air)
        return left if left >= most // LEAST_ROOM else 0

    def wait(self, seconds: float, until: Callable[[], bool] = lambda: False) -> None:
        """Until a batch has landed, or for so long at most."""
        self._send_ready()
        end = self._clock.monotonic() + seconds
        while not self._land() and self._air and not until():
            left = end - self._clock.monotonic()
            if left <= 0:
                return
            self._watch(min(left, WATCH))

    def make_room(self) -> None:
        """Hear what has landed meanwhile, and wait where no other batch may take off yet."""
        self._land()
        while len(self) and not self.room:
            self.wait(self._send_takes)

    def drain(self) -> Turn:
        """Wait for every batch, and settle all of them."""
        while len(self):
            self.wait(self._send_takes)
        return self.settle()

    # Off, and back again.

    def take_off(self, event_type: str, wanted: Wanted, *, suspects: bool = False) -> tuple[Turn, list[Event]]:
        """Settle what has landed, claim a batch of one type, and hand it to the sender; also what was claimed.

        If this process dies on the way, the lease runs out and another takes over.
        """
        if not self._inflight.enter(alone=suspects):
            return self.settle(), []
        started = self._clock.monotonic()  # before the claim: our idea of the lease must end before the database's
        claim = self._claims.begin_claim_of_suspects if suspects else self._claims.begin_claim
        batch: Batch | None = None
        try:
            turn, batch = self._exchange(lambda it, token: claim(it, event_type, wanted, token), plain=not suspects)
        finally:
            if batch is None:
                self._inflight.leave()
        if batch is None:
            return turn, []
        self._inflight.hold(batch.token, started)
        self._ready = batch, started
        claimed = len(batch.events)
        full = claimed >= wanted.limit
        if not (full and self._settler.overlaps and self.room):  # no other claim follows at once
            self._send_ready()
        return turn + Turn(claimed=claimed, full=full), batch.events

    def settle(self) -> Turn:
        """What has landed, without another claim."""
        self._send_ready()
        return self._exchange(None)[0] if self._landed or self._settler.has_unheard else Turn()

    def _exchange(self, claim: Claim | None, *, plain: bool = True) -> tuple[Turn, Batch | None]:
        landed, self._landed = self._landed, []
        try:
            return self._settler.exchange(landed, claim, self._meanwhile, plain=plain)
        finally:
            self._send_ready()
            for one in landed:
                self._inflight.release(one.batch.token)
                self._inflight.leave()

    def _meanwhile(self) -> None:
        """While the database is busy. What lands now is settled with the next claim."""
        self._send_ready()
        self._land()

    def _send_ready(self) -> None:
        if self._ready is not None:
            (batch, started), self._ready = self._ready, None
            self._send(batch, started)

    def _send(self, batch: Batch, started: float) -> None:
        now = self._clock.monotonic()
        lease_ends, deadline = started + self._settings.lease.total_seconds(), now + self._send_takes
        if now >= lease_ends or (self._sends_within_lease and deadline >= lease_ends):
            # the database is slow: give the rows back unsent, and slow down
            count = len(batch.events)
            log.warning("claimed %d %s events too slowly to send them within the lease", count, batch.event_type)
            self._landed.append(Landed(batch, release(batch.events), lease_ends, unavailable=True))
            return
        sendable, refused = self._routed(batch.events)
        flight = self._hand_over(sendable, deadline, batch)
        self._air.append(_Airborne(batch, flight, sendable, refused, now, deadline, lease_ends, _weight(batch)))

    def _hand_over(self, events: Sequence[Event], deadline: float, batch: Batch) -> Flight:
        try:
            return self._sender.send(events, deadline)
        except Exception as error:  # noqa: BLE001 - a sender's own mistake must not strand its batch until the lease is over
            return _Failed(batch, len(events), error)

    def _land(self) -> bool:
        """Whether anything has landed."""
        now, air = self._clock.monotonic(), self._air
        down = [one for one in air if one.flight.done() or now >= one.deadline]
        if down:
            self._air = [one for one in air if one not in down]
            for one in down:
                self._landed.append(self._judge(one))
        return bool(down)

    def _judge(self, one: _Airborne) -> Landed:
        batch = one.batch
        try:
            outcomes = list(zip(one.sent, one.flight.results(), strict=True))
        except Exception as error:  # noqa: BLE001 - as above
            failed = _Failed(batch, len(one.sent), error)
            outcomes = list(zip(one.sent, failed.results(), strict=True))
        self._report(outcomes, one.took_off)
        told = outcomes
        if one.refused:
            by_id = {event.id: result for event, result in outcomes} | one.refused
            told = [(event, by_id[event.id]) for event in batch.events]
        fate = decide(told, self._settings.delivery_of(batch.event_type))
        away = bool(fate.rescheduled) and any(result.kind is Kind.UNAVAILABLE for _, result in told)
        return Landed(batch, fate, one.lease_ends, unavailable=away)

    def _watch(self, seconds: float) -> None:
        """A relay that is told to stop lets an unhurried flight begin nothing more."""
        oldest = self._air[0].flight
        if self._stopping():
            for one in self._air:
                if isinstance(one.flight, Stoppable):
                    one.flight.stop()
        if isinstance(oldest, Waiting):
            oldest.wait(seconds)
        else:
            self._clock.sleep(seconds)

    # Where to.

    def _routed(self, events: list[Event]) -> tuple[list[Event], dict[UUID, SendResult]]:
        """What goes to the sender, and what will not."""
        if not any(event.topic is None or event.headers for event in events):  # nearly always
            return events, {}
        sendable, refused = list[Event](), dict[UUID, SendResult]()
        for event in events:
            routed, refusal = self._route(event)
            if refusal is None:
                sendable.append(routed)
            else:
                refused[event.id] = refusal
        return sendable, refused

    def _route(self, event: Event) -> tuple[Event, SendResult | None]:
        """The stored topic counts; without one, what the settings say of the type. What another program wrote may be unsendable."""
        if event.headers and (why := unsendable(event)):
            return event, SendResult.reject(why)
        if event.topic is not None or not self._needs_topic:
            return event, None
        topic = self._settings.delivery_of(event.event_type).topic
        if topic is None:
            why = f"stored without a topic, and the settings name none for event type {event.event_type!r}"
            return event, self._grace.refused(event.event_type, why)
        return event._replace(topic=topic), None


def _weight(batch: Batch) -> int:
    """Bytes of its payloads."""
    return sum([len(event.payload) for event in batch.events])


class _Failed:
    """A flight that ended with an error of the sender's own."""

    def __init__(self, batch: Batch, count: int, error: Exception) -> None:
        log.error("the sender failed on a batch of %d %s events", len(batch.events), batch.event_type, exc_info=error)
        self._results = [SendResult.retry(f"{type(error).__name__}: {error}", maybe_sent=True)] * count

    def done(self) -> bool:
        return True

    def results(self) -> Sequence[SendResult]:
        return self._results


def unsendable(event: Event) -> str | None:
    """Why the event's own headers cannot be sent. `publish` lets none of them through, but the table is open to others."""
    try:
        headers_of(event.headers)
    except InvalidHeader as error:
        return str(error)
    return None
