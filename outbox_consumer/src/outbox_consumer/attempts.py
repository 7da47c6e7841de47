"""Marks and handler in one transaction, begun again where only the company of others broke it off.

Insert the marks, run the handler, commit, tell the cache, in this order. Between the first INSERT and the COMMIT a crash leaves nothing,
before and after them everything as it was: a redelivery is always right.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar
from uuid import UUID

from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as NoConnection

from outbox_consumer.binds import bind_of, own_engine, owned
from outbox_consumer.cache import Look
from outbox_consumer.handlers import NotDone
from outbox_consumer.identity import Identity
from outbox_consumer.memory import Memory
from outbox_consumer.patience import Patience
from outbox_consumer.sessions import Opened, Sessions
from outbox_consumer.settings import ConsumerSettings
from outbox_consumer.store import ConsumedStore, store_for
from outbox_consumer.telemetry import Telemetry
from outbox_consumer.transactions import run_guarded, transaction
from outbox_shared.driver import Driver, Speech, SqlalchemyDriver, speech_of
from outbox_shared.errors import ConfigurationError
from outbox_shared.transaction import connection_of

R = TypeVar("R")


@dataclass(slots=True)
class Attempt(Generic[R]):
    """What shall be done in one transaction, and how far it came."""

    events: Sequence[Identity]
    work: Callable[[Any, set[UUID]], R]
    """The handler, called with a session and the events that are new. Not called where none is."""
    around: Callable[[], AbstractContextManager[None]]
    look: Look
    """At the cache, before all this."""

    fresh: set[UUID] | None = None
    """The events that are new; None until their marks stand: an error before that is not the handler's."""
    result: R | None = None
    place: tuple[Engine | Connection, ConsumedStore] = field(init=False)


class Attempts:
    """Of one consumer, from any thread or task."""

    def __init__(
        self, sessions: Sessions, name: str, settings: ConsumerSettings, memory: Memory, telemetry: Telemetry
    ) -> None:
        self._sessions, self._name, self._settings = sessions, name, settings
        self._memory, self._telemetry = memory, telemetry
        self._stores: dict[Speech, ConsumedStore] = {}
        self._kept_clean: dict[Engine, Any] = {}
        self._engine: Engine | None = None
        self._closed = False

    def close(self) -> list[Any]:
        """Nothing begins in the background any more; returns what is to be closed."""
        self._closed = True
        kept, self._kept_clean = self._kept_clean, {}
        return list(kept.values())

    def run(self, attempt: Attempt[Any]) -> None:
        """When this returns, it is committed."""
        patience = Patience(self._settings.lock_timeout)
        while (pause := self._try(attempt, patience)) is not None:
            self._sessions.pause(pause)
        bind, store = attempt.place
        if not isinstance(bind, Connection):  # else the outermost COMMIT is still to come, or not ours
            certain, fresh = store.durable_duplicates, attempt.fresh or set()
            ids = [event.event_id for event in attempt.events if certain or event.event_id in fresh]
            self._memory.remember(attempt.look, ids)
        self._keep_clean(owned(bind))

    def mark(self, driver: Driver, events: Sequence[Identity]) -> set[UUID]:
        """The marks alone, in a transaction of the caller's. Whether that commits is not known here, so no cache hears of it."""
        new = self._store(driver.speech).mark(driver, self._name, events)
        if self._engine is None:
            self._engine = own_engine(self._sessions.look())
        self._keep_clean(self._engine)
        return new

    def is_the_messages_own(self, error: Exception) -> bool:
        """Whether other messages may fare better. In an outage each would fail alone, and be put aside for nothing."""
        if isinstance(error, NotDone):
            return False
        stores = list(self._stores.values())
        return not any(
            isinstance(cause, NoConnection)  # the pool has none to give
            or getattr(cause, "connection_invalidated", False)
            or any(store.is_outage(cause) for store in stores)
            for cause in _causes(error)
        )

    def require_own_transactions(self) -> None:
        """For what commits and rolls back by parts."""
        session = self._sessions.look()
        if isinstance(session.bind, Connection) and session.join_transaction_mode != "create_savepoint":
            raise ConfigurationError(
                'on_error="bisect" commits and rolls back by parts, and this consumer works inside one transaction of yours: build '
                'it on the Engine, or bind the sessionmaker with join_transaction_mode="create_savepoint"'
            )

    def _try(self, attempt: Attempt[Any], patience: Patience) -> float | None:
        """None: it is committed. Else how long to pause before it is begun again."""
        attempt.fresh = None
        with self._sessions.fresh() as opened:
            bind = bind_of(opened.session)
            store = self._store(speech_of(bind.dialect.name, bind.dialect.paramstyle, bind.dialect.driver))
            attempt.place = bind, store
            # the transaction around this one is broken too, then: only its owner can begin it again
            joined = isinstance(bind, Connection) and bind.in_transaction()
            try:
                self._once(opened, store, attempt)
            except Exception as error:
                pause = patience.pause_after(error, is_conflict=any(map(store.is_conflict, _causes(error))))
                if joined or pause is None:
                    raise
                return pause
        return None

    def _once(self, opened: Opened, store: ConsumedStore, attempt: Attempt[Any]) -> None:
        session, given = opened
        with transaction(session):
            try:
                connection = connection_of(session, self._sessions.consume)
            except DBAPIError as error:
                if store.is_lock_timeout(error):  # SQLite takes its one lock when a transaction begins
                    raise store.in_progress(attempt.events) from error
                raise
            fresh = store.mark(SqlalchemyDriver(connection), self._name, attempt.events)
            attempt.fresh = fresh
            if fresh:
                with attempt.around():
                    attempt.result = run_guarded(session, connection, store, lambda: attempt.work(given, fresh))

    def _store(self, speech: Speech) -> ConsumedStore:
        store = self._stores.get(speech)
        if store is None:
            store = store_for(speech, self._settings.tables.names, self._settings.lock_timeout)
            self._stores[speech] = store
        return store

    def _keep_clean(self, engine: Engine | None) -> None:
        """With the first message of an engine that was consumed, and again where what that began has ended."""
        if engine is None or self._closed or not self._settings.clean_up.enabled:
            return
        kept = self._kept_clean.get(engine)
        if kept is None or kept.ended:
            self._kept_clean[engine] = self._sessions.keep_clean(engine, self._settings, self._telemetry)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error, and those that it was raised from."""
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        seen = seen.__cause__
