"""SQLite the way a transactional library needs it: real transactions, WAL, and patience with other writers."""

import random
import sqlite3
import time
from typing import Any

from sqlalchemy import event
from sqlalchemy.engine import Connection, Engine

BUSY_TIMEOUT_MS = 10_000

READS_ONLY = "outbox_reads_only"
"""An execution option for a connection that will only read: its transactions take no write lock."""


def _write_ahead(cursor: sqlite3.Cursor) -> None:
    """The change of a new file's journal does not wait for others who open it at the same moment: wait by ourselves."""
    until = time.monotonic() + BUSY_TIMEOUT_MS / 1000
    while True:
        try:
            cursor.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError:
            if time.monotonic() >= until:
                raise
            time.sleep(random.uniform(0.01, 0.05))
        else:
            return


def configure_sqlite(engine: Engine) -> Engine:
    """Make `engine` begin transactions itself, so that savepoints and rollbacks mean what they say; returns the engine.

    The driver's legacy mode opens no transaction for a savepoint: its release would commit, and a rollback around it would leave the
    event behind. And a transaction that reads first and writes later fails at once, whatever the busy timeout, if another one wrote
    in between: so each begins as a writer.
    """

    @event.listens_for(engine, "connect")
    def _connect(connection: Any, _record: Any) -> None:
        if hasattr(sqlite3, "LEGACY_TRANSACTION_CONTROL"):
            connection.autocommit = sqlite3.LEGACY_TRANSACTION_CONTROL
        connection.isolation_level = None
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
        _write_ahead(cursor)
        cursor.execute("PRAGMA synchronous = NORMAL")
        cursor.close()

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        options = connection.get_execution_options()
        if options.get("isolation_level") != "AUTOCOMMIT":
            connection.exec_driver_sql("BEGIN" if options.get(READS_ONLY) else "BEGIN IMMEDIATE")

    return engine
