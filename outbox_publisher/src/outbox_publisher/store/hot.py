"""The few statements that run for every batch, on psycopg's own cursor: compiled once, everything in binary form, rows as plain tuples.

What SQLAlchemy does for each value and each row is a third of a relay's time. Its connection, transaction and errors stay in force. Within
`at_once` they leave together, and have their answers when it is over.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any, NamedTuple, Protocol

from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql import Executable

from outbox_publisher.store.arrays_postgresql import Pack

BURST = "outbox_burst"
"""In a connection's info while its statements are to leave together."""


class Changed(Protocol):
    """What a statement has done, or will have done at the end of `at_once`."""

    @property
    def rowcount(self) -> int: ...


class Rows(NamedTuple):
    """So many, for certain."""

    rowcount: int


class Plain:
    """The general form: as SQLAlchemy does it."""

    def __init__(self, statement: Any) -> None:
        self._statement: Executable = statement

    def change(self, connection: Connection, given: Mapping[str, Any]) -> Changed:
        return Rows(connection.execute(self._statement, given).rowcount)


class Hot(Plain):
    """A statement without lists of varying length; each array is one parameter."""

    def __init__(self, statement: Any, packed: Mapping[str, Pack] | None = None) -> None:
        """`packed`: which parameters are arrays that we pack ourselves where they leave at once."""
        super().__init__(statement)
        self._compilable, self._packed = statement, dict(packed or {})
        self._text: str | None = None
        self._numbered: tuple[bytes, tuple[str, ...]] | None = None

    def rows(self, connection: Connection, given: Mapping[str, Any]) -> Callable[[], list[tuple[Any, ...]]]:
        """To be called for the rows, at the end of `at_once` or earlier."""
        if BURST in connection.info:
            answer: Callable[[], list[tuple[Any, ...]]] = self._put(connection, given).rows
            return answer
        if not _speaks_binary(connection):
            rows = [tuple(row) for row in connection.execute(self._statement, given)]
            return lambda: rows
        with _binary_results(connection):
            found = connection.exec_driver_sql(self._sql(connection), dict(given))
            rows = list(found.cursor.fetchall())  # the driver's own: SQLAlchemy's cost as much again
            found.close()
        return lambda: rows

    def change(self, connection: Connection, given: Mapping[str, Any]) -> Changed:
        if BURST in connection.info:
            changed: Changed = self._put(connection, given)
            return changed
        if not _speaks_binary(connection):
            return super().change(connection, given)
        return Rows(connection.exec_driver_sql(self._sql(connection), dict(given)).rowcount)

    def _put(self, connection: Connection, given: Mapping[str, Any]) -> Any:
        if self._numbered is None:
            self._numbered = _number(self._sql(connection))
        text, names = self._numbered
        values = [self._packed[name](given[name]) if name in self._packed else given[name] for name in names]
        return connection.info[BURST].add(text, values)

    def _sql(self, connection: Connection) -> str:
        if self._text is None:
            compiled = str(self._compilable.compile(dialect=connection.dialect))
            self._text = re.sub(r"%\((\w+)\)s", r"%(\1)b", compiled)
        return self._text


@contextmanager
def at_once(connection: Connection, meanwhile: Callable[[], object]) -> Iterator[None]:
    """A whole transaction of hot statements without waiting for their answers, where the driver can; `meanwhile` is called while the
    server is at it. The connection is in no transaction, neither before nor afterwards, and nobody else's.
    """
    if not _speaks_binary(connection) or not _has_pipeline():
        yield
        return
    from outbox_publisher.store.burst_postgresql import Burst  # noqa: PLC0415 - psycopg is an extra

    driver: Any = connection.connection.driver_connection
    burst = connection.info[BURST] = Burst(driver, connection.info)
    try:
        try:
            yield
        finally:
            del connection.info[BURST]
        with _errors_of(connection, driver):
            burst.fly(meanwhile)
    except BaseException:
        with suppress(connection.dialect.loaded_dbapi.Error):
            driver.rollback()  # SQLAlchemy knows of no transaction
        raise


def _number(text: str) -> tuple[bytes, tuple[str, ...]]:
    """From psycopg's names to libpq's numbers."""
    names = tuple(dict.fromkeys(re.findall(r"%\((\w+)\)b", text)))
    numbered = re.sub(r"%\((\w+)\)b", lambda found: f"${names.index(found[1]) + 1}", text)
    return numbered.replace("%%", "%").encode(), names


def _has_pipeline() -> bool:
    import psycopg  # noqa: PLC0415 - an extra; whoever comes here has it

    return psycopg.Pipeline.is_supported()


@contextmanager
def _errors_of(connection: Connection, driver: Any) -> Iterator[None]:
    """The driver's errors as SQLAlchemy tells them; a connection that broke is given up, as it would be there."""
    dialect = connection.dialect
    try:
        yield
    except dialect.loaded_dbapi.Error as error:
        broken = dialect.is_disconnect(error, driver, None)
        if broken:
            connection.invalidate(error)
        raised = DBAPIError.instance(
            None, None, error, dialect.loaded_dbapi.Error, connection_invalidated=broken, dialect=dialect
        )
        raise raised from error


def _speaks_binary(connection: Connection) -> bool:
    """psycopg does, unless it was told to put the parameters into the text itself (its ClientCursor)."""
    if connection.dialect.driver != "psycopg":
        return False
    import psycopg  # noqa: PLC0415 - as above

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
