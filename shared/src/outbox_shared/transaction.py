"""The caller's own transaction, found before any SQL: a Session, scoped_session, Connection or adapted connection.

Nothing here begins, flushes, commits or changes anything. What cannot be atomic with the caller's change is refused with the form to
write instead: no open transaction, AUTOCOMMIT, a session spread over two databases, an async session given to the sync API.
"""

from typing import Any, TypeAlias

from sqlalchemy.engine import Connection, Engine
from sqlalchemy.orm import Session, scoped_session

from outbox_shared.adapters import Call, ForeignTransaction
from outbox_shared.driver import Driver, SqlalchemyDriver
from outbox_shared.errors import NoActiveTransaction

SqlalchemyTransaction: TypeAlias = "Session | scoped_session[Any] | Connection"
Transaction: TypeAlias = "SqlalchemyTransaction | ForeignTransaction"
"""What `publish` takes first: adapters make the last of these."""

_BEGIN_FIRST = """{what} has no open transaction, so nothing would tie the event to your change. Write

    {block} Session(engine) as session, session.begin():    # or: {block} maker.begin() as session:
        ...your changes...
        {call}"""

_TWO_DATABASES = (
    "This Session is bound to two databases: a commit there is two commits, and one can fail alone. "
    "Pass a Session or Connection of the one database that holds both your rows and the outbox tables."
)


def connection_of(transaction: SqlalchemyTransaction, call: Call) -> Connection:
    """The Connection on which `transaction` runs."""
    found = open_transaction(transaction, call)
    if not isinstance(found, Session | Connection):
        raise TypeError(_not_a_transaction(transaction, call))
    return join(found)


def open_transaction(transaction: Transaction, call: Call) -> "Session | Connection | ForeignTransaction":
    """The first half, for a caller who has more to check: is it a transaction at all? Touches no connection."""
    if isinstance(transaction, scoped_session):
        transaction = transaction()
    if isinstance(transaction, Session | Connection):
        if not transaction.in_transaction():
            kind = "Session" if isinstance(transaction, Session) else "Connection"
            raise NoActiveTransaction(_BEGIN_FIRST.format(what=f"This {kind}", block=call.block, call=call.line))
        return transaction
    if isinstance(transaction, ForeignTransaction):
        if transaction.is_async and not call.is_async:
            raise TypeError(
                f"this connection is async: use {call.other_form} with it, or pass a sync one to {call.line}"
            )
        transaction.require_open(call)
        return transaction
    raise TypeError(_not_a_transaction(transaction, call))


def driver_of(transaction: "Session | Connection | ForeignTransaction") -> Driver:
    """The second half: the way to run a statement in it, where that can be one transaction with the caller's change."""
    if isinstance(transaction, Session):
        return SqlalchemyDriver(join(transaction), transaction)
    return SqlalchemyDriver(join(transaction)) if isinstance(transaction, Connection) else transaction


def identity_of(transaction: "Session | Connection | ForeignTransaction") -> object:
    """What stays the same for as long as the outermost transaction lasts; None where that cannot be told."""
    return transaction.get_transaction() if isinstance(transaction, Session | Connection) else transaction.identity()


def join(transaction: Session | Connection) -> Connection:
    """Its Connection, where that can be one transaction with the caller's change."""
    if isinstance(transaction, Session):
        bind = single_bind(transaction)
        connection = transaction.connection() if bind is None else transaction.connection(bind_arguments={"bind": bind})
        _require_alone(transaction, connection)
    else:
        connection = transaction
    if is_autocommit(connection):
        raise NoActiveTransaction(
            "This connection is in AUTOCOMMIT: every statement would commit by itself, your change and the event apart. "
            "Use an engine without isolation_level='AUTOCOMMIT' here."
        )
    if _is_legacy_savepoint(connection):
        raise NoActiveTransaction(
            "In its default mode Python's SQLite driver sends no BEGIN before a savepoint: its release would commit at once, and your "
            "rollback would leave this behind. Call configure_sqlite(engine) (outbox_shared.sqlite) once, or do it outside begin_nested()."
        )
    return connection


def single_bind(session: Session) -> Engine | Connection | None:
    """The one database of this session; None leaves the choice to the session itself (a `get_bind` of the user's own)."""
    # 2.1 has the public name; 2.0 keeps the mapping private
    routed: dict[Any, Any] = getattr(session, "binds", None) or getattr(session, "_Session__binds", {})
    found = {id(getattr(bind, "engine", bind)): bind for bind in (session.bind, *routed.values()) if bind is not None}
    if len(found) > 1:
        raise NoActiveTransaction(_TWO_DATABASES)
    return next(iter(found.values()), None)


def _require_alone(session: Session, joined: Connection) -> None:
    """A `get_bind` of the user's own shows its other databases only once they take part: their connections are in the transaction."""
    taking_part: dict[Any, Any] = getattr(session.get_transaction(), "_connections", {})
    if any(getattr(bind, "engine", bind) is not joined.engine for bind in taking_part):
        raise NoActiveTransaction(_TWO_DATABASES)


def is_autocommit(connection: Connection) -> bool:
    """Whether the driver commits each statement by itself. The execution options alone do not tell: the driver may be set directly."""
    if connection.get_execution_options().get("isolation_level") == "AUTOCOMMIT":
        return True
    if connection.dialect.name == "sqlite":
        # isolation_level=None is also the recommended recipe there; what differs is whether a BEGIN was then sent
        sqlite = connection.connection.driver_connection
        return getattr(sqlite, "autocommit", None) is True or (
            getattr(sqlite, "isolation_level", "") is None and getattr(sqlite, "in_transaction", None) is False
        )
    driver = connection.connection.dbapi_connection
    asked = getattr(
        connection.connection.driver_connection, "get_autocommit", None
    )  # MySQL's drivers: `autocommit` is a method there
    return bool(asked()) if asked else getattr(driver, "autocommit", False) is True


def _is_legacy_savepoint(connection: Connection) -> bool:
    """Whether this is a savepoint on a SQLite driver that begins transactions by itself, before changes only."""
    if connection.dialect.name != "sqlite" or not connection.in_nested_transaction():
        return False
    driver = connection.connection.driver_connection
    return getattr(driver, "isolation_level", None) is not None and getattr(driver, "autocommit", None) is not False


def _not_a_transaction(given: object, call: Call) -> str:
    name = type(given).__name__
    if name.startswith(("AsyncSession", "AsyncConnection", "async_scoped_session")):
        return f"{name} is async: use {call.other_form} with it, or pass a sync Session to {call.line}"
    module = type(given).__module__
    for library, adapter in (("psycopg", "from_psycopg(connection)"), ("django", "from_django(connection)")):
        if module.startswith(f"{library}.") or module == library:
            return f"wrap {library}'s {name} in its adapter: {call.through(adapter)}"
    return f"The first argument is the transaction, a Session or Connection, not {name}: {call.line}"
