"""The database behind a session, and whether the consumer may open connections of its own there."""

from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import UnboundExecutionError
from sqlalchemy.orm import Session
from sqlalchemy.pool import SingletonThreadPool, StaticPool

from outbox_shared.transaction import single_bind


def bind_of(session: Session) -> Engine | Connection:
    """Where this session works; NoActiveTransaction for one that is spread over two databases."""
    return single_bind(session) or session.get_bind()


def own_engine(session: Session) -> Engine | None:
    """The Engine, where a connection beside the user's is really another one: else committing there would commit their transaction."""
    try:
        bind = bind_of(session)
    except UnboundExecutionError:  # a sessionmaker that is configured later
        return None
    return owned(bind)


def owned(bind: Engine | Connection) -> Engine | None:
    """The same for a bind that is known."""
    return bind if isinstance(bind, Engine) and not shares_connections(bind) else None


def shares_connections(engine: Engine) -> bool:
    if isinstance(engine.pool, StaticPool | SingletonThreadPool):
        return True
    return engine.dialect.name == "sqlite" and is_in_memory(engine)


def is_in_memory(engine: Engine) -> bool:
    name = engine.url.database
    return name in {None, "", ":memory:"} or ":memory:" in str(name) or engine.url.query.get("mode") == "memory"
