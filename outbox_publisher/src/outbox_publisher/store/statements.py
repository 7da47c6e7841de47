"""What every statement of the store shares: the tables, what "not yet" and "due" are, and what a dialect may say differently.

Statuses are literals: a bound status would let a generic plan miss the partial indexes.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from uuid import UUID

from sqlalchemy import (
    ColumnElement,
    FromClause,
    MetaData,
    Select,
    Table,
    Update,
    bindparam,
    literal_column,
    null,
    update,
)
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql import Executable

from outbox_publisher.store.bulk import Assign, BulkDelete, BulkUpdate, Columns, DeleteById, UpdateByRow
from outbox_publisher.store.hot import Plain
from outbox_publisher.store.locking import LockAsFound, Locks
from outbox_publisher.store.tables import publisher_tables
from outbox_shared.sqltypes import EventId, statement_time
from outbox_shared.state import State
from outbox_shared.tables import TableNames

PENDING: ColumnElement[str] = literal_column("'PENDING'")
IN_PROCESS: ColumnElement[str] = literal_column("'IN_PROCESS'")
PROCESSED: ColumnElement[str] = literal_column("'PROCESSED'")
FAILED: ColumnElement[str] = literal_column("'FAILED'")


class Statements:
    """The base of the store's parts; a dialect's file overrides what differs, and says why."""

    dialect: str
    insert_or: Callable[[Table], Any]
    """The dialect's own INSERT, which knows what to do with an id that is there already."""
    leaves_at_once = False
    """Whether `at_once` is more than waiting for each statement."""
    no_token: ColumnElement[Any] = null()
    """`claim_token` of a row that is nobody's."""

    def __init__(self, names: TableNames) -> None:
        self.tables = publisher_tables(MetaData(), names, self.dialect)
        self.state = State(self.tables.state)

    # What a dialect may say differently.

    def check_session(self, connection: Connection) -> None:
        """Raise a ConfigurationError where the claims of such a session would stand in the way of others."""

    def limit_transaction(self, connection: Connection, seconds: float, *, own: bool) -> None:
        """Let the server end this transaction if its process stands still in it for so long (a paused machine, a lost network).

        Its locks would keep others from rows that its lease no longer protects. `own`: the session is used by nobody else.
        """

    def at_once(self, connection: Connection, meanwhile: Callable[[], object]) -> AbstractContextManager[None]:
        """The statements of a whole transaction, which may be sent without waiting for each other; their counts are to be read behind it.
        For claims of ordinary rows, and settles that bury nothing. Where there is time before the answers, `meanwhile` is called.
        """
        return nullcontext()

    def is_conflict(self, error: DBAPIError) -> bool:
        """Whether the database broke the transaction off for another one's sake: nothing is wrong with it, run again it may pass."""
        return False

    def is_away(self, error: DBAPIError) -> bool:
        """Whether the database could not be reached, or went away: nothing is wrong with what we asked."""
        return error.connection_invalidated

    def _bulk(self, columns: Columns, assign: Assign) -> BulkUpdate:
        return UpdateByRow(self.tables.events, columns, assign)

    def _hot(self, statement: Any) -> Plain:
        """A statement that runs for every batch."""
        return Plain(statement)

    def _deletes(self, table: Table) -> BulkDelete:
        return DeleteById(table, self._is_one_of)

    def _locks(self, table: Table, found: Select[Any]) -> Locks:
        """Rows of one table, to be changed by whoever finds them."""
        return LockAsFound(found)

    def _upsert(self, table: Table, columns: list[str], source: Select[Any], again: dict[str, Any]) -> Executable:
        statement = self.insert_or(table).from_select(columns, source)
        overwrite = {name: statement.excluded[name] for name in columns if name != "id"}
        return statement.on_conflict_do_update(index_elements=["id"], set_={**overwrite, **again})  # type: ignore[no-any-return]

    def _insert_absent(self, table: Table, columns: list[str], source: Select[Any]) -> Executable:
        """INSERT the selected rows; one whose id is there already is left as it is."""
        return self.insert_or(table).from_select(columns, source).on_conflict_do_nothing()  # type: ignore[no-any-return]

    def _is_open(self, events: FromClause) -> ColumnElement[bool]:
        """Neither delivered nor failed yet."""
        return events.c.processed_at.is_(None)

    def _by_due_index(self, statement: Select[Any]) -> Select[Any]:
        """For planners that must be told."""
        return statement

    def _is_one_of(self, column: ColumnElement[Any], name: str) -> ColumnElement[bool]:
        """`column` is among the ids that are bound to `name`."""
        return column.in_(bindparam(name, type_=EventId, expanding=True))

    # The same everywhere.

    def _is_due(self, events: FromClause) -> tuple[ColumnElement[bool], ...]:
        return self._is_open(events), events.c.status == PENDING, events.c.next_retry_at <= statement_time()

    def _is_claimed_by(self, name: str) -> ColumnElement[bool]:
        return self.tables.events.c.claim_token == bindparam(name, type_=EventId)

    def _update_by_id(self) -> Update:
        events = self.tables.events
        return update(events).where(self._is_one_of(events.c.id, "ids_"))

    def _ids(self, ids: Sequence[UUID]) -> dict[str, Any]:
        return {"ids_": list(ids)}
