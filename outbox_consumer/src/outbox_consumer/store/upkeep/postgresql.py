"""PostgreSQL: rows are found by their place in the table, and nobody waits for the disk."""

import json
from typing import Any

from sqlalchemy import Column, ColumnElement, Table, any_, delete, func, literal_column, select, text
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DBAPIError

from outbox_consumer.store.upkeep.base import Upkeep
from outbox_consumer.store.upkeep.counting import Counting
from outbox_consumer.store.upkeep.expired import BEGINNING, Dropped, Expired
from outbox_shared.driver import driver_error

_CONFLICTS = {"40001", "40P01"}
_LIMIT = text(
    "SELECT set_config('synchronous_commit', 'off', true), "
    "set_config('idle_in_transaction_session_timeout', :milliseconds, true)"
)


class PostgresqlUpkeep(Upkeep):
    dialect = "postgresql"
    good_isolation = ("READ COMMITTED",)

    def engine_for(self, engine: Engine) -> Engine:
        """An application at SERIALIZABLE need not fail because we clean."""
        return engine.execution_options(isolation_level="READ COMMITTED")

    def is_conflict(self, error: DBAPIError) -> bool:
        original = driver_error(error)
        state = getattr(original, "sqlstate", None) or getattr(original, "pgcode", None)
        return state in _CONFLICTS

    def limit_transaction(self, connection: Connection, seconds: float, *, own: bool) -> None:
        """For this transaction alone, in one trip. What a crash of the server undoes is cleaned again: no need to wait for the disk."""
        connection.execute(_LIMIT, {"milliseconds": str(round(seconds * 1000))})

    def server(self, connection: Connection) -> tuple[str, tuple[int, ...], tuple[int, ...]]:
        return "PostgreSQL", self._version(connection), (13,)

    def default_isolation(self, connection: Connection) -> str | None:
        return str(connection.exec_driver_sql("SHOW default_transaction_isolation").scalar_one()).upper()

    def _expired(self, table: Table, since: Column[object]) -> Expired:
        return ExpiredByPlace(table, since)  # type: ignore[arg-type]

    def _counts(self) -> Counting:
        return PlannersCounting(self.consumed, self.attempts)


class ExpiredByPlace(Expired):
    """The index gives the rows' places (ctid), and the DELETE goes there straight: half the cost of finding each by primary key.

    Within one statement a place stays a row's own. That the row is old is asked again all the same: in a partitioned table of a
    user's own, one place is a place in each partition.
    """

    def _dropping(self) -> Any:
        place: ColumnElement[Any] = literal_column("ctid")
        places = func.array(self._oldest(place).scalar_subquery())
        gone = delete(self.table).where(place == any_(places), self._old).returning(self.since).cte("gone")
        return select(func.count(), func.max(gone.c[self.since.name]))

    def drop(self, connection: Connection, ttl: float, limit: int, behind: Any = BEGINNING) -> Dropped:
        count, last = connection.execute(self._drop, {"ttl_": ttl, "behind_": behind, "limit_": limit}).one()
        return Dropped(count, last)


class PlannersCounting(Counting):
    """The planner's statistics know about how many rows a consumer has."""

    def _estimate(self, connection: Connection, consumer: str) -> int | None:
        table = connection.dialect.identifier_preparer.format_table(self._consumed)
        question = text(f"EXPLAIN (FORMAT JSON) SELECT 1 FROM {table} WHERE consumer = :consumer")  # noqa: S608
        answer = connection.execute(question, {"consumer": consumer}).scalar_one()
        plan = json.loads(answer) if isinstance(answer, str) else answer
        return int(plan[0]["Plan"]["Plan Rows"])
