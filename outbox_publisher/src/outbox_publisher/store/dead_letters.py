"""The dead-letter table: where events go that no retry will help, in the transaction that gives them up."""

from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import Select, Table, literal, literal_column, select
from sqlalchemy.engine import Connection
from sqlalchemy.sql import Executable

from outbox_publisher.store.changes import Buried
from outbox_publisher.store.tables import Tables
from outbox_shared.sqltypes import wall_time

Upsert = Callable[[Table, list[str], Select[Any], dict[str, Any]], Executable]
"""INSERT the selected rows into a table; where an id is there already, overwrite it and set the given columns."""

Remove = Callable[[Connection, UUID, list[UUID]], None]
"""DELETE rows of outbox_events by their ids, where they are still this token's."""


class DeadLetters:
    """Moves rows between outbox_events and outbox_dlq_events."""

    def __init__(self, tables: Tables, upsert: Upsert, remove: Remove) -> None:
        self._events, self._dead = tables.events, tables.dead_letters
        self._upsert, self._remove = upsert, remove
        self._common = [column.name for column in self._dead.c if column.name in self._events.c]

    def bury(self, connection: Connection, token: UUID, buried: Sequence[Buried]) -> None:
        """Move this claim's FAILED rows over. An upsert by id: an event may be dead for the second time, and no clash may fail a batch."""
        events = self._events
        for reason in sorted({row.reason for row in buried}):
            ids = [row.id for row in buried if row.reason == reason]
            source = select(*(events.c[name] for name in self._common), literal(reason))
            source = source.where(events.c.id.in_(ids), events.c.claim_token == token)
            again = {"dlq_status": literal_column("'MOVED'"), "moved_at": wall_time()}
            connection.execute(self._upsert(self._dead, [*self._common, "reason"], source, again))
            self._remove(connection, token, ids)
