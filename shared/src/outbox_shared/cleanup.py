"""Cleanup: rows that have served go when their time is over, a bounded batch at a time, one process at a time."""

from collections.abc import Callable
from datetime import timedelta

from sqlalchemy.engine import Connection

from outbox_shared.clock import Clock
from outbox_shared.conflicts import Transactions
from outbox_shared.errors import OutboxError
from outbox_shared.lease import Lease
from outbox_shared.settings import CleanUpSettings

SLICE = timedelta(seconds=1)
"""A duty goes on for so long, and comes back at once if there is more: others share its thread."""
PATIENCE = timedelta(minutes=1)
"""How long the one-shot command waits for its turn."""
RENEW = timedelta(seconds=10)
LONGEST_REST = 1.0

Drop = Callable[[Connection, float, int], int]
"""Remove rows older than so many seconds, so many at most; returns how many went."""
IsDue = Callable[[Connection, float], bool]
"""Whether there is anything to remove: without locks, and without a write where nobody has to write."""


def _tell_nobody(_count: int) -> None:
    pass


class Cleanup:
    """A duty. One process at a time holds its lease: two cleaners at once cut the writers of MariaDB to a third.

    `rest`: after each batch it rests for so many times as long as the batch took, so that whoever else uses the database gets it, too,
    but for a second at most.
    `tell` hears how many rows went, batch by batch.
    """

    def __init__(
        self,
        name: str,
        transactions: Transactions,
        is_due: IsDue,
        drop: Drop,
        settings: CleanUpSettings,
        lease: Lease,
        clock: Clock,
        *,
        rest: float = 0.0,
        tell: Callable[[int], None] = _tell_nobody,
    ) -> None:
        self.name = name
        self._is_due = is_due
        self._transactions, self._drop, self._lease, self._clock = transactions, drop, lease, clock
        self._ttl, self._batch_size = settings.ttl.total_seconds(), settings.batch_size
        self._rest, self._tell = rest, tell

    def run_once(self) -> int:
        """Some of what is due; returns how many rows went."""
        if not self._transactions.read(lambda it: self._is_due(it, self._ttl)) or not self._lease.take():
            return 0
        try:
            return self._some(self._clock.monotonic() + SLICE.total_seconds())
        finally:
            self._lease.end()

    def run_to_the_end(self) -> int:
        """All that is due, for the one-shot command; waits for a process that is just cleaning."""
        self._wait()
        total, renew_at = 0, self._clock.monotonic() + RENEW.total_seconds()
        try:
            while (gone := self._batch()) > 0:
                total += gone
                if self._clock.monotonic() >= renew_at:
                    self._wait()  # it is ours, unless we stood still for longer than it lasts
                    renew_at = self._clock.monotonic() + RENEW.total_seconds()
        finally:
            self._lease.end()
        return total

    def _wait(self) -> None:
        if not self._lease.wait(self._clock, PATIENCE.total_seconds()):
            raise OutboxError(
                f"another process is cleaning up (the lease {self.name!r} was never free for {PATIENCE.total_seconds():g} s): "
                "it does the same work, or try again later"
            )

    def _some(self, until: float) -> int:
        total = 0
        while (gone := self._batch()) > 0:
            total += gone
            if gone < self._batch_size or self._clock.monotonic() >= until:
                break
        return total

    def _batch(self) -> int:
        began = self._clock.monotonic()
        gone = self._transactions.run(lambda it: self._drop(it, self._ttl, self._batch_size))
        if gone:
            self._tell(gone)
        if gone and self._rest:
            self._clock.sleep(min(LONGEST_REST, self._rest * (self._clock.monotonic() - began)))
        return gone
