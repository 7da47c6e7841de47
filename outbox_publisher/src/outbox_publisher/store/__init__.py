"""Where events live: one store per kind of database, the same methods on each."""

from functools import cache

from outbox_publisher.store.base import EventStore
from outbox_publisher.store.changes import Buried, Delivered, Rescheduled, Settlement
from outbox_publisher.store.postgresql import PostgresqlStore
from outbox_publisher.store.sqlite import SqliteStore
from outbox_shared.errors import ConfigurationError
from outbox_shared.tables import TableNames

__all__ = ["Buried", "Delivered", "EventStore", "Rescheduled", "Settlement", "store_for"]

_STORES: dict[str, type[EventStore]] = {"postgresql": PostgresqlStore, "sqlite": SqliteStore}


@cache
def store_for(dialect: str, names: TableNames) -> EventStore:
    """The store that speaks this dialect; its statements are built once per process."""
    if dialect not in _STORES:
        raise ConfigurationError(f"no outbox store speaks {dialect!r}; there is one for {', '.join(sorted(_STORES))}")
    return _STORES[dialect](names)
