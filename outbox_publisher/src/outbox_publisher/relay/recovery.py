"""Recovery: rows of a relay that died go back to PENDING when their lease is over, and rows that no claim knows of as well."""

import logging
from datetime import timedelta

from outbox_publisher.relay.heartbeat import Heartbeat
from outbox_publisher.relay.settler import DeadLetterHook, tell
from outbox_publisher.store import EventStore
from outbox_shared.conflicts import Transactions
from outbox_shared.lease import Lease

log = logging.getLogger(__name__)


class Recovery:
    """A duty. It costs the rows no attempt, since nothing is known about their last send; `lost_claims` counts it."""

    name = "recovery"

    def __init__(
        self,
        transactions: Transactions,
        store: EventStore,
        batch_size: int,
        longest: timedelta,
        hook: DeadLetterHook,
        *,
        bury: bool = True,
        heartbeat: Heartbeat | None = None,
    ) -> None:
        self._heartbeat = heartbeat
        self._transactions, self._store, self._batch_size, self._hook = transactions, store, batch_size, hook
        self._longest, self._bury = longest.total_seconds(), bury

    def run_once(self) -> int:
        """Returns how many rows came back. A few claims at a time, so that no transaction grows with the backlog of the dead."""
        if self._heartbeat is not None and self._heartbeat.was_silent():
            # after an outage every lease is over and every relay lives: let them say so first, this one as well
            self._heartbeat.run_once()
            return 0
        total = 0
        while True:
            done = self._transactions.run(
                lambda it: self._store.recover(it, self._batch_size, self._longest, bury=self._bury)
            )
            total += done.rows
            if done.rows:
                log.warning("recovered %d events of %d claims whose relay did not finish", done.rows, done.claims)
            for event in done.condemned:
                log.error("event %s of type %s kills its relay", event.id, event.event_type)
            if self._bury:
                tell(self._hook, done.condemned)
            if done.claims < self._batch_size:
                return total


class Orphans:
    """A duty, for what should never happen: IN_PROCESS rows whose claim row is gone. It reads every open row, so one relay does it."""

    name = "orphans"
    interval = timedelta(minutes=10)

    def __init__(self, transactions: Transactions, store: EventStore, lease: Lease | None = None) -> None:
        self._transactions, self._store, self._lease = transactions, store, lease

    def run_once(self) -> int:
        if (
            self._lease is not None and not self._lease.take()
        ):  # and keep it: once per interval is enough for all relays
            return 0
        total = 0
        while rows := self._transactions.run(lambda it: self._store.adopt_orphans(it, 1000)):
            log.warning("%d events were claimed by nobody and are free again", rows)
            total += rows
        return total
