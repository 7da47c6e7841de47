"""Everything that is done with the consumer's tables beside consuming: cleaning, counting, forgetting. One class per database."""

from functools import cache

from outbox_consumer.store.upkeep.base import Upkeep
from outbox_consumer.store.upkeep.counting import EXACT_UP_TO, Number, Span
from outbox_consumer.store.upkeep.expired import Dropped, Expired
from outbox_consumer.store.upkeep.mysql import MysqlUpkeep
from outbox_consumer.store.upkeep.postgresql import PostgresqlUpkeep
from outbox_consumer.store.upkeep.sqlite import SqliteUpkeep
from outbox_shared.errors import ConfigurationError
from outbox_shared.tables import TableNames

__all__ = ["EXACT_UP_TO", "Dropped", "Expired", "Number", "Span", "Upkeep", "upkeep_for"]

_UPKEEPS: dict[str, type[Upkeep]] = {
    "postgresql": PostgresqlUpkeep,
    "mysql": MysqlUpkeep,
    "mariadb": MysqlUpkeep,
    "sqlite": SqliteUpkeep,
}


@cache
def upkeep_for(dialect: str, names: TableNames) -> Upkeep:
    """The one that speaks this dialect; its statements are built once per process."""
    if dialect not in _UPKEEPS:
        raise ConfigurationError(
            f"no consumer store speaks {dialect!r}; there is one for {', '.join(sorted(_UPKEEPS))}"
        )
    return _UPKEEPS[dialect](names)
