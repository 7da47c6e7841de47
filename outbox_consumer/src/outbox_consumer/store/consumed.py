"""The mark that says "this consumer has consumed this event", written once. A dialect overrides only what differs, and says why.

The mark is inserted before the handler runs and commits with the handler's changes. Its primary key does all the work: a second
delivery finds the row, and one that arrives while the first is still running waits for the first one's fate.

Whether the row is new is always asked of RETURNING (or of the error for a duplicate), never of `rowcount`: for INSERT … ON CONFLICT
SQLAlchemy reports -1, which is true in an `if`, and a consumer built on it deduplicates nothing.

The ids of a batch are inserted in sorted order, so that batches that overlap wait for each other instead of deadlocking.
"""

import re
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import MetaData
from sqlalchemy.engine import Connection

from outbox_consumer.identity import Identity
from outbox_shared.ddl import dialect_named
from outbox_shared.driver import Driver, Speech
from outbox_shared.durations import format_duration
from outbox_shared.errors import EventInProgress, MissingTable
from outbox_shared.sqltypes import stored_id
from outbox_shared.tables import EVENT_TYPE_LENGTH, TableNames, consumed_events, is_missing_table

ROWS_AT_ONCE = 5_000
"""Of a VALUES list: SQLite takes 32,766 parameters in one statement."""


COMMENTS = r"\s*(?:(?:--[^\n]*\n|/\*.*?\*/)\s*)*"

_ENDS_TRANSACTION = re.compile(
    COMMENTS + r"(?:COMMIT|END|ABORT|PREPARE\s+TRANSACTION|ROLLBACK(?!(?:\s+WORK|\s+TRANSACTION)?\s+TO\b))\b",
    re.IGNORECASE | re.DOTALL,
)
"""A ROLLBACK TO goes back to a savepoint, and may."""


class ConsumedStore:
    """The consumed table through one kind of driver, inside transactions that the caller owns. The general form is SQLite's."""

    durable_duplicates = True
    """Whether a mark that a transaction can see has certainly reached the disk, so that a cache may remember it."""

    def __init__(self, names: TableNames, speech: Speech, lock_timeout: timedelta) -> None:
        table = consumed_events(MetaData(), names, speech.dialect)
        self._table_name = table.fullname
        self._table = dialect_named(speech.dialect).identifier_preparer.format_table(table)
        self._speech, self._dialect, self._lock_timeout = speech, speech.dialect, lock_timeout

    def mark(self, driver: Driver, consumer: str, events: Sequence[Identity]) -> set[UUID]:
        """Mark these different events as consumed in this transaction; returns the new ones. Waits for twins that are still running."""
        try:
            if len(events) == 1:
                return {events[0].event_id} if self._mark_one(driver, consumer, events[0]) else set()
            return self._mark_all(driver, consumer, sorted(events, key=_by_id))
        except Exception as error:
            if is_missing_table(error):
                raise missing_table(self._table_name) from error
            if self.is_lock_timeout(error):
                raise self.in_progress(events) from error
            raise

    def in_progress(self, events: Sequence[Identity]) -> EventInProgress:
        return EventInProgress(
            f"{_named(events)} is still being consumed by another transaction after {format_duration(self._lock_timeout)}: "
            "roll back and deliver the message again later, or raise consumer.lock-timeout"
        )

    # What a dialect may say differently.

    def _mark_one(self, driver: Driver, consumer: str, event: Identity) -> bool:
        sql = self._insert_values(1) + " ON CONFLICT DO NOTHING RETURNING 1"
        return driver.fetch_one(sql, self._parameters(consumer, [event])) is not None

    def _mark_all(self, driver: Driver, consumer: str, events: Sequence[Identity]) -> set[UUID]:
        """`events` are sorted by id."""
        new: set[UUID] = set()
        for chunk in chunks(events):
            sql = self._insert_values(len(chunk)) + " ON CONFLICT DO NOTHING RETURNING event_id"
            new |= {UUID(bytes=bytes(row[0])) for row in driver.fetch_all(sql, self._parameters(consumer, chunk))}
        return new

    def is_lock_timeout(self, error: BaseException) -> bool:
        """Whether the wait for another transaction was given up."""
        raise NotImplementedError

    def is_conflict(self, error: BaseException) -> bool:
        """Whether the database broke this transaction off for another one's sake: run again from the start, it may pass."""
        raise NotImplementedError

    def is_outage(self, error: BaseException) -> bool:
        """Whether the database itself is in trouble, so that any message would have failed."""
        raise NotImplementedError

    def ends_transaction(self, statement: str) -> bool:
        """Whether this SQL of a handler would commit or undo what the mark belongs to."""
        return _ENDS_TRANSACTION.match(statement) is not None

    def can_commit(self, connection: Connection) -> bool:
        """Whether the driver is in a transaction that a COMMIT would keep; asked of the driver, without SQL."""
        raise NotImplementedError

    def outlived(self, connection: Connection, error: BaseException) -> bool:
        """Whether the transaction is still whole, after this error of the database that a handler has hidden. May send SQL."""
        raise NotImplementedError

    # What the forms share.

    def _insert_values(self, rows: int) -> str:
        marks = iter(self._speech.marks(3 * rows))
        values = ", ".join(f"({next(marks)}, {next(marks)}, {next(marks)})" for _ in range(rows))
        return f"INSERT INTO {self._table} (consumer, event_id, event_type) VALUES {values}"  # noqa: S608

    def _parameters(self, consumer: str, events: Sequence[Identity]) -> list[Any]:
        return [
            value
            for event in events
            for value in (consumer, stored_id(event.event_id, self._dialect), storable(event.event_type))
        ]


def chunks(events: Sequence[Identity]) -> Iterator[Sequence[Identity]]:
    for start in range(0, len(events), ROWS_AT_ONCE):
        yield events[start : start + ROWS_AT_ONCE]


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


def _named(events: Sequence[Identity]) -> str:
    return f"event {events[0].event_id}" if len(events) == 1 else f"one of the batch's {len(events)} events"


def _by_id(event: Identity) -> UUID:
    return event.event_id
