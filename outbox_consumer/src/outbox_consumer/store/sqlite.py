"""SQLite: one writer at a time, so a twin waits for the whole database and not for the key."""

import sqlite3
from typing import Any

from sqlalchemy.engine import Connection

from outbox_consumer.identity import Identity
from outbox_consumer.store.consumed import ConsumedStore
from outbox_shared.driver import driver_error
from outbox_shared.errors import EventInProgress

_PRIMARY_CODE = 0xFF  # the extended codes (SQLITE_BUSY_SNAPSHOT and others) keep theirs in the lowest byte


class SqliteConsumed(ConsumedStore):
    def in_progress(self, event: Identity) -> EventInProgress:
        return EventInProgress(
            f"another transaction is writing to this SQLite database, so event {event.event_id} could not be marked: roll back and "
            "deliver the message again later"
        )

    def is_lock_timeout(self, error: BaseException) -> bool:
        """Another writer held the database for longer than the connection's busy timeout, or wrote after this one had read."""
        code = getattr(driver_error(error), "sqlite_errorcode", None)
        return code is not None and code & _PRIMARY_CODE in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}

    def is_conflict(self, error: BaseException) -> bool:
        return self.is_lock_timeout(error)

    def can_commit(self, connection: Connection) -> bool:
        """A full disk and a few other errors end the transaction by themselves; so does COMMIT as plain SQL."""
        driver: Any = connection.connection.dbapi_connection
        return getattr(driver, "in_transaction", True) is not False
