"""`IdempotentConsumer`: a handler's database effect happens once per event and consumer name.

A broker delivers at least once; the second time must change nothing. For each message: insert the mark (consumer, event id), run the
handler, commit both, and only then return, so that the caller acknowledges what is certainly kept. A duplicate finds the mark, a twin
that arrives meanwhile waits for it, and a crash anywhere before the commit leaves neither mark nor effect: the redelivery runs it.
"""

import logging
import time
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, overload

from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from outbox_consumer.decorators import make_idempotent
from outbox_consumer.handlers import WarnOnce, arguments_wanted, finished
from outbox_consumer.identify import identify
from outbox_consumer.identity import Identity
from outbox_consumer.outcome import Outcome, Status
from outbox_consumer.patience import Patience
from outbox_consumer.schema import create_where_possible
from outbox_consumer.settings import ConsumerSettings, check_name
from outbox_consumer.store import ConsumedStore, store_for
from outbox_consumer.transactions import fresh_session, new_session, run_guarded, sessions_of, transaction
from outbox_shared.adapters import Call
from outbox_shared.context import consuming
from outbox_shared.errors import ConfigurationError
from outbox_shared.transaction import SqlalchemyTransaction, connection_of, single_bind

log = logging.getLogger(__name__)

M = TypeVar("M")
R = TypeVar("R")
P = ParamSpec("P")
Owner = TypeVar("Owner")

_CLAIM = Call("consumer.claim(session, message)", "await session.run_sync(lambda s: consumer.claim(s, message))")
_CONSUME = Call("consumer.consume(message, handler)", "a sync sessionmaker")


class IdempotentConsumer:
    """Consumes each event once under one name. Thread-safe; one per process and name is enough."""

    def __init__(
        self,
        sessions: "sessionmaker[Any] | scoped_session[Any] | Engine",
        name: str | None = None,
        *,
        settings: ConsumerSettings | None = None,
    ) -> None:
        self._sessions = sessions_of(sessions)
        self.settings = ConsumerSettings() if settings is None else settings
        self.name = self.settings.require_name() if name is None else _checked(name)
        if not self.settings.enabled:
            raise ConfigurationError(
                "consumer.enabled is false in the settings: set it to true, or build no consumer here"
            )
        for warning in self.settings.warnings():
            log.warning("%s", warning)
        self._stores: dict[str, ConsumedStore] = {}
        self._warn_once = WarnOnce()
        with new_session(self._sessions) as session:
            single_bind(session)  # a session over two databases is refused here already
            if self.settings.tables.auto_create:
                create_where_possible(session, self.settings.tables.names)

    @overload
    def consume(self, message: M, handler: Callable[[Session, M], R]) -> Outcome[R]: ...
    @overload
    def consume(self, message: object, handler: Callable[[Session], R]) -> Outcome[R]: ...
    @overload
    def consume(self, message: object, handler: Callable[[], R]) -> Outcome[R]: ...

    def consume(self, message: object, handler: Callable[..., R]) -> Outcome[R]:
        """Run `handler(session, message)` if this event is new here, and commit its changes with the mark.

        Whatever the handler raises rolls everything back and comes out unchanged. When this returns, the message can be acknowledged.
        """
        wanted = arguments_wanted(handler)
        if not wanted:
            self._warn_once.without_session(handler)

        def work(session: Session) -> R:
            result: R = finished(handler, handler(*(session, message)[:wanted]))
            return result

        return self._run(message, work)

    def claim(self, session: SqlalchemyTransaction, message: object) -> bool:
        """Mark the event as consumed in a transaction of yours. True: it is new, do the work; False: it was consumed before.

        The mark is kept or lost with your transaction. After an error of this call, roll back.
        """
        identity = identify(message)
        connection = connection_of(session, _CLAIM)
        return self._store(connection).mark(connection, self.name, identity)

    @overload
    def idempotent(self, function: Callable[Concatenate[Session, P], R], /) -> Callable[P, R | None]: ...
    @overload
    def idempotent(
        self, function: Callable[Concatenate[Owner, Session, P], R], /
    ) -> Callable[Concatenate[Owner, P], R | None]: ...
    @overload
    def idempotent(self, /, *, session: str = "session", message: str | None = None) -> "_Decorator": ...

    def idempotent(
        self, function: Callable[..., Any] | None = None, /, *, session: str = "session", message: str | None = None
    ) -> Any:
        """Decorate a message callback: its session parameter is filled here, its caller passes the rest.

        The parameters are found as `session` and `message`; `@consumer.idempotent(session="db", message="record")` names others.
        The decorated function returns what the function returned, and None for a duplicate.
        """

        def decorate(function: Callable[..., R]) -> Callable[..., R | None]:
            return make_idempotent(function, self._run, session=session, message=message)

        return decorate if function is None else decorate(function)

    def _run(self, message: object, work: Callable[[Session], R]) -> Outcome[R]:
        """One transaction, begun again where only the company of others broke it off."""
        identity = identify(message)
        patience = Patience(self.settings.lock_timeout)
        while True:
            with fresh_session(self._sessions) as session:
                bind = single_bind(session) or session.get_bind()
                store = self._store(bind)
                # the transaction around this one is broken too, then: only its owner can begin it again
                joined = isinstance(bind, Connection) and bind.in_transaction()
                try:
                    return self._once(session, store, identity, work)
                except Exception as error:
                    pause = patience.pause_after(error, is_conflict=store.is_conflict(error))
                    if joined or pause is None:
                        raise
            time.sleep(pause)

    def _once(
        self, session: Session, store: ConsumedStore, identity: Identity, work: Callable[[Session], R]
    ) -> Outcome[R]:
        with transaction(session):
            try:
                connection = connection_of(session, _CONSUME)
            except DBAPIError as error:
                if store.is_lock_timeout(error):  # SQLite takes its one lock when a transaction begins
                    raise store.in_progress(identity) from error
                raise
            if not store.mark(connection, self.name, identity):
                return Outcome(Status.DUPLICATE, identity.event_id, identity.event_type)
            with consuming(identity.story):  # what the handler publishes continues the message's story
                result = run_guarded(session, connection, store, work)
        return Outcome(Status.CONSUMED, identity.event_id, identity.event_type, result)

    def _store(self, bind: Engine | Connection) -> ConsumedStore:
        dialect = bind.dialect
        if dialect.name not in self._stores:
            self._stores[dialect.name] = store_for(dialect, self.settings.tables.names, self.settings.lock_timeout)
        return self._stores[dialect.name]


class _Decorator(Protocol):
    def __call__(self, function: Callable[..., R], /) -> Callable[..., R | None]: ...


def _checked(name: str) -> str:
    try:
        return check_name(name)
    except ValueError as error:
        raise ConfigurationError(str(error)) from None
