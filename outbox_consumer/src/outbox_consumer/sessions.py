"""Where a consumer's sessions come from, and how a sync program waits. AsyncSessions is the same for an async one."""

import contextlib
import time
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol, TypeAlias
from uuid import UUID

from sqlalchemy.engine import Connection, Engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from outbox_consumer.binds import own_engine
from outbox_consumer.cache import ConsumerCache, Look
from outbox_consumer.cleanup import Keeping, keep_clean
from outbox_consumer.settings import ConsumerSettings
from outbox_consumer.telemetry import Telemetry
from outbox_shared.adapters import Call

SessionSource: TypeAlias = "sessionmaker[Any] | scoped_session[Any] | Engine"


class Opened(NamedTuple):
    """A session for one transaction."""

    session: Session
    given: Any
    """The same one as handlers get it: an AsyncSession in an async consumer."""


class Sessions(Protocol):
    """All that differs between a sync consumer and an async one, below their methods."""

    consume: Call
    """The call that errors show."""

    def look(self) -> Session:
        """A session that is only looked at; it never connects."""

    def fresh(self) -> AbstractContextManager[Opened]:
        """A session for one transaction, closed afterwards."""

    def pause(self, seconds: float) -> None:
        """Wait without keeping others from their work."""

    def engine_beside(self) -> Any:
        """Where the caches' epoch may be read beside the consumer's transactions; None where it would be read inside of one."""

    def look_at(self, cache: ConsumerCache, ids: Collection[UUID]) -> Look: ...

    def remember_in(self, cache: ConsumerCache, look: Look, ids: Collection[UUID]) -> None: ...

    def keep_clean(self, engine: Engine, settings: ConsumerSettings, telemetry: Telemetry) -> Any:
        """Let this process clean the database from now on; returns what ends it."""


class SyncSessions:
    """Of a sessionmaker, a scoped_session or an Engine."""

    consume = Call("consumer.consume(message, handler)", "a sync sessionmaker")

    def __init__(self, source: object) -> None:
        self._source = _source_of(source)

    def look(self) -> Session:
        source = self._source
        made = source.session_factory() if isinstance(source, scoped_session) else source()
        if not isinstance(made, Session):
            raise TypeError(
                f"the session factory makes {type(made).__name__} objects, and this consumer needs a sync Session"
            )
        return made

    @contextlib.contextmanager
    def fresh(self) -> Iterator[Opened]:
        """Where each thread has a scoped session, this one takes its place meanwhile: who reaches for it works in the same transaction."""
        with contextlib.ExitStack() as after:
            session = self.look()
            after.callback(session.close)
            if isinstance(self._source, scoped_session):
                after.enter_context(taking_its_place(self._source.registry, session))
            yield Opened(session, session)

    def pause(self, seconds: float) -> None:
        time.sleep(seconds)

    def engine_beside(self) -> Engine | None:
        return own_engine(self.look())

    def look_at(self, cache: ConsumerCache, ids: Collection[UUID]) -> Look:
        return cache.look(ids)

    def remember_in(self, cache: ConsumerCache, look: Look, ids: Collection[UUID]) -> None:
        cache.remember(look, ids)

    def keep_clean(self, engine: Engine, settings: ConsumerSettings, telemetry: Telemetry) -> Keeping:
        return keep_clean(engine, settings, telemetry)


@contextlib.contextmanager
def taking_its_place(registry: Any, session: Any) -> Iterator[None]:
    """The scoped session of this scope is `session` inside the block, and afterwards what it was before."""
    before = registry() if registry.has() else None
    registry.set(session)
    try:
        yield
    finally:
        if before is None:
            registry.clear()
        else:
            registry.set(before)


def _source_of(source: object) -> "sessionmaker[Any] | scoped_session[Any]":
    if isinstance(source, sessionmaker | scoped_session):
        return source
    if isinstance(source, Engine):
        # what a handler returns can still be read after the commit
        return sessionmaker(source, expire_on_commit=False)
    name = type(source).__name__
    if name.startswith(("Async", "async_")):
        raise TypeError(
            f"{name} is async: use AsyncIdempotentConsumer with it, or pass a sync sessionmaker, scoped_session or Engine"
        )
    if isinstance(source, Session):
        raise TypeError(
            "IdempotentConsumer makes a session of its own for each message: pass the sessionmaker or the Engine. "
            "To take part in a transaction of yours, write `if consumer.claim(session, message):`"
        )
    if isinstance(source, Connection):
        raise TypeError("pass sessionmaker(connection) to consume inside this Connection's transaction, or its Engine")
    raise TypeError(f"IdempotentConsumer takes a sessionmaker, scoped_session or Engine first, not {name}")
