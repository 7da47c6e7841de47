"""The consumer's tables, and who creates them."""

from sqlalchemy import MetaData, Table
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DBAPIError, UnboundExecutionError
from sqlalchemy.orm import Session
from sqlalchemy.pool import SingletonThreadPool, StaticPool

from outbox_consumer.store.consumed import missing_table
from outbox_shared.tables import TableNames, consumed_events, create_missing, missing_tables
from outbox_shared.transaction import single_bind


def consumer_tables(names: TableNames) -> list[Table]:
    return [consumed_events(MetaData(), names)]


def create_where_possible(session: Session, names: TableNames) -> None:
    """Create what is missing in this session's database, on a connection of its own, after a look into the catalogue.

    Not where that connection would be the user's too: committing the new table would commit their transaction.
    """
    bind = _bind_of(session)
    if not isinstance(bind, Engine) or _shares_connections(bind):
        return
    missing = missing_tables(bind, consumer_tables(names))
    if not missing:
        return
    try:
        create_missing(bind, missing)
    except DBAPIError as error:
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
