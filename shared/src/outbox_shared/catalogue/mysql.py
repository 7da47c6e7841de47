"""MariaDB's and MySQL's catalogue, which is information_schema; it shows a role only the tables that the role may use."""

import re
from collections import defaultdict
from typing import Any

from sqlalchemy import Column, Table, text
from sqlalchemy.engine import Connection

from outbox_shared.catalogue.base import Catalogue, run
from outbox_shared.catalogue.facts import ColumnFacts, IndexFacts, TableFacts

_WHERE = "WHERE table_schema = COALESCE(:schema, DATABASE()) AND table_name = :name"
_TABLE = text(f"SELECT engine AS engine, table_collation AS collation FROM information_schema.tables {_WHERE}")  # noqa: S608
_COLUMNS = text(
    "SELECT column_name AS name, column_type AS type, is_nullable AS nullable, column_default AS value, extra AS extra, "  # noqa: S608
    f"collation_name AS collation FROM information_schema.columns {_WHERE} ORDER BY ordinal_position"
)
_INDEXES = text(
    "SELECT index_name AS name, column_name AS col, non_unique AS non_unique, sub_part AS part, collation AS direction, "  # noqa: S608
    f"index_type AS method FROM information_schema.statistics {_WHERE} ORDER BY index_name, seq_in_index"
)

_COUNTED = "AUTO_INCREMENT"
_WIDTH = re.compile(r"^(bigint|int|smallint)\(\d+\)")  # MariaDB shows one, MySQL 8 does not; it means nothing
_SYNONYMS = {"bool": "tinyint(1)", "integer": "int", "bigint auto_increment": "bigint"}
_ZEROS = re.compile(r"^(0x0+|(\\0)+)$")  # how MySQL and MariaDB show the sixteen zero bytes that '' becomes


class MysqlCatalogue(Catalogue):
    def found(self, connection: Connection, table: Table) -> TableFacts | None:
        named = {"schema": table.schema, "name": table.name}
        there = connection.execute(_TABLE, named).first()
        if there is None:
            return None
        wanted = self.wanted_options(table)["collation"]
        columns = {}
        for row in connection.execute(_COLUMNS, named):
            # a table's collation is one finding, not one for each of its columns
            odd = row.collation not in {None, wanted, there.collation}
            kind = self.plain_type(row.type) + (f" collate {row.collation}" if odd else "")
            default = _COUNTED if "auto_increment" in row.extra.lower() else self.plain_default(row.value)
            columns[row.name] = ColumnFacts(kind, row.nullable == "YES", default)
        indexes = self._indexes(connection, named)
        key = indexes.pop("PRIMARY", None)
        return TableFacts(
            columns,
            tuple(re.findall(r"\w+", key.definition)) if key else (),
            indexes,
            {"engine": there.engine, "collation": there.collation},
        )

    def _indexes(self, connection: Connection, named: dict[str, Any]) -> dict[str, IndexFacts]:
        rows = defaultdict(list)
        for row in connection.execute(_INDEXES, named):
            rows[row.name].append(row)
        indexes = {}
        for name, parts in rows.items():
            method = "" if parts[0].method == "BTREE" else f" USING {parts[0].method}"
            written = ", ".join(map(_part, parts))
            indexes[name] = IndexFacts(f"({written}){method}", unique=not parts[0].non_unique)
        return indexes

    def wanted_column(self, column: Column[Any]) -> ColumnFacts:
        facts = super().wanted_column(column)
        return ColumnFacts(facts.type, facts.nullable, _COUNTED) if _COUNTED in self._type(column) else facts

    def wanted_index(self, index: Any) -> IndexFacts:
        return IndexFacts(f"({', '.join(column.name for column in index.columns)})")

    def wanted_options(self, table: Table) -> dict[str, str]:
        return {"engine": table.kwargs["mysql_engine"], "collation": table.kwargs["mysql_collate"]}

    def plain_type(self, written: str) -> str:
        head, bracket, rest = written.partition("(")  # the values of an ENUM keep their case
        kind = f"{head.lower()}{bracket}{rest}"
        return _SYNONYMS.get(kind, _WIDTH.sub(r"\1", kind))

    def plain_default(self, written: str | None) -> str | None:
        """MariaDB writes literals with quotes and MySQL without, and both complete what was given."""
        if written is None or written == "NULL":
            return None
        bare = re.sub(r"^\((.*)\)$", r"\1", written).strip("'").removesuffix(" 00:00:00.000000")
        return {"false": "0", "true": "1"}.get(bare.lower(), _ZEROS.sub("", bare)).replace(
            "UTC_TIMESTAMP", "utc_timestamp"
        )

    def change_type(self, table: Table, column: Column[Any]) -> str:
        return run(f"ALTER TABLE {self.full_name(table)} MODIFY COLUMN {self.specification(column)}")

    def change_null(self, table: Table, column: Column[Any]) -> str:
        return self.change_type(table, column)

    def change_default(self, table: Table, column: Column[Any], found: ColumnFacts) -> str:
        return self.change_type(table, column)

    def change_key(self, table: Table, found: TableFacts) -> str:
        columns = ", ".join(self.quote(column.name) for column in table.primary_key.columns)
        drop = "DROP PRIMARY KEY, " if found.primary_key else ""
        return run(f"ALTER TABLE {self.full_name(table)} {drop}ADD PRIMARY KEY ({columns})")

    def drop_index(self, table: Table, name: str, index: IndexFacts) -> str:
        return f"ALTER TABLE {self.full_name(table)} DROP INDEX {self.quote(name)}"

    def change_option(self, table: Table, name: str, value: str) -> str:
        charset = table.kwargs["mysql_charset"]
        change = f"ENGINE = {value}" if name == "engine" else f"CONVERT TO CHARACTER SET {charset} COLLATE {value}"
        return run(f"ALTER TABLE {self.full_name(table)} {change}")


def _part(row: Any) -> str:
    length = "" if row.part is None else f"({row.part})"
    return f"{row.col}{length}{' DESC' if row.direction == 'D' else ''}"
