"""The few statements that run for every event, on psycopg's own cursor: compiled once, everything in binary form, rows as plain tuples.

What SQLAlchemy does for each value and each row is a third of a relay's time. Its connection, transaction and errors stay in force.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

from sqlalchemy.engine import Connection
from sqlalchemy.sql import Executable


class Plain:
    """The general form: as SQLAlchemy does it."""

    def __init__(self, statement: Any) -> None:
        self._statement: Executable = statement

    def count(self, connection: Connection, given: Mapping[str, Any]) -> int:
        """How many rows it changed."""
        return connection.execute(self._statement, given).rowcount


class Hot(Plain):
    """A statement without lists of varying length; each array is one parameter."""

    def __init__(self, statement: Any) -> None:
        super().__init__(statement)
        self._compilable = statement
        self._text: str | None = None

    def rows(self, connection: Connection, given: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        if not _speaks_binary(connection):
            return [tuple(row) for row in connection.execute(self._statement, given)]
        with _binary_results(connection):
            found = connection.exec_driver_sql(self._sql(connection), dict(given))
            rows = found.cursor.fetchall()  # the driver's own: SQLAlchemy's cost as much again
            found.close()
        return list(rows)

    def count(self, connection: Connection, given: Mapping[str, Any]) -> int:
        if not _speaks_binary(connection):
            return super().count(connection, given)
        return connection.exec_driver_sql(self._sql(connection), dict(given)).rowcount

    def _sql(self, connection: Connection) -> str:
        if self._text is None:
            compiled = str(self._compilable.compile(dialect=connection.dialect))
            self._text = re.sub(r"%\((\w+)\)s", r"%(\1)b", compiled)
        return self._text


def _speaks_binary(connection: Connection) -> bool:
    """psycopg does, unless it was told to put the parameters into the text itself (its ClientCursor)."""
    if connection.dialect.driver != "psycopg":
        return False
    import psycopg  # noqa: PLC0415 - an extra; whoever comes here has it

    driver: Any = connection.connection.driver_connection
    return not issubclass(driver.cursor_factory, psycopg.ClientCursor)


@contextmanager
def _binary_results(connection: Connection) -> Iterator[None]:
    """psycopg chooses the form of results by cursor, and SQLAlchemy makes the cursor."""
    driver: Any = connection.connection.driver_connection
    before, driver.cursor_factory = driver.cursor_factory, _binary(driver.cursor_factory)
    try:
        yield
    finally:
        driver.cursor_factory = before


@cache
def _binary(factory: type) -> type:
    import psycopg  # noqa: PLC0415 - as above

    class BinaryCursor(factory):  # type: ignore[misc]
        def __init__(self, *given: Any, **options: Any) -> None:
            super().__init__(*given, **options)
            self.format = psycopg.pq.Format.BINARY

    return BinaryCursor
