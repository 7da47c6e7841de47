"""Everything that a relay does beside relaying, on three threads: its heartbeat, recovery, and all the rest.

The first two wait for nothing and nobody: the others' lives depend on them.
"""

import logging

from sqlalchemy.exc import SQLAlchemyError

from outbox_publisher.relay.cleanup import StateCleanup
from outbox_publisher.relay.dead_letters import Replays, Sweep
from outbox_publisher.relay.heartbeat import Heartbeat
from outbox_publisher.relay.inflight import InFlight
from outbox_publisher.relay.recovery import Orphans, Recovery
from outbox_publisher.relay.settler import DeadLetterHook, database_error
from outbox_publisher.settings import PublisherSettings
from outbox_publisher.store import EventStore
from outbox_shared.cleanup import Cleanup
from outbox_shared.clock import Clock
from outbox_shared.conflicts import Transactions
from outbox_shared.lease import Lease
from outbox_shared.periodic import Every, Rota

log = logging.getLogger(__name__)


class Duties:
    """Each can be called by itself (`recovery.run_once()`), for commands and tests; `start` repeats them."""

    def __init__(
        self,
        transactions: Transactions,
        store: EventStore,
        settings: PublisherSettings,
        relay: str,
        inflight: InFlight,
        hook: DeadLetterHook,
        clock: Clock,
    ) -> None:
        recovery, letters = settings.stuck_recovery, settings.dlq
        longest = settings.sender.emergency_timeout

        def lease(name: str, seconds: float = 30.0) -> Lease:
            return Lease(transactions.run, store.state, name, relay, seconds)

        self._settings = settings
        self.heartbeat = Heartbeat(transactions, store, relay, inflight, settings.lease, longest, clock)
        self.recovery = Recovery(
            transactions,
            store,
            recovery.batch_size,
            recovery.max_batch_processing_time,
            hook,
            bury=letters.enabled,
            heartbeat=self.heartbeat,
        )
        self.orphans = Orphans(transactions, store, lease("orphans", Orphans.interval.total_seconds() * 0.9))
        self.sweep = Sweep(transactions, store, letters.batch_size, hook)
        self.replays = Replays(transactions, store, letters.batch_size)
        self.cleanup = Cleanup(
            "cleanup",
            transactions,
            store.has_processed,
            store.drop_processed,
            settings.clean_up,
            lease("cleanup"),
            clock,
        )
        self.dead_letter_cleanup = Cleanup(
            "dead-letter-cleanup", transactions, store.has_resolved, store.drop_resolved, letters.clean_up,
            lease("dead-letter-cleanup"), clock,
        )  # fmt: skip
        self.state_cleanup = StateCleanup(transactions, store)
        self._rotas: list[Rota] = []

    def start(self) -> None:
        recovery = self._settings.stuck_recovery
        self._rotas = [
            Rota("heartbeat", Every(self.heartbeat, self.heartbeat.interval)),
            Rota("recovery", Every(self.recovery, recovery.fixed_delay, recovery.initial_delay)),
            Rota("duties", *self._schedule()),
        ]
        for rota in self._rotas:
            rota.start()

    def stop(self) -> None:
        for rota in self._rotas:
            rota.stop()
        if self._rotas:
            try:
                self.heartbeat.end()
            except SQLAlchemyError as error:  # its row ends by itself
                log.info("the relay's heartbeat was not taken back: %s", database_error(error))
        self._rotas = []

    def _schedule(self) -> list[Every]:
        letters, clean = self._settings.dlq, self._settings.clean_up
        every = [
            Every(self.orphans, Orphans.interval, Orphans.interval),
            Every(self.state_cleanup, StateCleanup.interval),
            Every(self.replays, letters.transfer_from_fixed_delay, letters.transfer_from_initial_delay, repeats=True),
        ]
        if letters.enabled:
            every.append(
                Every(self.sweep, letters.transfer_to_fixed_delay, letters.transfer_to_initial_delay, repeats=True)
            )
        if clean.enabled:
            every.append(Every(self.cleanup, clean.fixed_delay, clean.initial_delay, repeats=True))
        if letters.clean_up.enabled:
            old = letters.clean_up
            every.append(Every(self.dead_letter_cleanup, old.fixed_delay, old.initial_delay, repeats=True))
        return every
