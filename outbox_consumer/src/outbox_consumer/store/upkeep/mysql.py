"""MariaDB and MySQL: look without a lock how far a batch reaches, then delete that range of the index.

InnoDB locks what a statement reads on its way. At READ COMMITTED a DELETE over a range of `consumed_at` locks the rows that go, no gap
and no neighbour; at the server's default it would lock the gap behind them, too.
"""

from datetime import datetime
from typing import Any

from sqlalchemy import Column, Integer, Select, Table, bindparam, select, text
from sqlalchemy.dialects import mysql
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DBAPIError

from outbox_consumer.store.upkeep.base import Upkeep
from outbox_consumer.store.upkeep.counting import Counting
from outbox_consumer.store.upkeep.expired import Dropped, Expired
from outbox_shared.driver import driver_error
from outbox_shared.sqltypes import UtcTime

_NAMES = mysql.dialect().identifier_preparer
_CONFLICTS = {1213, 1205}  # deadlock, lock wait timeout


class MysqlUpkeep(Upkeep):
    dialect = "mysql"
    good_isolation = ("READ COMMITTED", "REPEATABLE READ")  # the server's default costs a consumer nothing

    def engine_for(self, engine: Engine) -> Engine:
        return engine.execution_options(isolation_level="READ COMMITTED")

    def is_conflict(self, error: DBAPIError) -> bool:
        return next(iter(getattr(driver_error(error), "args", ())), None) in _CONFLICTS

    def server(self, connection: Connection) -> tuple[str, tuple[int, ...], tuple[int, ...]]:
        found = self._version(connection)
        return (
            ("MariaDB", found, (10, 6)) if getattr(connection.dialect, "is_mariadb", False) else ("MySQL", found, (8,))
        )

    def default_isolation(self, connection: Connection) -> str | None:
        """Either name of the variable is unknown to half of the servers."""
        rows = connection.exec_driver_sql(
            "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('tx_isolation', 'transaction_isolation')"
        )
        return next((str(row[1]).replace("-", " ") for row in rows.all()), None)

    def _expired(self, table: Table, since: Column[object]) -> Expired:
        return ExpiredByRange(table, since)  # type: ignore[arg-type]

    def _counts(self) -> Counting:
        return PlannersCounting(self.consumed, self.attempts)


class ExpiredByRange(Expired):
    """Two statements: DELETE … RETURNING would tell where it ended, and MySQL has none."""

    def __init__(self, table: Table, since: Column[datetime]) -> None:
        (self._index,) = (index.name for index in table.indexes if list(index.columns) == [since])
        super().__init__(table, since)
        self._any = self._by_index(self._any)
        last = select(since).where(*self._in_range()).order_by(since)
        self._last = self._by_index(last.limit(1).offset(bindparam("before_", type_=Integer)))
        newest = select(since).where(*self._in_range()).order_by(since.desc()).limit(1)
        self._newest = self._by_index(newest)

    def drop(self, connection: Connection, ttl: float, limit: int, behind: datetime) -> Dropped:
        given = {"ttl_": ttl, "behind_": behind}
        last = connection.execute(self._last, {**given, "before_": limit - 1}).scalar()
        if last is None:  # fewer than that
            last = connection.execute(self._newest, given).scalar()
        if last is None:
            return Dropped(0)
        gone = connection.execute(self._drop, {"behind_": behind, "last_": last, "limit_": limit})
        return Dropped(gone.rowcount, last)

    def _dropping(self) -> Any:
        name, column = _NAMES.format_table(self.table), self.since.name
        sql = f"DELETE FROM {name} WHERE {column} >= :behind_ AND {column} <= :last_ ORDER BY {column} LIMIT :limit_"  # noqa: S608
        times = (bindparam("behind_", type_=UtcTime), bindparam("last_", type_=UtcTime))
        return text(sql).bindparams(*times, bindparam("limit_", type_=Integer))

    def _by_index(self, statement: Select[Any]) -> Select[Any]:
        """Where most of a table is old, the planner would rather read and sort it whole."""
        return statement.with_hint(self.table, f"FORCE INDEX ({self._index})")


class PlannersCounting(Counting):
    """The planner knows about how many rows a consumer has, by looking at both ends of its range in the primary key."""

    def _estimate(self, connection: Connection, consumer: str) -> int | None:
        question = text(f"EXPLAIN SELECT 1 FROM {_NAMES.format_table(self._consumed)} WHERE consumer = :consumer")  # noqa: S608
        return int(connection.execute(question, {"consumer": consumer}).mappings().one()["rows"])
