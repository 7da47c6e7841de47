"""Consumed rows go when their ttl is over: in bounded batches, one process at a time, on by default in every consumer."""

from typing import TYPE_CHECKING

from sqlalchemy.engine import Engine

from outbox_consumer.settings import ConsumerSettings

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine  # SQLAlchemy 2.1 refuses it where greenlet is missing


def keep_clean(engine: Engine, settings: ConsumerSettings) -> None:
    """From now on this process cleans this database, on one daemon thread; to be called at each first use, and cheap to call again."""


def keep_clean_async(engine: "AsyncEngine", settings: ConsumerSettings) -> None:
    """The same as a task of the running loop."""
