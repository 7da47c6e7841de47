"""Cleanup: delivered events and resolved dead letters go when their time is over, a bounded batch at a time."""

import logging
from collections.abc import Callable
from datetime import timedelta

from sqlalchemy.engine import Connection

from outbox_publisher.relay.conflicts import Transactions
from outbox_publisher.store import EventStore
from outbox_shared.clock import Clock
from outbox_shared.errors import OutboxError
from outbox_shared.lease import Lease
from outbox_shared.settings import CleanUpSettings
from outbox_shared.state import RELAY

log = logging.getLogger(__name__)

SLICE = timedelta(seconds=1)
"""A duty goes on for so long, and comes back at once if there is more: others share its thread."""
PATIENCE = timedelta(minutes=1)
"""How long the one-shot command waits for its turn."""
HEARTBEATS_KEPT = timedelta(days=1)

Drop = Callable[[Connection, float, int], int]
IsDue = Callable[[Connection, float], bool]


class Cleanup:
    """A duty. One process at a time holds its lease: two cleaners at once cut the writers of MariaDB to a third."""

    def __init__(
        self,
        name: str,
        transactions: Transactions,
        is_due: IsDue,
        drop: Drop,
        settings: CleanUpSettings,
        lease: Lease,
        clock: Clock,
    ) -> None:
        self.name = name
        self._is_due = is_due
        self._transactions, self._drop, self._lease, self._clock = transactions, drop, lease, clock
        self._ttl, self._batch_size = settings.ttl.total_seconds(), settings.batch_size

    def run_once(self) -> int:
        """Some of what is due; returns how many rows went."""
        if not self._transactions.read(lambda it: self._is_due(it, self._ttl)) or not self._lease.take():
            return 0
        try:
            return self._some(self._clock.monotonic() + SLICE.total_seconds())
        finally:
            self._lease.end()

    def run_to_the_end(self) -> int:
        """All that is due, for the one-shot command; waits for a relay that is just cleaning."""
        if not self._lease.wait(self._clock, PATIENCE.total_seconds()):
            raise OutboxError(
                f"another process is cleaning up (the lease {self.name!r} was never free for {PATIENCE.total_seconds():g} s): "
                "it does the same work, or try again later"
            )
        total = 0
        try:
            while (gone := self._batch()) > 0:
                total += gone
                self._lease.take()
        finally:
            self._lease.end()
        return total

    def _some(self, until: float) -> int:
        total = 0
        while (gone := self._batch()) > 0:
            total += gone
            if gone < self._batch_size or self._clock.monotonic() >= until:
                break
        return total

    def _batch(self) -> int:
        return self._transactions.run(lambda it: self._drop(it, self._ttl, self._batch_size))


class StateCleanup:
    """A duty: heartbeats of relays that have long been gone."""

    name = "state-cleanup"
    interval = timedelta(hours=1)

    def __init__(self, transactions: Transactions, store: EventStore) -> None:
        self._transactions, self._store = transactions, store

    def run_once(self) -> int:
        return self._transactions.run(
            lambda it: self._store.state.remove_old(it, RELAY, HEARTBEATS_KEPT.total_seconds())
        )
