"""The relay: a process (or a part of one) that turns stored events into messages until it is told to stop."""

import logging
import os
import random
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from uuid import uuid4

from sqlalchemy.engine import Engine
from sqlalchemy.exc import SQLAlchemyError

from outbox_publisher.claims import RowClaims
from outbox_publisher.relay.backoff import pause_after
from outbox_publisher.relay.breaker import Breakers
from outbox_publisher.relay.division import Share, divide
from outbox_publisher.relay.duties import Duties
from outbox_publisher.relay.flights import Flights
from outbox_publisher.relay.health import Health
from outbox_publisher.relay.inflight import InFlight
from outbox_publisher.relay.lock import LEASE_NAME, TTL, poller_lock
from outbox_publisher.relay.rounds import Rounds
from outbox_publisher.relay.settler import DeadLetterHook, Settler, database_error, log_dead_letters
from outbox_publisher.relay.signals import drain_on_signals
from outbox_publisher.relay.turn import Turn
from outbox_publisher.relay.wakeup import Wakeup
from outbox_publisher.schema import create_tables, require_tables
from outbox_publisher.senders import Sender, sender_for
from outbox_publisher.settings import PublisherSettings
from outbox_publisher.store import store_for
from outbox_shared.clock import Clock, SystemClock, pause
from outbox_shared.conflicts import Transactions
from outbox_shared.database import make_engine, reading
from outbox_shared.errors import ConfigurationError
from outbox_shared.lease import Lease
from outbox_shared.transaction import is_autocommit

log = logging.getLogger(__name__)


class Relay:
    """`Relay(settings).run()` is a whole relay process; `run_once()` is one look at every type, for tests and one-shot jobs.

    Any number of relays may work on one database. What one of them was doing when it died is taken over by the others.
    `on_dead_letter` is called with events that have just become dead letters, after the commit and at most once.
    """

    def __init__(
        self,
        settings: PublisherSettings,
        *,
        engine: Engine | None = None,
        sender: Sender | None = None,
        on_dead_letter: DeadLetterHook = log_dead_letters,
        clock: Clock | None = None,
    ) -> None:
        check(settings)
        self._settings = settings
        self._stop_requested = False
        self._clock = clock or SystemClock()
        with ExitStack() as made:  # what we make ourselves is ours to close, also when a later line fails
            self._sender = sender or made.enter_context(closing(sender_for(settings, self._clock)))
            self._owns_engine = engine is None
            self._engine = engine or make_engine(settings.require_database_url(), "outbox-publisher")
            if self._owns_engine:
                made.callback(self._engine.dispose)
            self._store = store_for(self._engine.dialect.name, settings.tables.names)
            self._have_tables()
            self.name = f"{settings.name or 'relay'}@{socket.gethostname()}:{os.getpid()}:{uuid4().hex[:8]}"
            self._build(on_dead_letter)
            made.callback(self._lock.close)
            for transactions in self._kept:
                made.callback(transactions.close)
            self._made = made.pop_all()

    def _build(self, hook: DeadLetterHook) -> None:
        settings, store, clock = self._settings, self._store, self._clock
        transactions, inflight = self._transactions(), InFlight(clock)
        self._base = min(one.fixed_delay for one in (settings.defaults, *settings.deliveries.values())).total_seconds()
        self._lock = poller_lock(settings, Lease(transactions.run, store.state, LEASE_NAME, self.name, TTL), clock)
        self._kept: list[Transactions] = []
        self.wakeup = Wakeup(self._engine, settings)
        breakers = Breakers(self._base)
        self._workers = {
            share.name: self._worker(share, breakers, inflight, hook)
            for share in divide(settings.events, settings.thread_pool_size)
        }
        self.duties = Duties(transactions, store, settings, self.name, inflight, hook, clock)
        self.health = Health(self._engine, self._sender, settings, clock)

    def _worker(self, share: Share, breakers: Breakers, inflight: InFlight, hook: DeadLetterHook) -> Rounds:
        """What one thread needs for itself."""
        settings, store, clock = self._settings, self._store, self._clock
        transactions = self._transactions(keeps=self._owns_engine)
        self._kept.append(transactions)
        keep = not settings.clean_up.enabled or bool(settings.clean_up.ttl)
        claims = RowClaims(store, self.name, settings.lease, keep=keep, bury=settings.dlq.enabled)
        settler = Settler(transactions, store, claims, hook, clock, self._stopping, own=self._owns_engine)
        flights = partial(Flights, claims, self._sender, settler, settings, inflight, clock, self._stopping)
        return Rounds(
            transactions, store, flights, self._sender, self._lock, breakers, inflight, settings, self.wakeup.bell(), clock, self._stopping,
            share.has,
        )  # fmt: skip

    def _transactions(self, *, keeps: bool = False) -> Transactions:
        longest = self._settings.lease.total_seconds()
        return Transactions(self._engine, self._store, self._clock, longest, own=self._owns_engine, keeps=keeps)

    def run_once(self) -> Turn:
        """One batch of every type that has something due."""
        return sum((rounds.once() for rounds in self._workers.values()), Turn())

    def run(self) -> None:
        """Relay until `stop()` or SIGTERM; batches that are under way are finished and settled first. Closes the relay at its end."""
        log.info("relay %s starts", self.name)
        with drain_on_signals(self.stop):
            try:
                self.duties.start()
                self.wakeup.start()
                self._run_workers()
            finally:
                self.wakeup.stop()
                self.duties.stop()
                self.close()
        log.info("relay %s has stopped", self.name)

    @contextmanager
    def background(self) -> Iterator["Relay"]:
        """The relay on a thread of its own, for as long as the block lasts: in the lifespan of an application, say."""
        thread = threading.Thread(target=self.run, name="outbox-relay", daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self.stop()
            thread.join()

    def stop(self) -> None:
        """Ask `run()` to finish what is under way and return. Safe from any thread and from a signal handler."""
        self._stop_requested = True

    def close(self) -> None:
        """Close what the relay made itself; an engine or sender that was given stays open."""
        self._made.close()

    def _stopping(self) -> bool:
        return self._stop_requested

    def _run_workers(self) -> None:
        """One on this thread, the others beside it. A worker that fails for a reason of its own ends the relay: whoever runs it starts it
        anew, and nobody relies on half of one.
        """
        failures: list[BaseException] = []

        def work(name: str) -> None:
            try:
                self._loop(name)
            except BaseException as error:  # noqa: BLE001 - raised again on the thread that is waited for
                failures.append(error)
                self.stop()

        first, *others = self._workers
        threads = [threading.Thread(target=work, args=(name,), name=f"outbox-{name}", daemon=True) for name in others]
        for thread in threads:
            thread.start()
        try:
            self._loop(first)
        finally:
            self.stop()
            for thread in threads:
                thread.join()
        for failure in failures:
            raise failure

    def _loop(self, name: str) -> None:
        rounds, failures = self._workers[name], 0
        while not self._stopping():
            self.health.beat(name)
            try:
                turn = rounds.round()
                failures = 0
            except SQLAlchemyError as error:
                failures += 1
                seconds = pause_after(failures, self._base, random.random())
                log.warning("the database does not do its part, again in %.1f s: %s", seconds, database_error(error))
                pause(self._clock, seconds, self._stopping)
            else:
                rounds.rest(turn)
        rounds.finish()

    def _have_tables(self) -> None:
        with reading(self._engine) as connection:
            if is_autocommit(connection):
                raise ConfigurationError(
                    "the relay needs transactions: pass an engine without isolation_level='AUTOCOMMIT'"
                )
            self._store.check_session(connection)
        have = create_tables if self._settings.tables.auto_create else require_tables
        have(self._engine, self._settings.tables.names)


def check(settings: PublisherSettings) -> None:
    if not settings.enabled:
        raise ConfigurationError("publisher.enabled is false in the settings: set it to true, or run no relay here")
    if settings.ordering == "key":
        raise ConfigurationError(
            "publisher.ordering: key is not there yet: write ordering: none (two events of one key may then arrive in either order)"
        )
    for warning in settings.warnings():
        log.warning("%s", warning)
