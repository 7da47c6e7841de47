"""MariaDB and MySQL: values that mean "not yet" instead of NULL, no UPDATE … RETURNING, and locks that must be kept few.

InnoDB locks what a statement reads on its way, not what it changes. So sessions are READ COMMITTED, and rows are found with SKIP LOCKED
or without any lock, and then changed by primary key: claim, settle and recovery never wait for each other's rows.
"""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    FromClause,
    Select,
    Table,
    Update,
    bindparam,
    literal_column,
    select,
    update,
)
from sqlalchemy.dialects.mysql import insert
from sqlalchemy.engine import Connection, Row
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql import Executable

from outbox_publisher.store.base import IN_PROCESS, EventStore
from outbox_publisher.store.bulk import Assign, BulkUpdate, Columns
from outbox_publisher.store.json_rows import DeleteByJson, UpdateByJson
from outbox_publisher.store.sentinels import NO_TIME
from outbox_shared.errors import ConfigurationError
from outbox_shared.sqltypes import EventId
from outbox_shared.tables import TableNames

_CONFLICTS = {1213, 1205}  # deadlock, lock wait timeout
_NEVER: ColumnElement[Any] = literal_column(f"'{NO_TIME:%Y-%m-%d}'")


class MysqlStore(EventStore):
    dialect = "mysql"
    insert_or = staticmethod(insert)
    no_token = literal_column("''")  # filled up with zero bytes by a BINARY(16): NO_TOKEN

    def __init__(self, names: TableNames) -> None:
        self._due_index = f"FORCE INDEX ({names.of('events_due')})"
        super().__init__(names)
        self._delete = DeleteByJson(self.tables.events)

    def check_session(self, connection: Connection) -> None:
        """At REPEATABLE READ, the server's default, a claim locks the gaps between rows too: producers' INSERTs wait until error 1205."""
        level = connection.get_isolation_level()
        if level != "READ COMMITTED":
            raise ConfigurationError(
                f"the relay's sessions are in {level}, where its claims would block the producers' INSERTs: "
                'pass create_engine(…, isolation_level="READ COMMITTED")'
            )

    def is_conflict(self, error: DBAPIError) -> bool:
        return next(iter(getattr(error.orig, "args", ())), None) in _CONFLICTS

    # The types that are due.

    def due_types(self, connection: Connection) -> list[str]:
        """A look for each type, few reads each. The recursive CTE of the others reads every open row here: 50,000 reads where 5 will do."""
        found: list[str] = []
        event_type = connection.execute(self._first_type).scalar()
        while event_type is not None:
            looked = connection.execute(self._look, {"event_type_": event_type}).one()
            if looked.is_due:
                found.append(event_type)
            event_type = looked.following
        return found

    def _prepare_types(self) -> None:
        """The type is a bound value in both looks: compared with a column, the due bound would be no part of the range."""
        events = self.tables.events
        this_type: BindParameter[str] = bindparam("event_type_")
        by_due_index = select(events.c.event_type).with_hint(events, self._due_index)
        self._first_type = by_due_index.where(self._is_open(events)).order_by(events.c.event_type).limit(1)
        following = self._first_type.where(events.c.event_type > this_type).scalar_subquery()
        due = by_due_index.where(events.c.event_type == this_type, *self._is_due(events))
        self._look = select(following.label("following"), due.exists().label("is_due"))

    # Claim, settle and recovery.

    def _is_open(self, events: FromClause) -> ColumnElement[bool]:
        return events.c.processed_at == _NEVER

    def _prepare_claim(self) -> None:
        """Lock and read by the due index; write by primary key.

        Left to itself the planner reads a short table whole and sorts it, and so locks rows that it will not take; and in a long one
        it leaves the due bound out of the range.
        """
        events = self.tables.events
        self._pick = self._due_rows(*self._claimed()).with_hint(events, self._due_index)
        token = bindparam("token_", type_=EventId)
        self._mark = self._update_by_id().values(status=IN_PROCESS, claim_token=token)

    def _take(self, connection: Connection, event_type: str, limit: int, token: UUID) -> Sequence[Row[Any]]:
        rows = connection.execute(self._pick, {"event_type_": event_type, "limit_": limit}).all()
        if rows:
            connection.execute(self._mark, {"ids": [row.id for row in rows], "token_": token})
        return rows

    def _bulk(self, columns: Columns, assign: Assign) -> BulkUpdate:
        return UpdateByJson(self.tables.events, columns, assign)

    def _remove(self, connection: Connection, token: UUID, ids: list[UUID]) -> None:
        self._delete.run(connection, token, ids)

    def _upsert(self, table: Table, columns: list[str], source: Select[Any], again: dict[str, Any]) -> Executable:
        statement = insert(table).from_select(columns, source)
        overwrite = {name: statement.inserted[name] for name in columns if name != "id"}
        return statement.on_duplicate_key_update({**overwrite, **again})

    def _prepare_claim_rows(self) -> None:
        """Find, then change by primary key: an UPDATE by the due index waits for every settle that is under way near its rows."""
        super()._prepare_claim_rows()
        events = self.tables.events
        self._lost = select(events.c.id).where(*self._is_of_lost_claim()).with_hint(events, self._due_index)
        still_lost = events.c.claim_token == bindparam("token_", type_=EventId)
        self._recover = self._update_by_id().where(still_lost).values(self._given_back())

    def _give_back(self, connection: Connection, lost: Row[Any]) -> int:
        bounds = {"event_type_": lost.event_type, "first_due_": lost.first_due, "last_due_": lost.last_due}
        ids = connection.execute(self._lost, {"token_": lost.token, **bounds}).scalars().all()
        if not ids:
            return 0
        return connection.execute(self._recover, {"ids": ids, "token_": lost.token}).rowcount

    def _update_by_id(self) -> Update:
        events = self.tables.events
        by_id = events.c.id.in_(bindparam("ids", type_=EventId, expanding=True))
        return update(events).where(by_id)
