"""The relay: a process (or a part of one) that turns stored events into messages until it is told to stop."""

import logging
import os
import random
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from types import FrameType
from uuid import uuid4

from sqlalchemy.engine import Engine
from sqlalchemy.exc import SQLAlchemyError

from outbox_publisher.claims import RowClaims
from outbox_publisher.relay.backoff import pause_after
from outbox_publisher.relay.conflicts import Transactions
from outbox_publisher.relay.recovery import Recovery
from outbox_publisher.relay.worker import Turn, Worker, database_error
from outbox_publisher.schema import create_tables
from outbox_publisher.senders import Sender, sender_for
from outbox_publisher.settings import PublisherSettings
from outbox_publisher.store import store_for
from outbox_shared.clock import Clock, SystemClock, pause
from outbox_shared.creation import missing_tables
from outbox_shared.database import make_engine, reading
from outbox_shared.errors import ConfigurationError, MissingTable
from outbox_shared.periodic import Periodic
from outbox_shared.transaction import is_autocommit

log = logging.getLogger(__name__)


class Relay:
    """`Relay(settings).run()` is a whole relay process; `run_once()` is one look at every type, for tests and one-shot jobs.

    Any number of relays may work on one database. What one of them was doing when it died is taken over by the others.
    """

    def __init__(
        self,
        settings: PublisherSettings,
        *,
        engine: Engine | None = None,
        sender: Sender | None = None,
        clock: Clock | None = None,
    ) -> None:
        if not settings.enabled:
            raise ConfigurationError("publisher.enabled is false in the settings: set it to true, or run no relay here")
        for warning in settings.warnings():
            log.warning("%s", warning)
        self._settings = settings
        self._stop_requested = False
        self._clock = clock or SystemClock()
        with ExitStack() as made:  # what we make ourselves is ours to close, also when a later line fails
            self._sender = sender or made.enter_context(closing(sender_for(settings, self._clock)))
            self._engine = engine or make_engine(settings.require_database_url(), "outbox-publisher")
            if engine is None:
                made.callback(self._engine.dispose)
            self._store = store_for(self._engine.dialect.name, settings.tables.names)
            self._have_tables()
            self._made = made.pop_all()
        self.name = f"{settings.name or 'relay'}@{socket.gethostname()}:{os.getpid()}:{uuid4().hex[:8]}"
        self._claims = RowClaims(self._store, self.name, settings.lease)
        transactions = Transactions(self._engine, self._store.is_conflict, self._clock)
        self._worker = Worker(transactions, self._claims, self._sender, settings, self._clock, self._stopping)
        self.recovery = Recovery(transactions, self._store, settings.stuck_recovery.batch_size)

    def run_once(self) -> Turn:
        """One batch of every type that has something due."""
        with reading(self._engine) as connection:
            types = self._claims.due_types(connection)
        done = Turn()
        for event_type in types:
            if self._stopping():
                break
            done += self._worker.turn(event_type)
        return done

    def run(self) -> None:
        """Relay until `stop()` or SIGTERM; the batch that is under way is finished and settled first."""
        log.info("relay %s starts", self.name)
        duty = Periodic(self.recovery, self._settings.stuck_recovery.fixed_delay)
        with self._signals():
            duty.start()
            try:
                self._loop()
            finally:
                duty.stop()
                self.close()
        log.info("relay %s has stopped", self.name)

    def stop(self) -> None:
        """Ask `run()` to finish what is under way and return. Safe from any thread and from a signal handler."""
        self._stop_requested = True

    def _stopping(self) -> bool:
        return self._stop_requested

    def close(self) -> None:
        """Close what the relay made itself; an engine or sender that was given stays open."""
        self._made.close()

    def _loop(self) -> None:
        failures = 0
        deliveries = [self._settings.defaults, *self._settings.deliveries.values()]
        base = min(delivery.fixed_delay for delivery in deliveries).total_seconds()
        while not self._stopping():
            try:
                turn = self.run_once()
            except SQLAlchemyError as error:
                failures += 1
                log.warning("the database does not do its part, trying again: %s", database_error(error))
            else:
                failures = failures + 1 if turn.unavailable else 0
                if turn.full and not failures:
                    continue
            seconds = pause_after(failures, base, random.random())
            if failures:
                log.warning("the broker or the database is away: looking again in %.1f s", seconds)
            pause(self._clock, seconds, self._stopping)

    def _have_tables(self) -> None:
        with reading(self._engine) as connection:
            if is_autocommit(connection):
                raise ConfigurationError(
                    "the relay needs transactions: pass an engine without isolation_level='AUTOCOMMIT'"
                )
            self._store.check_session(connection)
        tables = list(self._store.tables)
        if self._settings.tables.auto_create:
            create_tables(self._engine, self._settings.tables.names)
        elif missing := missing_tables(self._engine, tables):
            names = ", ".join(table.name for table in missing)
            raise MissingTable(f"the database has no table {names}: run `outbox-publisher init-db`")

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """SIGTERM and Ctrl-C drain; a second one ends the process at once. Only a main thread may say so."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def drain(number: int, _frame: FrameType | None) -> None:
            signal.signal(number, signal.SIG_DFL)
            log.info("%s: finishing what is under way", signal.Signals(number).name)
            self.stop()

        before = {number: signal.signal(number, drain) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
