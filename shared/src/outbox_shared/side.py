"""Publisher or consumer, as far as their tables go: what is done with them is the same for both."""

from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy import Table
from sqlalchemy.engine import Engine

from outbox_shared.creation import create_missing
from outbox_shared.ddl import dialect_named, making, sql_of
from outbox_shared.tables import TableNames
from outbox_shared.version import record_version, version_row


@dataclass(frozen=True, slots=True)
class Side:
    """`name` as in the version row, `program` as people call it, and its tables in a database of a given dialect."""

    name: str
    program: str
    tables: Callable[[TableNames, str], list[Table]]

    def tables_on(self, dialect: str, names: TableNames) -> list[Table]:
        dialect_named(dialect)  # a name that nobody knows is refused there
        return self.tables(names, dialect)

    def create(self, engine: Engine, names: TableNames) -> list[str]:
        """Create what is missing and return its names; see that the version is recorded."""
        tables = self.tables_on(engine.dialect.name, names)
        created = create_missing(engine, tables)
        record_version(engine, state_of(tables, names), self.name)
        return created

    def statements(self, dialect: str, names: TableNames) -> list[str]:
        """The same as SQL, for those who run it themselves. The state table may be there already: the other side has it too."""
        tables, speaks = self.tables_on(dialect, names), dialect_named(dialect)
        state = state_of(tables, names)
        steps = (step for table in tables for step in making(table, speaks, unless_there=table is state))
        return sql_of([*steps, version_row(state, self.name)], speaks)


def state_of(tables: list[Table], names: TableNames) -> Table:
    return next(table for table in tables if table.name == names.of("state"))
