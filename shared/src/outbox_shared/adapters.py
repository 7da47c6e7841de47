"""Transactions that SQLAlchemy did not open: a raw psycopg connection, Django's.

    outbox.publish(from_psycopg(connection), "order-created", payload)
    outbox.publish(from_django(), "order-created", payload)

Neither library is imported before its adapter is called.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, runtime_checkable

from outbox_shared.driver import Parameters, Speech
from outbox_shared.errors import ConfigurationError, NoActiveTransaction
from outbox_shared.origins import django_origin
from outbox_shared.visibility import Tell


@dataclass(frozen=True, slots=True)
class Call:
    """The call that an error shows, and the form for those who took the wrong one of two."""

    text: str
    other_form: str
    is_async: bool = False

    @property
    def line(self) -> str:
        return f"await {self.text}" if self.is_async else self.text

    @property
    def block(self) -> str:
        return "async with" if self.is_async else "with"

    def through(self, adapter: str) -> str:
        """The same line for a connection that needs an adapter."""
        return self.line.replace("session", adapter, 1)


@runtime_checkable
class ForeignTransaction(Protocol):
    """An open transaction of another library's, and the driver to work in it."""

    is_async: bool

    @property
    def speech(self) -> Speech: ...
    def require_open(self, call: Call) -> None:
        """NoActiveTransaction where there is none, with the lines to write instead. Sends nothing."""

    def identity(self) -> object:
        """What stays the same while this transaction lasts; None where that cannot be told."""

    def execute(self, sql: str, parameters: Parameters) -> int: ...
    def execute_many(self, sql: str, rows: Sequence[Parameters]) -> int: ...
    def fetch_one(self, sql: str, parameters: Parameters) -> Any: ...
    def fetch_all(self, sql: str, parameters: Parameters) -> Sequence[Any]: ...
    def when_visible(self, tell: Tell) -> None: ...


def from_psycopg(connection: Any) -> ForeignTransaction:
    """The transaction that is open on a psycopg Connection; an AsyncConnection goes with AsyncOutbox."""
    import psycopg  # noqa: PLC0415 - an extra; who calls this has it
    from psycopg.rows import tuple_row  # noqa: PLC0415

    if isinstance(connection, psycopg.Connection):
        return _Psycopg(connection, partial(psycopg.Cursor, row_factory=tuple_row))
    if isinstance(connection, psycopg.AsyncConnection):
        return _AsyncPsycopg(connection, partial(psycopg.AsyncCursor, row_factory=tuple_row))
    kind = f"{type(connection).__module__}.{type(connection).__name__}"
    raise TypeError(f"from_psycopg takes a psycopg Connection or AsyncConnection, not {kind}")


def from_django(connection: Any = "default") -> ForeignTransaction:
    """The transaction that is open on a Django database connection, given as alias or as `django.db.connection`."""
    from django.db import connections  # noqa: PLC0415 - the user's own

    found = connections[connection] if isinstance(connection, str) else connection
    if not hasattr(found, "vendor"):
        raise TypeError(f"from_django takes an alias or django.db.connection, not {type(connection).__name__}")
    return _Django(found)


class _Psycopg:
    """Always a plain cursor of tuples, whatever the connection hands out by default: that one knows binary parameters."""

    is_async = False
    speech = Speech("postgresql", "%b")

    def __init__(self, connection: Any, cursor: Any) -> None:
        self._connection, self._cursor = connection, cursor

    def require_open(self, call: Call) -> None:
        if self._connection.pgconn.pipeline_status:
            # its answers come later: neither the transaction's state nor what a statement changed is known yet
            raise NoActiveTransaction(
                "This psycopg connection is in pipeline mode: call this before or after the pipeline() block"
            )
        status = self._connection.info.transaction_status.name
        if status != "INTRANS":
            why = "is in a failed transaction: roll back first" if status == "INERROR" else "has no open transaction"
            raise NoActiveTransaction(
                f"This psycopg connection {why}. Nothing would tie the event to your change. Write\n\n"
                f"    {call.block} connection.transaction():\n        ...your changes...\n"
                f"        {call.through('from_psycopg(connection)')}"
            )

    def identity(self) -> object:
        return None  # psycopg keeps no trace of a transaction that ended and another one that began

    def execute(self, sql: str, parameters: Parameters) -> int:
        with self._cursor(self._connection) as cursor:
            cursor.execute(sql, parameters)
            count: int = cursor.rowcount
            return count

    def execute_many(self, sql: str, rows: Sequence[Parameters]) -> int:
        return sum(self.execute(sql, row) for row in rows)

    def fetch_one(self, sql: str, parameters: Parameters) -> Any:
        with self._cursor(self._connection) as cursor:
            cursor.execute(sql, parameters)
            return cursor.fetchone()

    def fetch_all(self, sql: str, parameters: Parameters) -> Sequence[Any]:
        with self._cursor(self._connection) as cursor:
            cursor.execute(sql, parameters)
            return list(cursor.fetchall())

    def when_visible(self, tell: Tell) -> None:
        """psycopg has no moment after a commit: `outbox.wake()` is for whoever made it."""


class _AsyncPsycopg(_Psycopg):
    """The same inside SQLAlchemy's greenlet, as its own async drivers do it."""

    is_async = True

    def execute(self, sql: str, parameters: Parameters) -> int:
        count: int = self._run(sql, parameters).rowcount
        return count

    def fetch_one(self, sql: str, parameters: Parameters) -> Any:
        from sqlalchemy.util import await_only  # noqa: PLC0415 - with greenlet

        return await_only(self._run(sql, parameters).fetchone())

    def fetch_all(self, sql: str, parameters: Parameters) -> Sequence[Any]:
        from sqlalchemy.util import await_only  # noqa: PLC0415 - with greenlet

        return list(await_only(self._run(sql, parameters).fetchall()))

    def _run(self, sql: str, parameters: Parameters) -> Any:
        from sqlalchemy.util import await_only  # noqa: PLC0415 - with greenlet

        cursor = self._cursor(self._connection)
        await_only(cursor.execute(sql, parameters))
        return cursor


class _Django:
    """Django's cursors take `%s` on every database."""

    is_async = False

    def __init__(self, connection: Any) -> None:
        vendor = connection.vendor
        if vendor not in {"postgresql", "mysql", "sqlite"}:
            raise ConfigurationError(f"no outbox speaks {vendor!r}; there is one for mysql, postgresql, sqlite")
        self._connection = connection
        self.speech = Speech(vendor, "%s")

    def require_open(self, call: Call) -> None:
        if not self._connection.in_atomic_block:
            raise NoActiveTransaction(
                "Django is not inside transaction.atomic() here, so nothing would tie the event to your change. Write\n\n"
                f"    with transaction.atomic():\n        ...your changes...\n        {call.through('from_django()')}"
            )
        if self._connection.needs_rollback:
            raise NoActiveTransaction("Django's transaction has failed: leave its atomic() block first")

    def identity(self) -> object:
        return self._connection  # Django lets nobody end it inside atomic()

    def execute(self, sql: str, parameters: Parameters) -> int:
        with self._connection.cursor() as cursor:
            cursor.execute(sql, parameters)
            count: int = cursor.rowcount
            return count

    def execute_many(self, sql: str, rows: Sequence[Parameters]) -> int:
        with self._connection.cursor() as cursor:
            cursor.executemany(sql, rows)
            count: int = cursor.rowcount
            return count

    def fetch_one(self, sql: str, parameters: Parameters) -> Any:
        with self._connection.cursor() as cursor:
            cursor.execute(sql, parameters)
            return cursor.fetchone()

    def fetch_all(self, sql: str, parameters: Parameters) -> Sequence[Any]:
        with self._connection.cursor() as cursor:
            cursor.execute(sql, parameters)
            return list(cursor.fetchall())

    def when_visible(self, tell: Tell) -> None:
        connection = self._connection
        connection.on_commit(lambda: tell(django_origin(connection)))
