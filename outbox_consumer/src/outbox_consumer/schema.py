"""The consumer's tables for those who create them: `init-db`, auto-create, DBAs and users' own migrations."""

from sqlalchemy import MetaData, Table
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DBAPIError, UnboundExecutionError
from sqlalchemy.orm import Session
from sqlalchemy.pool import SingletonThreadPool, StaticPool

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
from outbox_shared.transaction import single_bind

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


def create_where_possible(session: Session, names: TableNames) -> None:
    """Create what is missing in this session's database, on a connection of its own, after a look into the catalogue.

    Not where that connection would be the user's too: committing the new table would commit their transaction.
    """
    bind = _bind_of(session)
    if not isinstance(bind, Engine) or _shares_connections(bind):
        return
    try:
        CONSUMER.create(bind, names)
    except DBAPIError as error:
        missing = missing_tables(bind, consumer_tables(names, bind.dialect.name))
        if not missing:
            raise
        reason = str(error.orig).strip().partition("\n")[0]
        raise missing_table(missing[0].fullname, f"does not exist and could not be created ({reason})") from error


def _bind_of(session: Session) -> Engine | Connection | None:
    try:
        return single_bind(session) or session.get_bind()
    except UnboundExecutionError:  # a sessionmaker that is configured later
        return None


def _shares_connections(engine: Engine) -> bool:
    if isinstance(engine.pool, StaticPool | SingletonThreadPool):
        return True
    return engine.dialect.name == "sqlite" and is_in_memory(engine)


def is_in_memory(engine: Engine) -> bool:
    name = engine.url.database
    return name in {None, "", ":memory:"} or ":memory:" in str(name) or engine.url.query.get("mode") == "memory"
