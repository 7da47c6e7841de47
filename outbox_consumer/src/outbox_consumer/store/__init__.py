"""Where the marks live: one store per kind of database, the same methods on each."""

from datetime import timedelta

from sqlalchemy.engine import Dialect

from outbox_consumer.store.consumed import ConsumedStore
from outbox_consumer.store.postgresql import PostgresqlConsumed
from outbox_consumer.store.sqlite import SqliteConsumed
from outbox_shared.errors import ConfigurationError
from outbox_shared.tables import TableNames

__all__ = ["ConsumedStore", "store_for"]

_STORES: dict[str, type[ConsumedStore]] = {"postgresql": PostgresqlConsumed, "sqlite": SqliteConsumed}


def store_for(dialect: Dialect, names: TableNames, lock_timeout: timedelta) -> ConsumedStore:
    """The store that speaks this dialect."""
    if dialect.name not in _STORES:
        known = ", ".join(sorted(_STORES))
        raise ConfigurationError(f"no consumer store speaks {dialect.name!r}; there is one for {known}")
    return _STORES[dialect.name](dialect, names, lock_timeout)
