"""Where the marks live: one store per kind of database, the same methods on each."""

from datetime import timedelta

from outbox_consumer.store.consumed import ConsumedStore
from outbox_consumer.store.mysql import MysqlConsumed
from outbox_consumer.store.postgresql import PostgresqlConsumed
from outbox_consumer.store.sqlite import SqliteConsumed
from outbox_shared.driver import Speech
from outbox_shared.errors import ConfigurationError
from outbox_shared.tables import TableNames

__all__ = ["ConsumedStore", "store_for"]

_STORES: dict[str, type[ConsumedStore]] = {
    "postgresql": PostgresqlConsumed,
    "mysql": MysqlConsumed,
    "mariadb": MysqlConsumed,
    "sqlite": SqliteConsumed,
}


def store_for(speech: Speech, names: TableNames, lock_timeout: timedelta) -> ConsumedStore:
    """The store that speaks through this kind of driver."""
    if speech.dialect not in _STORES:
        known = ", ".join(sorted(_STORES))
        raise ConfigurationError(f"no consumer store speaks {speech.dialect!r}; there is one for {known}")
    return _STORES[speech.dialect](names, speech, lock_timeout)
