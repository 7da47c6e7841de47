"""SQLite: one writer at a time, so `FOR UPDATE SKIP LOCKED` means nothing there and is left out by SQLAlchemy.

The engine must begin its transactions as writers (`configure_sqlite`); two claims then simply follow each other.
"""

from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.exc import DBAPIError

from outbox_publisher.store.base import EventStore

_BUSY = 5


class SqliteStore(EventStore):
    dialect = "sqlite"
    insert_or = staticmethod(insert)

    def is_conflict(self, error: DBAPIError) -> bool:
        """SQLITE_BUSY: other writers were faster for the whole busy timeout. Its own waiting starves; ours, at random, is fair."""
        return (getattr(error.orig, "sqlite_errorcode", 0) & 0xFF) == _BUSY
