"""The publisher's tables for those who create them: `init-db`, the relay's auto-create, DBAs and users' own migrations."""

from sqlalchemy import MetaData, Table
from sqlalchemy.engine import Engine

from outbox_publisher.store.tables import publisher_tables
from outbox_shared.creation import missing_tables
from outbox_shared.errors import MissingTable
from outbox_shared.migrations import IncludeName, add_plain, leave_out
from outbox_shared.side import Side
from outbox_shared.tables import TableNames

__all__ = ["add_tables", "create_tables", "include_name", "include_name_for", "statements"]

_WAY_OUT = (
    "outbox_events counts seq by AUTO_INCREMENT, which Alembic cannot write. Instead of the create_table calls of all outbox tables: "
    'for statement in outbox_publisher.schema.statements("mysql"): op.execute(statement)'
)


def _tables(names: TableNames, dialect: str) -> list[Table]:
    return list(publisher_tables(MetaData(), names, dialect))


PUBLISHER = Side("publisher", "outbox-publisher", _tables)


def create_tables(engine: Engine, names: TableNames = TableNames()) -> list[str]:  # noqa: B008 - frozen
    """Create what is missing and return its names; may be run by any number of processes at once."""
    return PUBLISHER.create(engine, names)


def require_tables(engine: Engine, names: TableNames) -> None:
    """Raise MissingTable, which says what to run, where one of them is not there."""
    if missing := missing_tables(engine, PUBLISHER.tables_on(engine.dialect.name, names)):
        missed = ", ".join(table.name for table in missing)
        raise MissingTable(f"the database has no table {missed}: run `outbox-publisher init-db`")


def statements(dialect: str, names: TableNames = TableNames()) -> list[str]:  # noqa: B008
    """What `schema print` prints, a statement each: for `op.execute` in a migration of yours."""
    return PUBLISHER.statements(dialect, names)


def add_tables(metadata: MetaData, dialect: str = "postgresql", names: TableNames = TableNames()) -> None:  # noqa: B008
    """Show the tables to Alembic as a part of your MetaData: autogenerate creates them once and never drops them.

    `names` is TableNames(schema, prefix) where the settings say other than the defaults. On MySQL a migration takes `statements`.
    """
    add_plain(PUBLISHER.tables_on(dialect, names), metadata, dialect, _WAY_OUT)


def include_name_for(names: TableNames) -> IncludeName:
    """`include_name` for tables in a schema or with a prefix of their own."""
    return leave_out(names)


include_name = leave_out(TableNames())
"""For `context.configure(include_name=…)` of those who keep the tables out of Alembic: all seven, of publisher and consumer."""
