"""One statement on the caller's own connection, whatever it is: SQLAlchemy's, a raw psycopg one or Django's.

Hot statements are written as SQL for the driver's own cursor: it costs less than compiling them for every call, and a connection that
SQLAlchemy never saw takes them as well. What differs between drivers is how they mark a parameter, and that is all this module knows.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple, Protocol, TypeAlias

from sqlalchemy.engine import Connection
from sqlalchemy.orm import Session

from outbox_shared.errors import ConfigurationError
from outbox_shared.visibility import Tell, when_visible

Parameters: TypeAlias = Sequence[Any]


class Speech(NamedTuple):
    """How statements for a connection are written: its database, and its driver's parameter mark."""

    dialect: str
    mark: str
    """`%s`, `%b` (psycopg: sent in binary form), `?` or `$` (numbered)."""

    def marks(self, count: int) -> list[str]:
        return [f"${n}" for n in range(1, count + 1)] if self.mark == "$" else [self.mark] * count


class Driver(Protocol):
    """A connection inside a transaction of the caller's."""

    @property
    def speech(self) -> Speech: ...

    def execute(self, sql: str, parameters: Parameters) -> int:
        """Run one statement; returns how many rows it changed."""

    def execute_many(self, sql: str, rows: Sequence[Parameters]) -> int:
        """Run one statement for each of `rows`; returns how many rows that changed together."""

    def fetch_one(self, sql: str, parameters: Parameters) -> Any:
        """The first row of a query, or None."""

    def fetch_all(self, sql: str, parameters: Parameters) -> Sequence[Any]:
        """Every row of a query."""

    def when_visible(self, tell: Tell) -> None:
        """Call `tell` after the commit, and not after a rollback. Never, where the connection cannot tell."""


class SqlalchemyDriver:
    """A SQLAlchemy Connection, sync or inside `run_sync`."""

    def __init__(self, connection: Connection, session: Session | None = None) -> None:
        self._connection, self._session = connection, session
        self.speech = speech_of(connection.dialect.name, connection.dialect.paramstyle, connection.dialect.driver)

    def execute(self, sql: str, parameters: Parameters) -> int:
        return self._connection.exec_driver_sql(sql, tuple(parameters)).rowcount

    def execute_many(self, sql: str, rows: Sequence[Parameters]) -> int:
        return self._connection.exec_driver_sql(sql, list(map(tuple, rows))).rowcount

    def fetch_one(self, sql: str, parameters: Parameters) -> Any:
        return self._connection.exec_driver_sql(sql, tuple(parameters)).first()

    def fetch_all(self, sql: str, parameters: Parameters) -> Sequence[Any]:
        return self._connection.exec_driver_sql(sql, tuple(parameters)).all()

    def when_visible(self, tell: Tell) -> None:
        when_visible(self._connection, self._session, tell)


def driver_error(error: BaseException) -> BaseException:
    """What the driver itself raised, behind SQLAlchemy's wrapper or Django's."""
    original = getattr(error, "orig", None)
    if original is None and type(error).__module__.startswith("django."):
        original = error.__cause__
    return original if isinstance(original, BaseException) else error


_MARKS = {"format": "%s", "pyformat": "%s", "qmark": "?", "numeric_dollar": "$"}


@cache
def speech_of(dialect: str, paramstyle: str, driver: str) -> Speech:
    if driver.startswith("psycopg") and driver != "psycopg2":
        return Speech(dialect, "%b")
    if paramstyle not in _MARKS:
        raise ConfigurationError(
            f"the driver {driver!r} marks parameters in a way that the outbox does not write ({paramstyle}): use psycopg, asyncpg, "
            "pymysql, asyncmy, sqlite3 or aiosqlite"
        )
    return Speech(dialect, _MARKS[paramstyle])
