"""MariaDB and MySQL: values that mean "not yet" instead of NULL, no UPDATE … RETURNING, and locks that must be kept few.

InnoDB locks what a statement reads on its way, not what it changes. So sessions are READ COMMITTED, and rows are found with SKIP LOCKED
or without any lock, and then changed by primary key: claim, settle and recovery never wait for each other's rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import accumulate
from math import ceil
from typing import Any
from uuid import UUID

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    FromClause,
    Select,
    Table,
    and_,
    bindparam,
    case,
    func,
    literal_column,
    not_,
    null,
    select,
    type_coerce,
)
from sqlalchemy.dialects.mysql import insert
from sqlalchemy.engine import Connection, Row
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql import Executable

from outbox_publisher.store.base import EventStore
from outbox_publisher.store.bulk import Assign, BulkDelete, BulkUpdate, Columns
from outbox_publisher.store.claiming import Form, Wanted
from outbox_publisher.store.json_rows import DeleteByJson, UpdateByJson
from outbox_publisher.store.locking import Locks, some
from outbox_publisher.store.looking import Look
from outbox_publisher.store.rows import CLAIMED
from outbox_publisher.store.sentinels import NO_TIME
from outbox_publisher.store.statements import PENDING
from outbox_shared.errors import ConfigurationError
from outbox_shared.sqltypes import statement_time
from outbox_shared.tables import TableNames

_CONFLICTS = {1213, 1205}  # deadlock, lock wait timeout
_DOES_NOT_EXIST = 1305  # also of functions
_AWAY = {1040, 1053, 1077, 1079, 1927, 2002, 2003, 2006, 2013, 2055}  # refused, shutting down, gone
_NEVER: ColumnElement[Any] = literal_column(f"'{NO_TIME:%Y-%m-%d}'")

_LIMITED = "outbox_limited"
"""Of a connection: this has been said to it."""

SHORT = 16_384
"""Bytes of a payload that a claim reads with its row; 500 of them are 8 MB."""


def _code(error: DBAPIError) -> Any:
    return next(iter(getattr(error.orig, "args", ())), None)


class MysqlStore(EventStore):
    dialect = "mysql"
    insert_or = staticmethod(insert)
    no_token = literal_column("''")  # filled up with zero bytes by a BINARY(16): NO_TOKEN

    def __init__(self, names: TableNames) -> None:
        self._due_index = f"FORCE INDEX ({names.of('events_due')})"
        super().__init__(names)
        self._take_marked = self._mark(self._update_by_id())
        events = self.tables.events
        self._read_whole = select(*self._claimed()).where(self._is_one_of(events.c.id, "ids_"))

    def check_session(self, connection: Connection) -> None:
        """At REPEATABLE READ, the server's default, a claim locks the gaps between rows too: producers' INSERTs wait until error 1205."""
        level = connection.get_isolation_level()
        if level != "READ COMMITTED":
            raise ConfigurationError(
                f"the relay's sessions are in {level}, where its claims would block the producers' INSERTs: "
                'pass create_engine(…, isolation_level="READ COMMITTED")'
            )

    def limit_transaction(self, connection: Connection, seconds: float, *, own: bool) -> None:
        """MariaDB knows such a limit for whole sessions, so an application's own are left as they are. MySQL knows none."""
        if own and _LIMITED not in connection.info and getattr(connection.dialect, "is_mariadb", False):
            connection.exec_driver_sql(f"SET SESSION idle_transaction_timeout = {ceil(seconds)}")
            connection.info[_LIMITED] = True

    def is_conflict(self, error: DBAPIError) -> bool:
        """A deadlock within a savepoint takes the savepoint along, and going back to it is the error that comes out."""
        lost_savepoint = _code(error) == _DOES_NOT_EXIST and "SAVEPOINT" in str(error.orig)
        return lost_savepoint or _code(error) in _CONFLICTS

    def is_away(self, error: DBAPIError) -> bool:
        return error.connection_invalidated or _code(error) in _AWAY

    # The look.

    def look(self, connection: Connection) -> Look:
        """A statement for each type, few reads each. The recursive CTE of the others reads every open row here: 50,000 reads where 5
        will do.
        """
        marks = self.look_at_marks(connection)
        now, waiting = marks.now, dict[str, datetime]()
        event_type = connection.execute(self._first_type).scalar()
        while event_type is not None:
            looked = connection.execute(self._look_at_type, {"event_type_": event_type}).one()
            now = looked.now
            if looked.oldest is not None:
                waiting[event_type] = looked.oldest
            event_type = looked.following
        return replace(marks, now=now, waiting=waiting)

    def _all(self) -> Any:
        """The type is a bound value in both looks: compared with a column, it would be no part of the range."""
        events = self.tables.events
        this_type: BindParameter[str] = bindparam("event_type_")
        by_due_index = select(events.c.event_type).with_hint(events, self._due_index)
        self._first_type = by_due_index.where(self._is_open(events)).order_by(events.c.event_type).limit(1)
        following = self._first_type.where(events.c.event_type > this_type).scalar_subquery()
        waiting = select(events.c.next_retry_at).with_hint(events, self._due_index)
        waiting = waiting.where(events.c.event_type == this_type, self._is_open(events), events.c.status == PENDING)
        oldest = waiting.order_by(events.c.next_retry_at, events.c.seq).limit(1).scalar_subquery()
        self._look_at_type = select(following.label("following"), oldest.label("oldest"), statement_time().label("now"))

    def _is_behind(self, due: ColumnElement[datetime], seq: ColumnElement[int]) -> ColumnElement[bool]:
        """Compared as a pair, the bound would be no part of the range."""
        events = self.tables.events
        return and_(events.c.next_retry_at >= due, not_(and_(events.c.next_retry_at == due, events.c.seq <= seq)))

    # Claim, settle and recovery.

    def _is_open(self, events: FromClause) -> ColumnElement[bool]:
        return events.c.processed_at == _NEVER

    def _by_due_index(self, statement: Select[Any]) -> Select[Any]:
        """Left to itself the planner reads a short table whole and sorts it, and so locks rows that it will not take; and in a long one
        it leaves the due bound out of the range.
        """
        return statement.with_hint(self.tables.events, self._due_index)

    def _claim(self, form: Form) -> Any:
        """Lock and read by the due index. A long payload is fetched only for rows that are taken: the batch is bounded in bytes."""
        events = self.tables.events
        size = func.length(events.c.payload)
        short = type_coerce(case((size <= SHORT, events.c.payload), else_=null()), events.c.payload.type).label(
            "payload"
        )
        columns = (short if name == "payload" else events.c[name] for name in CLAIMED)
        return self._due_rows(*columns, size.label("size"), form=form)

    def _take(self, connection: Connection, event_type: str, wanted: Wanted, token: UUID) -> Sequence[Row[Any]]:
        """Pick, then write by primary key."""
        found = connection.execute(self._statement(wanted.form), self._given(event_type, wanted)).all()
        before = accumulate((row.size for row in found), initial=0)
        rows = [row for row, so_far in zip(found, before, strict=False) if so_far < wanted.bytes]
        if not rows:
            return []
        connection.execute(self._take_marked, {**self._ids([row.id for row in rows]), "token_": token})
        if all(row.payload is not None for row in rows):
            return rows
        whole = connection.execute(self._read_whole, self._ids([row.id for row in rows]))
        return whole.all()

    def _insert_absent(self, table: Table, columns: list[str], source: Select[Any]) -> Executable:
        """Not INSERT IGNORE, which would also cut what is too long."""
        return insert(table).from_select(columns, source).on_duplicate_key_update(id=table.c.id)

    def _bulk(self, columns: Columns, assign: Assign) -> BulkUpdate:
        return UpdateByJson(self.tables.events, columns, assign)

    def _deletes(self, table: Table) -> BulkDelete:
        return DeleteByJson(table)

    def _locks(self, table: Table, found: Select[Any]) -> Locks:
        return LookThenLock(table, found, self._is_one_of(table.c.id, "ids_"))

    def _upsert(self, table: Table, columns: list[str], source: Select[Any], again: dict[str, Any]) -> Executable:
        statement = insert(table).from_select(columns, source)
        overwrite = {name: statement.inserted[name] for name in columns if name != "id"}
        return statement.on_duplicate_key_update({**overwrite, **again})


class LookThenLock:
    """A search locks the row at which it ends, too, and that may be one that a relay is about to settle. So look without a lock, and
    then lock by primary key what is still so.
    """

    def __init__(self, table: Table, found: Select[Any], is_one_of: ColumnElement[bool]) -> None:
        self._look = some(found.with_only_columns(table.c.id))
        by_id = found.where(is_one_of).with_hint(table, "FORCE INDEX (PRIMARY)")
        self._lock = by_id.with_for_update(skip_locked=True)

    def run(self, connection: Connection, limit: int, given: Mapping[str, Any]) -> Sequence[Row[Any]]:
        ids = list(connection.execute(self._look, {"limit_": limit, **given}).scalars())
        return connection.execute(self._lock, {"ids_": ids, **given}).all() if ids else []
