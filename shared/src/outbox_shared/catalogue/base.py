"""What every database's catalogue is asked, and how its differences are mended. A dialect says what it does otherwise.

A remedy is what stands behind the finding: `run: …` with SQL that leads to what is wanted, or a sentence where no statement can.
"""

import re
from typing import Any

from sqlalchemy import Column, Identity, Table, UniqueConstraint
from sqlalchemy.engine import Connection, Dialect
from sqlalchemy.schema import CreateIndex

from outbox_shared.catalogue.facts import ColumnFacts, IndexFacts, TableFacts
from outbox_shared.ddl import sorted_indexes, sql_of

IDENTITY = "GENERATED ALWAYS AS IDENTITY"


def run(*statements: str) -> str:
    return f"run: {'; '.join(statements)};"


class Catalogue:
    """One dialect's catalogue."""

    def __init__(self, dialect: Dialect, program: str) -> None:
        self.dialect = dialect
        self.program = program
        self.quote = dialect.identifier_preparer.quote
        self.full_name = dialect.identifier_preparer.format_table
        self._ddl = dialect.ddl_compiler(dialect, None)  # type: ignore[arg-type] # a compiler's parts need no statement

    # What there is.

    def found(self, connection: Connection, table: Table) -> TableFacts | None:
        """The table as it is, None if it is not there."""
        raise NotImplementedError

    # What there should be.

    def wanted(self, table: Table) -> TableFacts:
        columns = {column.name: self.wanted_column(column) for column in table.columns}
        indexes = {str(index.name): self.wanted_index(index) for index in sorted_indexes(table)}
        return TableFacts(columns, tuple(table.primary_key.columns.keys()), indexes, self.wanted_options(table))

    def wanted_column(self, column: Column[Any]) -> ColumnFacts:
        default = self._ddl.get_column_default_string(column)
        return ColumnFacts(
            self.plain_type(self._type(column)),
            bool(column.nullable),
            IDENTITY if isinstance(column.server_default, Identity) else self.plain_default(default),
        )

    def wanted_index(self, index: Any) -> IndexFacts:
        where = index.dialect_options[self.dialect.name].get("where")
        columns = ", ".join(column.name for column in index.columns)
        return IndexFacts(f"({columns})" if where is None else f"({columns}) WHERE {plain_predicate(where.text)}")

    def wanted_options(self, table: Table) -> dict[str, str]:
        return {}

    def wanted_uniques(self, table: Table) -> set[str]:
        """Beside the primary key, and as an index's definition is written."""
        uniques = (constraint for constraint in table.constraints if isinstance(constraint, UniqueConstraint))
        return {f"({', '.join(constraint.columns.keys())})" for constraint in uniques}

    # One form for both.

    def plain_type(self, written: str) -> str:
        return written

    def plain_default(self, written: str | None) -> str | None:
        return written

    # What to do.

    def add_column(self, table: Table, column: Column[Any]) -> str:
        return run(f"ALTER TABLE {self.full_name(table)} ADD COLUMN {self.specification(column)}")

    def change_type(self, table: Table, column: Column[Any]) -> str:
        raise NotImplementedError

    def change_null(self, table: Table, column: Column[Any]) -> str:
        raise NotImplementedError

    def change_default(self, table: Table, column: Column[Any], found: ColumnFacts) -> str:
        raise NotImplementedError

    def change_key(self, table: Table, found: TableFacts) -> str:
        raise NotImplementedError

    def create_index(self, index: Any) -> str:
        return sql_of([CreateIndex(index)], self.dialect)[0]

    def drop_index(self, table: Table, name: str, index: IndexFacts) -> str:
        raise NotImplementedError

    def change_option(self, table: Table, name: str, value: str) -> str:
        raise NotImplementedError

    def specification(self, column: Column[Any]) -> str:
        """The column as CREATE TABLE would write it."""
        return self._ddl.get_column_specification(column)

    def default(self, column: Column[Any]) -> str:
        return str(self._ddl.get_column_default_string(column))

    def _type(self, column: Column[Any]) -> str:
        return self.dialect.type_compiler_instance.process(column.type, type_expression=column)


def plain_predicate(written: str) -> str:
    """Databases add parentheses of their own."""
    return " ".join(re.sub(r"[()]", " ", written).split())
