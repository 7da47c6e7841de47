"""The mark that says "this consumer has consumed this event", written once. A dialect overrides only what differs, and says why.

The mark is inserted before the handler runs and commits with the handler's changes. Its primary key does all the work: a second
delivery finds the row, and one that arrives while the first is still running waits for the first one's fate.

Whether the row is new is always asked of RETURNING, never of `rowcount`: for INSERT … ON CONFLICT SQLAlchemy reports -1, which is
true in an `if`, and a consumer built on it deduplicates nothing.
"""

from datetime import timedelta
from typing import Any

from sqlalchemy import MetaData, String, bindparam, text
from sqlalchemy.engine import Connection, Dialect
from sqlalchemy.exc import DBAPIError

from outbox_consumer.identity import Identity
from outbox_shared.durations import format_duration
from outbox_shared.errors import EventInProgress, MissingTable
from outbox_shared.sqltypes import EventId
from outbox_shared.tables import EVENT_TYPE_LENGTH, TableNames, consumed_events, is_missing_table


class ConsumedStore:
    """The consumed table of one database. Every method works on a Connection inside a transaction that the caller owns."""

    def __init__(self, dialect: Dialect, names: TableNames, lock_timeout: timedelta) -> None:
        self._table = consumed_events(MetaData(), names, dialect.name)
        self._lock_timeout = lock_timeout
        # as text: SQLAlchemy 2.0 compiles an INSERT … ON CONFLICT anew for every message, at more cost than the statement itself
        sql = self._mark_sql(dialect.identifier_preparer.format_table(self._table))
        self._mark = text(sql).bindparams(
            bindparam("consumer", type_=String),
            bindparam("event_id", type_=EventId),
            bindparam("event_type", type_=String),
        )

    def mark(self, connection: Connection, consumer: str, event: Identity) -> bool:
        """Mark the event as consumed in this transaction; False if it had been before. Waits for a twin that is still running."""
        row = {"consumer": consumer, "event_id": event.event_id, "event_type": storable(event.event_type)}
        try:
            return self._is_new(connection, row)
        except DBAPIError as error:
            if is_missing_table(error):
                raise missing_table(self._table.fullname) from error
            if self.is_lock_timeout(error):
                raise self.in_progress(event) from error
            raise

    def in_progress(self, event: Identity) -> EventInProgress:
        return EventInProgress(
            f"event {event.event_id} is still being consumed by another transaction after {format_duration(self._lock_timeout)}: "
            "roll back and deliver the message again later, or raise consumer.lock-timeout"
        )

    # What a dialect may say differently.

    def _mark_sql(self, table: str) -> str:
        return (
            f"INSERT INTO {table} (consumer, event_id, event_type) VALUES (:consumer, :event_id, :event_type) "  # noqa: S608
            "ON CONFLICT DO NOTHING RETURNING 1"
        )

    def _is_new(self, connection: Connection, row: dict[str, Any]) -> bool:
        return connection.execute(self._mark, row).first() is not None

    def is_lock_timeout(self, error: BaseException) -> bool:
        """Whether the wait for another transaction was given up."""
        raise NotImplementedError

    def is_conflict(self, error: BaseException) -> bool:
        """Whether the database broke this transaction off for another one's sake: run again from the start, it may pass."""
        raise NotImplementedError

    def can_commit(self, connection: Connection) -> bool:
        """Whether the driver is in a transaction that a COMMIT would keep; asked of the driver, without SQL."""
        raise NotImplementedError


def missing_table(name: str, why: str = "does not exist") -> MissingTable:
    return MissingTable(
        f"the table {name} {why}: run `outbox-consumer init-db` once, with a role that may create tables"
    )


def storable(event_type: str | None) -> str | None:
    """The type is stored for people to read. A foreign producer's odd one must not make its message unconsumable."""
    if event_type is None:
        return None
    clean = event_type.replace("\x00", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()
    return clean[:EVENT_TYPE_LENGTH]
