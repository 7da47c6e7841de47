"""One turn of a worker reads as claim → send → settle: the only place where the three meet."""

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy.engine import Engine
from sqlalchemy.exc import DBAPIError

from outbox_publisher.claims import Batch, ClaimStrategy
from outbox_publisher.relay.settlement import decide, release
from outbox_publisher.senders.base import Sender, SendResult
from outbox_publisher.settings import PublisherSettings
from outbox_publisher.store import Settlement
from outbox_shared.clock import Clock

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
        self, engine: Engine, claims: ClaimStrategy, sender: Sender, settings: PublisherSettings, clock: Clock
    ) -> None:
        self._engine, self._claims, self._sender, self._settings, self._clock = engine, claims, sender, settings, clock
        self._stop = threading.Event()

    def turn(self, event_type: str) -> Turn:
        """Claim a batch of one type, send it, settle it. If this process dies on the way, the lease runs out and another takes over."""
        started = self._clock.monotonic()  # before the claim: our idea of the lease must end before the database's
        delivery = self._settings.delivery_of(event_type)
        with self._engine.begin() as connection:
            batch = self._claims.claim(connection, event_type, delivery.batch_size)
        if batch is None:
            return Turn()
        lease_ends = started + self._settings.lease.total_seconds()
        send_takes = (self._settings.sender.publish_timeout + REPORTS_LATE).total_seconds()
        deadline = self._clock.monotonic() + send_takes
        results: Sequence[SendResult] = ()
        if deadline >= lease_ends:
            fate = release(batch.events, "claimed too slowly to be sent within the lease")
        else:
            results = self._send(batch, deadline)
            fate = decide(zip(batch.events, results, strict=True), delivery)
        ours = self._settle(batch, fate, lease_ends)
        return Turn(
            claimed=len(batch.events),
            delivered=len(fate.delivered),
            rescheduled=len(fate.rescheduled),
            buried=len(fate.buried),
            fenced=len(batch.events) - ours,
            unavailable=any(result.kind == "unavailable" for result in results),
            full=len(batch.events) >= delivery.batch_size,
        )

    def stop(self) -> None:
        """Do not wait for a database that is away any longer."""
        self._stop.set()

    def _send(self, batch: Batch, deadline: float) -> Sequence[SendResult]:
        try:
            return self._sender.send(batch.events, deadline).results()
        except Exception as error:  # a sender's own mistake must not strand its batch until the lease is over
            log.exception("the sender failed on a batch of %d %s events", len(batch.events), batch.event_type)
            return [SendResult.retry(f"{type(error).__name__}: {error}", maybe_sent=True)] * len(batch.events)

    def _settle(self, batch: Batch, fate: Settlement, lease_ends: float) -> int:
        """What the broker acknowledged should not be sent again because the database blinked: try until the lease is over."""
        wait = 0.1
        while True:
            try:
                with self._engine.begin() as connection:
                    return self._claims.settle(connection, batch, fate)
            except DBAPIError as error:
                if self._clock.monotonic() + wait >= lease_ends or self._stop.is_set():
                    raise
                log.warning(
                    "settling %d %s events again in %.1f s: %s", len(batch.events), batch.event_type, wait, error.orig
                )
            self._clock.wait(self._stop, wait)
            wait = min(wait * 2, 2.0)
