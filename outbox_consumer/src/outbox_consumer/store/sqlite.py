"""SQLite: one writer at a time, so a twin waits for the whole database and not for the key."""

import sqlite3
from collections.abc import Sequence
from typing import Any

from sqlalchemy.engine import Connection

from outbox_consumer.identity import Identity
from outbox_consumer.store.consumed import ConsumedStore
from outbox_shared.driver import driver_error
from outbox_shared.errors import EventInProgress

_PRIMARY_CODE = 0xFF  # the extended codes (SQLITE_BUSY_SNAPSHOT and others) keep theirs in the lowest byte

_BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_MAY_ROLL_BACK = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_INTERRUPT})
"""After these SQLite may have rolled the transaction back by itself, and would commit what follows statement by statement."""

_OUTAGES = frozenset({sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PROTOCOL,
                      sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH})  # fmt: skip


class SqliteConsumed(ConsumedStore):
    def in_progress(self, events: Sequence[Identity]) -> EventInProgress:
        which = f"event {events[0].event_id}" if len(events) == 1 else f"the batch's {len(events)} events"
        return EventInProgress(
            f"another transaction is writing to this SQLite database, so {which} could not be marked: roll back and deliver the "
            "message again later"
        )

    def is_lock_timeout(self, error: BaseException) -> bool:
        """Another writer held the database for longer than the connection's busy timeout, or wrote after this one had read."""
        return _code(error) in _BUSY

    def is_conflict(self, error: BaseException) -> bool:
        return self.is_lock_timeout(error)

    def is_outage(self, error: BaseException) -> bool:
        return _code(error) in _BUSY | _MAY_ROLL_BACK | _OUTAGES

    def can_commit(self, connection: Connection) -> bool:
        """A full disk and a few other errors end the transaction by themselves; so does COMMIT as plain SQL."""
        driver: Any = connection.connection.driver_connection
        return getattr(driver, "in_transaction", True) is not False

    def outlived(self, connection: Connection, error: BaseException) -> bool:
        """Where nobody can tell, it counts as broken: the redelivery runs it again, and no half of it is kept."""
        return _code(error) not in _MAY_ROLL_BACK


def _code(error: BaseException) -> int | None:
    code = getattr(driver_error(error), "sqlite_errorcode", None)
    return None if code is None else code & _PRIMARY_CODE
