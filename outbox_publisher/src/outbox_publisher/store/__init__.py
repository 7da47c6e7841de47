"""Where events live: one store per kind of database, the same methods on each."""

from collections.abc import Callable
from functools import cache

from outbox_publisher.store.base import EventStore
from outbox_publisher.store.changes import Buried, Delivered, Rescheduled, Settlement
from outbox_publisher.store.claiming import Place, Wanted
from outbox_publisher.store.counting import Count
from outbox_publisher.store.hot import Rows
from outbox_publisher.store.inserts import Inserts, is_delayed
from outbox_publisher.store.inserts_mysql import MysqlInserts
from outbox_publisher.store.inserts_postgresql import PostgresqlInserts
from outbox_publisher.store.looking import Look
from outbox_publisher.store.mysql import MysqlStore
from outbox_publisher.store.notify_postgresql import channel, listening, notification
from outbox_publisher.store.postgresql import PostgresqlStore
from outbox_publisher.store.recovering import Recovered
from outbox_publisher.store.settling import Settled
from outbox_publisher.store.sqlite import SqliteStore
from outbox_shared.ddl import dialect_named
from outbox_shared.driver import Speech
from outbox_shared.errors import ConfigurationError
from outbox_shared.tables import TableNames

__all__ = [
    "Buried",
    "Count",
    "Delivered",
    "EventStore",
    "Inserts",
    "Look",
    "Place",
    "Recovered",
    "Rescheduled",
    "Rows",
    "Settled",
    "Settlement",
    "Wanted",
    "channel_for",
    "inserts_for",
    "is_delayed",
    "listening",
    "notification",
    "store_for",
]

_STORES: dict[str, type[EventStore]] = {
    "postgresql": PostgresqlStore,
    "mysql": MysqlStore,
    "mariadb": MysqlStore,
    "sqlite": SqliteStore,
}


@cache
def store_for(dialect: str, names: TableNames) -> EventStore:
    """The store that speaks this dialect; its statements are built once per process."""
    if dialect not in _STORES:
        raise _unknown(dialect)
    return _STORES[dialect](names)


_INSERTS: dict[str, type[Inserts]] = {
    "postgresql": PostgresqlInserts,
    "mysql": MysqlInserts,
    "mariadb": MysqlInserts,
    "sqlite": Inserts,
}


@cache
def inserts_for(speech: Speech, names: TableNames) -> Inserts:
    """How events are stored through this kind of driver; the statements are built once per process."""
    if speech.dialect not in _INSERTS:
        raise _unknown(speech.dialect)
    return _INSERTS[speech.dialect](names, speech, dialect_named(speech.dialect).identifier_preparer)


_CHANNELS: dict[str, Callable[[TableNames], str]] = {"postgresql": channel}
"""MySQL and SQLite have nothing of the kind."""


def channel_for(dialect: str, names: TableNames) -> str | None:
    """On which channel publishers wake relays; None where the database carries no hints."""
    return _CHANNELS[dialect](names) if dialect in _CHANNELS else None


def _unknown(dialect: str) -> ConfigurationError:
    return ConfigurationError(f"no outbox store speaks {dialect!r}; there is one for {', '.join(sorted(_STORES))}")
