"""Consumed rows go when their ttl is over: in bounded batches, one process at a time, on by default in every consumer.

A consumer asks for it with its first message, `keep_clean(engine, settings)`, and keeps what it gets: closing that ends the cleaning,
once nobody else of the process uses the same database. `ended` says that it is to be asked for again: after a fork, after
`engine.dispose()`, in another event loop.
"""

import asyncio
import weakref
from typing import TYPE_CHECKING

from sqlalchemy.engine import Engine

from outbox_consumer.binds import shares_connections
from outbox_consumer.cleaning import threads
from outbox_consumer.cleaning.users import User
from outbox_consumer.settings import ConsumerSettings
from outbox_consumer.telemetry import Telemetry

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

    from outbox_consumer.cleaning import tasks


def keep_clean(engine: Engine, settings: ConsumerSettings, telemetry: Telemetry | None = None) -> "Keeping":
    """From now on this process cleans this database, on one daemon thread, also without `close` as long as the consumer lives."""
    user = _user(engine, settings, telemetry)
    return Keeping() if user is None else Keeping(user, threads.join(user, engine))


def keep_clean_async(
    engine: "AsyncEngine", settings: ConsumerSettings, telemetry: Telemetry | None = None
) -> "AsyncKeeping":
    """The same as a task of the running loop."""
    user = _user(engine.sync_engine, settings, telemetry)
    if user is None:
        return AsyncKeeping()
    from outbox_consumer.cleaning import tasks  # noqa: PLC0415 - needs greenlet, which only async programs have

    return AsyncKeeping(user, tasks.join(user, engine.sync_engine))


def _user(engine: Engine, settings: ConsumerSettings, telemetry: Telemetry | None) -> User | None:
    if not settings.clean_up.enabled or shares_connections(engine):
        return None  # where connections are shared, a commit of ours would commit the user's transaction
    return User(engine, settings, _tell_nobody if telemetry is None else telemetry.cleaned)


def _tell_nobody(_count: int) -> None:
    pass


class Keeping:
    """One consumer's share of a cleaner."""

    def __init__(self, user: User | None = None, cleaner: "threads.Cleaner | None" = None) -> None:
        self._user, self._cleaner = user, cleaner
        if user is not None and cleaner is not None:
            # whoever collects a consumer that nobody closed must not wait
            self._finalize = weakref.finalize(self, cleaner.leave, user, 0.0)
            self._finalize.atexit = False

    @property
    def ended(self) -> bool:
        return self._user is not None and self._user.ended

    def close(self) -> None:
        """The last consumer of a database waits for the batch that is under way. Can be called again."""
        if self._user is not None and self._cleaner is not None and not self._user.ended:
            self._finalize.detach()
            self._cleaner.leave(self._user, threads.CLOSE)


class AsyncKeeping:
    """The same in an event loop."""

    def __init__(self, user: User | None = None, cleaner: "tasks.Cleaner | None" = None) -> None:
        self._user, self._cleaner = user, cleaner
        if user is not None and cleaner is not None:
            self._loop = asyncio.get_running_loop()
            self._finalize = weakref.finalize(self, cleaner.lost, user)
            self._finalize.atexit = False

    @property
    def ended(self) -> bool:
        return self._user is not None and (self._user.ended or self._loop.is_closed())

    async def close(self) -> None:
        if self._user is not None and self._cleaner is not None and not self._user.ended:
            self._finalize.detach()
            self._cleaner.leave(self._user)
            await self._cleaner.ended(threads.CLOSE)
