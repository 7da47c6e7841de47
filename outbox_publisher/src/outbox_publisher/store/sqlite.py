"""SQLite: one writer at a time, so `FOR UPDATE SKIP LOCKED` means nothing there and is left out by SQLAlchemy.

The engine must begin its transactions as writers (`configure_sqlite`); two claims then simply follow each other.
"""

from typing import Any

from sqlalchemy import Select, Table
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.sql import Executable

from outbox_publisher.store.base import EventStore


class SqliteStore(EventStore):
    dialect = "sqlite"

    def _upsert(self, table: Table, columns: list[str], source: Select[Any], again: dict[str, Any]) -> Executable:
        statement = insert(table).from_select(columns, source)
        overwrite = {name: statement.excluded[name] for name in columns if name != "id"}
        return statement.on_conflict_do_update(index_elements=["id"], set_={**overwrite, **again})
