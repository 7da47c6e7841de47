"""The consumer's tables for those who create them: `init-db`, auto-create, DBAs and users' own migrations."""

from sqlalchemy import MetaData, Table
from sqlalchemy.engine import Engine
from sqlalchemy.exc import DBAPIError

from outbox_consumer.store.consumed import missing_table
from outbox_shared.creation import missing_tables
from outbox_shared.migrations import IncludeName, add_plain, leave_out
from outbox_shared.side import Side
from outbox_shared.tables import (
    TableNames,
    consumed_events,
    consumer_attempts,
    outbox_state,
)

__all__ = ["add_tables", "create_tables", "include_name", "include_name_for", "statements"]


def consumer_tables(names: TableNames, dialect: str) -> list[Table]:
    metadata = MetaData()
    return [table(metadata, names, dialect) for table in (consumed_events, consumer_attempts, outbox_state)]


CONSUMER = Side("consumer", "outbox-consumer", consumer_tables)


def create_tables(engine: Engine, names: TableNames = TableNames()) -> list[str]:  # noqa: B008 - frozen
    """Create what is missing and return its names; may be run by any number of processes at once."""
    return CONSUMER.create(engine, names)


def statements(dialect: str, names: TableNames = TableNames()) -> list[str]:  # noqa: B008
    """What `schema print` prints, a statement each: for `op.execute` in a migration of yours."""
    return CONSUMER.statements(dialect, names)


def add_tables(metadata: MetaData, dialect: str = "postgresql", names: TableNames = TableNames()) -> None:  # noqa: B008
    """Show the tables to Alembic as a part of your MetaData: autogenerate creates them once and never drops them.

    `names` is TableNames(schema, prefix) where the settings say other than the defaults.
    """
    add_plain(CONSUMER.tables_on(dialect, names), metadata, dialect)


def include_name_for(names: TableNames) -> IncludeName:
    """`include_name` for tables in a schema or with a prefix of their own."""
    return leave_out(names)


include_name = leave_out(TableNames())
"""For `context.configure(include_name=…)` of those who keep the tables out of Alembic: all seven, of publisher and consumer."""


def create_where_possible(engine: Engine | None, names: TableNames) -> None:
    """Create what is missing, on a connection of its own, after a look into the catalogue. None: nothing may be created there."""
    if engine is None:
        return
    try:
        CONSUMER.create(engine, names)
    except DBAPIError as error:
        missing = missing_tables(engine, consumer_tables(names, engine.dialect.name))
        if not missing:
            raise
        reason = str(error.orig).strip().partition("\n")[0]
        raise missing_table(missing[0].fullname, f"does not exist and could not be created ({reason})") from error
