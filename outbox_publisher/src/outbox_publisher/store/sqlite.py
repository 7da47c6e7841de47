"""SQLite: one writer at a time, so `FOR UPDATE SKIP LOCKED` means nothing there and is left out by SQLAlchemy.

The engine must begin its transactions as writers (`configure_sqlite`); two claims then simply follow each other.
"""

from sqlalchemy.dialects.sqlite import insert

from outbox_publisher.store.base import EventStore


class SqliteStore(EventStore):
    dialect = "sqlite"
    insert_or = staticmethod(insert)
