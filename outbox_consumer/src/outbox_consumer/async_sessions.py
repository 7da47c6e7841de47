"""Where an async consumer's sessions come from. Its work runs in SQLAlchemy's greenlet, where what is written once may wait."""

import asyncio
import contextlib
from collections.abc import Collection, Iterator
from typing import Any, TypeAlias
from uuid import UUID

import greenlet  # noqa: F401 - without it SQLAlchemy 2.0 fails at the first use only, and 2.1 no longer installs it
from sqlalchemy.engine import Engine
from sqlalchemy.ext.asyncio import (
    AsyncConnection,
    AsyncEngine,
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
)
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.util import await_only

from outbox_consumer.binds import own_engine
from outbox_consumer.cache import ConsumerCache, Look
from outbox_consumer.cleanup import AsyncKeeping, keep_clean_async
from outbox_consumer.sessions import Opened, taking_its_place
from outbox_consumer.settings import ConsumerSettings
from outbox_consumer.telemetry import Telemetry
from outbox_shared.adapters import Call

AsyncSessionSource: TypeAlias = "async_sessionmaker[Any] | async_scoped_session[Any] | AsyncEngine"


class AsyncSessions:
    """Of an async_sessionmaker, an async_scoped_session or an AsyncEngine."""

    consume = Call("consumer.consume(message, handler)", "an async_sessionmaker", is_async=True)

    def __init__(self, source: object) -> None:
        self._source = _source_of(source)

    def look(self) -> Session:
        return self._make().sync_session

    @contextlib.contextmanager
    def fresh(self) -> Iterator[Opened]:
        """To be entered in the greenlet. A scoped session's place is taken for this task alone, or whatever its scope is."""
        with contextlib.ExitStack() as after:
            made = self._make()
            after.callback(made.sync_session.close)
            if isinstance(self._source, async_scoped_session):
                after.enter_context(taking_its_place(self._source.registry, made))
            yield Opened(made.sync_session, made)

    def pause(self, seconds: float) -> None:
        await_only(asyncio.sleep(seconds))

    def engine_beside(self) -> AsyncEngine | None:
        engine = own_engine(self.look())
        return None if engine is None else AsyncEngine(engine)

    def look_at(self, cache: ConsumerCache, ids: Collection[UUID]) -> Look:
        return await_only(cache.look_async(ids))

    def remember_in(self, cache: ConsumerCache, look: Look, ids: Collection[UUID]) -> None:
        await_only(cache.remember_async(look, ids))

    def keep_clean(self, engine: Engine, settings: ConsumerSettings, telemetry: Telemetry) -> AsyncKeeping:
        return keep_clean_async(AsyncEngine(engine), settings, telemetry)

    def _make(self) -> AsyncSession:
        source = self._source
        made = source.session_factory() if isinstance(source, async_scoped_session) else source()
        if not isinstance(made, AsyncSession):
            raise TypeError(
                f"the session factory makes {type(made).__name__} objects, and this consumer needs an AsyncSession"
            )
        return made


def _source_of(source: object) -> "async_sessionmaker[Any] | async_scoped_session[Any]":
    if isinstance(source, async_sessionmaker | async_scoped_session):
        return source
    if isinstance(source, AsyncEngine):
        # what a handler returns can still be read after the commit
        return async_sessionmaker(source, expire_on_commit=False)
    name = type(source).__name__
    if isinstance(source, sessionmaker | scoped_session | Engine):
        raise TypeError(f"{name} is sync: use IdempotentConsumer with it, or pass an async_sessionmaker or AsyncEngine")
    if isinstance(source, AsyncSession):
        raise TypeError(
            "AsyncIdempotentConsumer makes a session of its own for each message: pass the async_sessionmaker or the AsyncEngine. "
            "To take part in a transaction of yours, write `if await consumer.claim(session, message):`"
        )
    if isinstance(source, AsyncConnection):
        raise TypeError(
            "pass async_sessionmaker(connection) to consume inside this AsyncConnection's transaction, or its AsyncEngine"
        )
    raise TypeError(
        f"AsyncIdempotentConsumer takes an async_sessionmaker, async_scoped_session or AsyncEngine first, not {name}"
    )
