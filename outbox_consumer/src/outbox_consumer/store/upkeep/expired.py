"""Rows that are older than their ttl: whether there are any, and away with some of them.

`behind` is where the last batch ended: everything before that is gone. A database that keeps deleted rows in its index for a while would
otherwise read all of them again for every batch.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Column, ColumnElement, Float, Integer, Select, Table, bindparam, delete, literal_column, select
from sqlalchemy.engine import Connection

from outbox_shared.sqltypes import UtcTime, statement_time_plus

BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)
"""Before any row."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """How many rows went, and how old the last one was; None where the next batch may as well begin at the start."""

    count: int
    last: datetime | None = None


class Expired:
    """The plain form, for a database in which what was deleted is gone."""

    def __init__(self, table: Table, since: Column[datetime]) -> None:
        self.table, self.since = table, since
        self._old = since < statement_time_plus(-bindparam("ttl_", type_=Float))
        # in order, or a planner takes the chance that the first pages of the table hold an old row, and reads all of it where they do not
        self._any: Select[Any] = select(literal_column("1")).where(*self._in_range()).order_by(since).limit(1)
        self._drop = self._dropping()

    def any(self, connection: Connection, ttl: float, behind: datetime) -> bool:
        """Without locks, and without a write where nobody has to write."""
        return connection.execute(self._any, {"ttl_": ttl, "behind_": behind}).first() is not None

    def drop(self, connection: Connection, ttl: float, limit: int, behind: datetime) -> Dropped:
        """Away with `limit` rows at most that are older than `ttl` seconds, the oldest first."""
        return Dropped(connection.execute(self._drop, {"ttl_": ttl, "behind_": behind, "limit_": limit}).rowcount)

    def _in_range(self) -> tuple[ColumnElement[bool], ...]:
        return self._old, self.since >= bindparam("behind_", type_=UtcTime)

    def _oldest(self, *columns: ColumnElement[Any]) -> Select[Any]:
        found = select(*columns).select_from(self.table).where(*self._in_range()).order_by(self.since)
        return found.limit(bindparam("limit_", type_=Integer))

    def _dropping(self) -> Any:
        row: ColumnElement[int] = literal_column("rowid")
        return delete(self.table).where(row.in_(self._oldest(row).scalar_subquery()))
