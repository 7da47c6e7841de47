"""Column types and time expressions that mean the same on every database, each in the form that is fastest there.

Time is always the database's, never the application's: relays on several machines must agree on what is due. Three clocks, because
PostgreSQL has three and the wrong one is a trap: `transaction_time` is frozen at the transaction's start (right for a publish),
`statement_time` is stable within a statement and so can be an index condition (right in predicates), `wall_time` goes on (right for
leases and other written values; in a WHERE it would be a filter over every row).
"""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import BigInteger, LargeBinary, Uuid
from sqlalchemy.dialects import mysql, postgresql
from sqlalchemy.engine import Dialect
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeDecorator, TypeEngine

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def stored_id(value: UUID | None, dialect: str) -> Any:
    """What a driver of this database is given for an id."""
    return value if value is None or dialect == "postgresql" else value.bytes


def stored_time(value: datetime | None, dialect: str) -> Any:
    """What a driver of this database is given for a moment."""
    if value is None:
        return None
    utc = value.astimezone(UTC)
    if dialect == "postgresql":
        return utc
    if dialect in {"mysql", "mariadb"}:
        return utc.replace(tzinfo=None)
    elapsed = utc - _EPOCH
    return (elapsed.days * 86_400 + elapsed.seconds) * 1000 + elapsed.microseconds // 1000


class EventId(TypeDecorator[UUID]):
    """A UUID: `uuid` on PostgreSQL, 16 bytes elsewhere (text would compare by collation and take more than twice the space)."""

    impl = Uuid
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        if dialect.name == "postgresql":
            return dialect.type_descriptor(postgresql.UUID(as_uuid=True))
        if dialect.name in {"mysql", "mariadb"}:
            return dialect.type_descriptor(mysql.BINARY(16))
        return dialect.type_descriptor(LargeBinary(16))

    def process_bind_param(self, value: UUID | None, dialect: Dialect) -> Any:
        return stored_id(value, dialect.name)

    def process_result_value(self, value: Any, dialect: Dialect) -> UUID | None:
        return value if value is None or isinstance(value, UUID) else UUID(bytes=bytes(value))


class UtcTime(TypeDecorator[datetime]):
    """A moment: `timestamptz` on PostgreSQL, DATETIME(6) in UTC on MySQL, integer milliseconds on SQLite. Aware UTC in Python."""

    impl = BigInteger
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        if dialect.name == "postgresql":
            return dialect.type_descriptor(postgresql.TIMESTAMP(timezone=True))
        if dialect.name in {"mysql", "mariadb"}:
            return dialect.type_descriptor(mysql.DATETIME(fsp=6))
        return dialect.type_descriptor(BigInteger())

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> Any:
        return stored_time(value, dialect.name)

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        if isinstance(value, datetime):
            return value.astimezone(UTC) if value.tzinfo else value.replace(tzinfo=UTC)
        return _EPOCH + timedelta(milliseconds=value)  # by way of a float it would be some microseconds off


class transaction_time(FunctionElement[datetime]):  # noqa: N801 - reads as the SQL function that it is
    """When the transaction began."""

    type = UtcTime()
    inherit_cache = True


class statement_time(FunctionElement[datetime]):  # noqa: N801
    """When the statement began: the one for predicates."""

    type = UtcTime()
    inherit_cache = True


class wall_time(FunctionElement[datetime]):  # noqa: N801
    """Now: the one for values that are written."""

    type = UtcTime()
    inherit_cache = True


class wall_time_plus(FunctionElement[datetime]):  # noqa: N801
    """Now plus a number of seconds, given as a bound value or a column."""

    type = UtcTime()
    inherit_cache = True


class statement_time_plus(FunctionElement[datetime]):  # noqa: N801
    """When the statement began, plus a number of seconds: for predicates."""

    type = UtcTime()
    inherit_cache = True


SQLITE_NOW = "CAST(ROUND((julianday('now') - 2440587.5) * 86400000) AS INTEGER)"


@compiles(transaction_time)
def _transaction_time(element: transaction_time, compiler: SQLCompiler, **_: Any) -> str:
    return _now(compiler, "now()")


@compiles(statement_time)
def _statement_time(element: statement_time, compiler: SQLCompiler, **_: Any) -> str:
    return _now(compiler, "statement_timestamp()")


@compiles(wall_time)
def _wall_time(element: wall_time, compiler: SQLCompiler, **_: Any) -> str:
    return _now(compiler, "clock_timestamp()")


@compiles(wall_time_plus)
def _wall_time_plus(element: wall_time_plus, compiler: SQLCompiler, **options: Any) -> str:
    return _plus(compiler, "clock_timestamp()", compiler.process(element.clauses, **options))


@compiles(statement_time_plus)
def _statement_time_plus(element: statement_time_plus, compiler: SQLCompiler, **options: Any) -> str:
    return _plus(compiler, "statement_timestamp()", compiler.process(element.clauses, **options))


def _plus(compiler: SQLCompiler, on_postgresql: str, seconds: str) -> str:
    now = _now(compiler, on_postgresql)
    match compiler.dialect.name:
        case "postgresql":
            return f"({now} + make_interval(secs => ({seconds})::double precision))"
        case "mysql" | "mariadb":
            return f"({now} + INTERVAL ROUND(({seconds}) * 1000000) MICROSECOND)"
        case _:
            return f"({now} + CAST(ROUND(({seconds}) * 1000) AS INTEGER))"


def _now(compiler: SQLCompiler, on_postgresql: str) -> str:
    match compiler.dialect.name:
        case "postgresql":
            return on_postgresql
        case "mysql" | "mariadb":
            return "UTC_TIMESTAMP(6)"  # SYSDATE(6) would not be an index condition
        case _:
            return SQLITE_NOW
