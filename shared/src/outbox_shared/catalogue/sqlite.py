"""SQLite's catalogue, which is its PRAGMAs. It can add columns and indexes, and change nothing else."""

import re
from typing import Any

from sqlalchemy import Column, Table
from sqlalchemy.engine import Connection

from outbox_shared.catalogue.base import Catalogue, plain_predicate
from outbox_shared.catalogue.facts import ColumnFacts, IndexFacts, TableFacts


class SqliteCatalogue(Catalogue):
    def found(self, connection: Connection, table: Table) -> TableFacts | None:
        rows = self._pragma(connection, table, "table_info", table.name)
        if not rows:
            return None
        columns = {
            row.name: ColumnFacts(self.plain_type(row.type), not row.notnull, self.plain_default(row.dflt_value))
            for row in rows
        }
        key = tuple(row.name for row in sorted(rows, key=lambda row: row.pk) if row.pk)
        return TableFacts(columns, key, dict(self._indexes(connection, table)), {})

    def _indexes(self, connection: Connection, table: Table) -> Any:
        for index in self._pragma(connection, table, "index_list", table.name):
            if index.origin == "pk":
                continue
            parts = [part for part in self._pragma(connection, table, "index_xinfo", index.name) if part.key]
            columns = ", ".join(f"{part.name or '…'}{' DESC' if part.desc else ''}" for part in parts)
            where = self._predicate(connection, table, index.name) if index.partial else ""
            definition = f"({columns}) WHERE {where}" if where else f"({columns})"
            yield index.name, IndexFacts(definition, bool(index.unique), is_constraint=index.origin == "u")

    def _predicate(self, connection: Connection, table: Table, index: str) -> str:
        master = f"{self._schema(table)}sqlite_master"
        statement = f"SELECT sql FROM {master} WHERE type = 'index' AND name = ?"  # noqa: S608
        written = connection.exec_driver_sql(statement, (index,)).scalar_one()
        return plain_predicate(re.split(r"\bWHERE\b", written, maxsplit=1, flags=re.IGNORECASE)[1])

    def _pragma(self, connection: Connection, table: Table, pragma: str, name: str) -> Any:
        return connection.exec_driver_sql(f"PRAGMA {self._schema(table)}{pragma}({self.quote(name)})").all()

    def _schema(self, table: Table) -> str:
        return f"{self.quote(table.schema)}." if table.schema else ""

    def plain_type(self, written: str) -> str:
        return written.upper()

    def plain_default(self, written: str | None) -> str | None:
        return None if written is None else re.sub(r"^\((.*)\)$", r"\1", written)

    def add_column(self, table: Table, column: Column[Any]) -> str:
        default = self.default(column) if column.server_default is not None else None
        if default is None and not column.nullable:
            return self._anew()
        return self._anew() if default is not None and "(" in default else super().add_column(table, column)

    def change_type(self, table: Table, column: Column[Any]) -> str:
        return self._anew()

    def change_null(self, table: Table, column: Column[Any]) -> str:
        return self._anew()

    def change_default(self, table: Table, column: Column[Any], found: ColumnFacts) -> str:
        return self._anew()

    def change_key(self, table: Table, found: TableFacts) -> str:
        return self._anew()

    def drop_index(self, table: Table, name: str, index: IndexFacts) -> str:
        return self._anew() if index.is_constraint else f"DROP INDEX {self._schema(table)}{self.quote(name)}"

    def _anew(self) -> str:
        return f"SQLite cannot change that: save the rows, drop the table, run {self.program} init-db, put them back"
