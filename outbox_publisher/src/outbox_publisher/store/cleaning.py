"""Cleanup: rows that have served for longer than their ttl, a bounded number at a time."""

from sqlalchemy import Float, bindparam, false, select
from sqlalchemy.engine import Connection

from outbox_publisher.store.bulk import BulkDelete
from outbox_publisher.store.locking import Locks
from outbox_publisher.store.statements import Statements
from outbox_shared.sqltypes import statement_time_plus
from outbox_shared.tables import TableNames


class Cleaning(Statements):
    """Finds by index, past rows that others hold, and deletes by primary key: publishers and relays wait for nobody here."""

    def __init__(self, names: TableNames) -> None:
        super().__init__(names)
        events, letters = self.tables.events, self.tables.dead_letters
        old = statement_time_plus(-bindparam("ttl_", type_=Float))
        old_events = select(events.c.id).where(
            ~self._is_open(events), events.c.processed_at < old, events.c.failed == false()
        )
        old_events = old_events.order_by(events.c.processed_at)
        old_letters = select(letters.c.id).where(letters.c.dlq_status == "RESOLVED", letters.c.status_at < old)
        self._any_event, self._any_letter = old_events.limit(1), old_letters.limit(1)
        self._old_events, self._old_letters = self._locks(events, old_events), self._locks(letters, old_letters)
        self._drop_events, self._drop_letters = self._deletes(events), self._deletes(letters)

    def drop_processed(self, connection: Connection, ttl: float, limit: int) -> int:
        """Delivered rows that are older than `ttl` seconds, `limit` at most; returns how many went."""
        return self._drop(connection, self._old_events, self._drop_events, ttl, limit)

    def has_processed(self, connection: Connection, ttl: float) -> bool:
        """Whether there is anything to drop: without locks, and without a write where nobody has to write."""
        return connection.execute(self._any_event, {"ttl_": ttl}).first() is not None

    def has_resolved(self, connection: Connection, ttl: float) -> bool:
        return connection.execute(self._any_letter, {"ttl_": ttl}).first() is not None

    def drop_resolved(self, connection: Connection, ttl: float, limit: int) -> int:
        """Dead letters that have been RESOLVED for longer than `ttl` seconds."""
        return self._drop(connection, self._old_letters, self._drop_letters, ttl, limit)

    @staticmethod
    def _drop(connection: Connection, find: Locks, drop: BulkDelete, ttl: float, limit: int) -> int:
        ids = [row.id for row in find.run(connection, limit, {"ttl_": ttl})]
        return drop.run(connection, ids).rowcount if ids else 0
