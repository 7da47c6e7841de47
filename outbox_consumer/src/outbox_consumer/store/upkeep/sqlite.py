"""SQLite: one writer at a time, so batches are what lets the others in; what is deleted is gone from the index at once."""

import sqlite3

from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError

from outbox_consumer.store.upkeep.base import Upkeep
from outbox_shared.driver import driver_error

_PRIMARY_CODE = 0xFF


class SqliteUpkeep(Upkeep):
    dialect = "sqlite"

    def server(self, connection: Connection) -> tuple[str, tuple[int, ...], tuple[int, ...]]:
        return "SQLite", sqlite3.sqlite_version_info, (3, 35)

    def is_conflict(self, error: DBAPIError) -> bool:
        """Other writers were faster for the whole busy timeout. Its own waiting starves; ours, at random, is fair."""
        code = getattr(driver_error(error), "sqlite_errorcode", None)
        return code is not None and code & _PRIMARY_CODE in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
