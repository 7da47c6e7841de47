"""PostgreSQL: what its planner and its arrays do better than the plain form."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from functools import cache
from typing import Any
from uuid import UUID

from sqlalchemy import (
    ColumnElement,
    String,
    Table,
    all_,
    any_,
    bindparam,
    column,
    func,
    literal_column,
    select,
    text,
    update,
)
from sqlalchemy.dialects.postgresql import ARRAY, insert
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError, OperationalError

from outbox_publisher.event import Event
from outbox_publisher.store.arrays_postgresql import PACKERS, pack_uuids
from outbox_publisher.store.base import EventStore
from outbox_publisher.store.bulk import Assign, BulkDelete, BulkUpdate, Columns, DeleteById
from outbox_publisher.store.claiming import CLAIM_ROW, Form, Wanted, in_order
from outbox_publisher.store.hot import Changed, Hot, at_once
from outbox_publisher.store.rows import CLAIMED
from outbox_shared.sqltypes import EventId


class PostgresqlStore(EventStore):
    dialect = "postgresql"
    insert_or = staticmethod(insert)
    leaves_at_once = True

    def limit_transaction(self, connection: Connection, seconds: float, *, own: bool) -> None:
        """For this transaction alone: behind pgbouncer a session's settings would be another client's a moment later."""
        _limit(round(seconds * 1000)).change(connection, {})

    def at_once(self, connection: Connection, meanwhile: Callable[[], object]) -> AbstractContextManager[None]:
        return at_once(connection, meanwhile)

    def is_conflict(self, error: DBAPIError) -> bool:
        """Only deadlocks at READ COMMITTED; an engine of the user's own may be stricter, and then any row that changed is a conflict."""
        state = getattr(error.orig, "sqlstate", None) or getattr(error.orig, "pgcode", None)
        return state in {"40001", "40P01"}

    def is_away(self, error: DBAPIError) -> bool:
        """A refused connection has no state at all; 08 and 57P are connections that broke, and servers that go down or come up; 25P03 is
        `limit_transaction`.
        """
        state = getattr(error.orig, "sqlstate", None) or getattr(error.orig, "pgcode", None)
        refused = isinstance(error, OperationalError) and state is None
        return error.connection_invalidated or refused or str(state or "").startswith(("08", "57P", "53", "25P03"))

    def _is_one_of(self, column: ColumnElement[Any], name: str) -> ColumnElement[bool]:
        """One array, whatever its length: one statement to prepare and plan."""
        return column == any_(bindparam(name, type_=ARRAY(EventId())))

    def _topic(self) -> ColumnElement[str]:
        """Of an expression the planner knows nothing. Of the column it knows that hardly a row has another topic than the dead one, and
        reads and sorts the whole table rather than follow the due index.
        """
        return self.tables.events.c.topic + literal_column("''")

    def _is_other_topic(self) -> ColumnElement[bool]:
        """One array, as in `_is_one_of`."""
        return self._topic() != all_(bindparam("without_", type_=ARRAY(String())))

    def _hot(self, statement: Any) -> Hot:
        return Hot(statement)

    def _claim(self, form: Form) -> Hot:
        """The claim's own row in the same statement: nothing is asked before the commit, and no row is written for an empty claim."""
        picked = self._picked(form)
        due = picked.c.next_retry_at
        row = {**CLAIM_ROW, "first_due": func.min(due), "last_due": func.max(due)}
        opened = insert(self.tables.claims).from_select(
            list(row), select(*row.values()).having(func.count() > literal_column("0"))
        )
        return Hot(self._claim_of(picked).add_cte(opened.cte("opened")))

    def begin_claim(
        self, connection: Connection, event_type: str, wanted: Wanted, given: Mapping[str, Any]
    ) -> Callable[[], list[Event]]:
        whole = {**given, **self._given(event_type, wanted), "bytes_": wanted.bytes}
        rows = self._statement(wanted.form).rows(connection, whole)
        return lambda: in_order(in_utc(rows()))

    def _deletes(self, table: Table) -> BulkDelete:
        return DeleteByArray(table, self._is_one_of)

    def _bulk(self, columns: Columns, assign: Assign) -> BulkUpdate:
        return UpdateByUnnest(self.tables.events, columns, assign)


@cache
def _limit(milliseconds: int) -> Hot:
    return Hot(text(f"SET LOCAL idle_in_transaction_session_timeout = {milliseconds}"))


class UpdateByUnnest:
    """One statement for any number of rows: the values travel as one array per column.

    The fence is the token alone. `AND status = 'IN_PROCESS'` would look safer and let the planner choose a partial index over the
    primary key: fifteen times the cost a row.
    """

    def __init__(self, events: Table, columns: Columns, assign: Assign) -> None:
        self._names = [f"given_{name}" for name in columns]  # a column's own name is reserved in an UPDATE
        arrays = (bindparam(f"given_{name}", type_=ARRAY(kind)) for name, kind in columns.items())
        packed = {f"given_{name}": PACKERS[type(kind)] for name, kind in columns.items() if type(kind) in PACKERS}
        named = (column(name, kind) for name, kind in columns.items())
        given = func.unnest(*arrays).table_valued(*named, name="given").render_derived()
        self._statement = Hot(
            update(events)
            .where(events.c.id == given.c.id, events.c.claim_token == bindparam("token", type_=EventId))
            .values(assign(dict(given.c.items()))),
            packed,
        )

    def run(self, connection: Connection, token: UUID, rows: Sequence[tuple[Any, ...]]) -> Changed:
        """Values of one column may be None, but of one type otherwise."""
        arrays: dict[str, Any] = {
            name: list(values) for name, values in zip(self._names, zip(*rows, strict=True), strict=True)
        }
        return self._statement.change(connection, {**arrays, "token": token})


class DeleteByArray(DeleteById):
    """The same on the driver's own cursor."""

    def __init__(self, table: Table, is_one_of: Callable[[ColumnElement[Any], str], ColumnElement[bool]]) -> None:
        super().__init__(table, is_one_of)
        self._hot = None if self._fenced is None else Hot(self._fenced, {"ids_": pack_uuids})

    def run(self, connection: Connection, ids: Sequence[UUID], token: UUID | None = None) -> Changed:
        if token is None or self._hot is None:
            return super().run(connection, ids, token)
        return self._hot.change(connection, {"ids_": list(ids), "token_": token})


_TIMES = tuple(CLAIMED.index(name) for name in ("created_at", "next_retry_at", "occurred_at"))


def in_utc(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """psycopg gives times in the session's zone, which is nearly always UTC itself."""
    if not rows or str(rows[0][_TIMES[0]].tzinfo) in {"UTC", "Etc/UTC"}:
        return rows
    return [tuple(_utc(value) if n in _TIMES else value for n, value in enumerate(row)) for row in rows]


def _utc(moment: datetime | None) -> datetime | None:
    return None if moment is None else moment.astimezone(UTC)
