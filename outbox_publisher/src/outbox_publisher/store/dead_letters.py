"""The dead-letter table: where events go that no retry will help, and from where people send them back.

Each move is one transaction, and an upsert by id: an event may be dead for the second time, or published again meanwhile, and no clash
may fail the others.
"""

from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import (
    ColumnElement,
    Integer,
    Select,
    Table,
    bindparam,
    case,
    literal,
    literal_column,
    select,
    true,
    update,
)
from sqlalchemy.engine import Connection
from sqlalchemy.sql import Executable

from outbox_publisher.event import Event
from outbox_publisher.store.bulk import BulkDelete
from outbox_publisher.store.changes import Buried
from outbox_publisher.store.rows import CLAIMED, event_of
from outbox_publisher.store.tables import Tables
from outbox_shared.sqltypes import EventId, wall_time

MOVED: ColumnElement[str] = literal_column("'MOVED'")
TO_RETRY: ColumnElement[str] = literal_column("'TO_RETRY'")
RESOLVED: ColumnElement[str] = literal_column("'RESOLVED'")

SWEPT = "failed before"
"""Of rows that failed while `dlq.enabled` was false; their `last_error` says why."""
PUBLISHED_AGAIN = "published again"

Upsert = Callable[[Table, list[str], Select[Any], dict[str, Any]], Executable]
"""INSERT the selected rows into a table; where an id is there already, overwrite it and set the given columns."""
InsertAbsent = Callable[[Table, list[str], Select[Any]], Executable]
"""INSERT the selected rows; where an id is there already, leave it."""
Deletes = Callable[[Table], BulkDelete]
IsOneOf = Callable[[ColumnElement[Any], str], ColumnElement[bool]]


class DeadLetters:
    """Moves rows between outbox_events and outbox_dlq_events."""

    def __init__(
        self, tables: Tables, upsert: Upsert, insert_absent: InsertAbsent, deletes: Deletes, is_one_of: IsOneOf
    ) -> None:
        self._events, self._dead = tables.events, tables.dead_letters
        self._upsert, self._insert_absent, self._is_one_of = upsert, insert_absent, is_one_of
        self._common = [column.name for column in self._dead.c if column.name in self._events.c]
        self._drop_events, self._drop_letters = deletes(self._events), deletes(self._dead)
        self._prepare()

    def bury(self, connection: Connection, token: UUID, buried: Sequence[Buried]) -> list[UUID]:
        """Move this claim's FAILED rows over; returns those that were still its own."""
        given = [row.id for row in buried]
        ours = set(connection.execute(self._still_ours, {"ids_": given, "token_": token}).scalars())
        for reason in sorted({row.reason for row in buried if row.id in ours}):
            self._move(connection, [row.id for row in buried if row.reason == reason and row.id in ours], reason)
        return [one for one in given if one in ours]

    def sweep(self, connection: Connection, limit: int) -> list[Event]:
        """Move FAILED rows that nobody moved when they failed."""
        rows = connection.execute(self._failed, {"limit_": limit}).all()
        if rows:
            self._move(connection, [row.id for row in rows], SWEPT)
        return [event_of(row) for row in rows]

    def has_failed(self, connection: Connection) -> bool:
        """Whether there is anything to sweep."""
        return connection.execute(self._any_failed).first() is not None

    def has_to_retry(self, connection: Connection) -> bool:
        """Whether there is anything to take back."""
        return connection.execute(self._any_to_retry).first() is not None

    def take_back(self, connection: Connection, limit: int) -> tuple[int, int]:
        """TO_RETRY letters become new rows with the same id and a fresh budget; returns how many did, and how many were there already.

        By INSERT: whoever follows the table's changes sees inserts only.
        """
        ids = list(connection.execute(self._to_retry, {"limit_": limit}).scalars())
        if not ids:
            return 0, 0
        connection.execute(self._replay, {"ids_": ids})
        back = list(connection.execute(self._replayed, {"ids_": ids}).scalars())
        if back:
            self._drop_letters.run(connection, back)
        if there := [one for one in ids if one not in set(back)]:
            connection.execute(self._resolve, {"ids_": there})
        return len(back), len(there)

    def _move(self, connection: Connection, ids: list[UUID], reason: str) -> None:
        events = self._events
        source = select(*(events.c[name] for name in self._common), literal(reason))
        source = source.where(self._is_one_of(events.c.id, "ids_"))
        again = {"dlq_status": MOVED, "moved_at": wall_time(), "status_at": wall_time()}
        connection.execute(self._upsert(self._dead, [*self._common, "reason"], source, again), {"ids_": ids})
        self._drop_events.run(connection, ids)

    def _prepare(self) -> None:
        events, dead = self._events, self._dead
        self._still_ours = select(events.c.id).where(
            self._is_one_of(events.c.id, "ids_"), events.c.claim_token == bindparam("token_", type_=EventId)
        )
        some: Any = bindparam("limit_", type_=Integer)
        claimed = (events.c[name] for name in CLAIMED)
        # the order is the index's: a planner that knows nothing of the table would take half of it for failed, and read it whole
        failed = select(*claimed).where(events.c.failed == true()).order_by(events.c.event_type)
        self._failed = failed.limit(some).with_for_update(skip_locked=True)
        self._any_failed = select(events.c.id).where(events.c.failed == true()).order_by(events.c.event_type).limit(1)
        self._any_to_retry = select(dead.c.id).where(dead.c.dlq_status == TO_RETRY).order_by(dead.c.moved_at).limit(1)
        self._to_retry = (
            select(dead.c.id)
            .where(dead.c.dlq_status == TO_RETRY)
            .order_by(dead.c.moved_at)
            .limit(some)
            .with_for_update(skip_locked=True)
        )
        fresh: dict[str, Any] = {
            "attempts": literal_column("0"),
            "lost_claims": literal_column("0"),
            "replays": dead.c.replays + 1,
            "last_error": literal_column("NULL"),
        }
        source = select(*(fresh.get(name, dead.c[name]) for name in self._common))
        self._replay = self._insert_absent(events, self._common, source.where(self._is_one_of(dead.c.id, "ids_")))
        # a row that was there already has not been replayed so often
        self._replayed = (
            select(events.c.id)
            .join(dead, dead.c.id == events.c.id)
            .where(self._is_one_of(dead.c.id, "ids_"), events.c.replays == dead.c.replays + 1)
        )
        noted = case((dead.c.note.is_(None), PUBLISHED_AGAIN), else_=dead.c.note + f"; {PUBLISHED_AGAIN}")
        self._resolve = (
            update(dead)
            .where(self._is_one_of(dead.c.id, "ids_"))
            .values(dlq_status=RESOLVED, status_at=wall_time(), note=noted)
        )
