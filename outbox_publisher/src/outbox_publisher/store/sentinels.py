"""MySQL's columns that say "not yet" by a value of full width instead of NULL; Python sees None.

A NULL that becomes a value makes the row longer, and InnoDB then moves it: 15 kB of redo log an event where 0.3 would do.
"""

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from sqlalchemy import BigInteger, Integer
from sqlalchemy.dialects import mysql
from sqlalchemy.engine import Dialect
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import TypeCompiler
from sqlalchemy.types import TypeDecorator

from outbox_shared.sqltypes import EventId, UtcTime

NO_TIME = datetime(9999, 12, 31, tzinfo=UTC)
NO_TOKEN = UUID(int=0)
NO_NUMBER = -1


class SentinelTime(UtcTime):
    """`processed_at`: not before the end of the calendar."""

    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> Any:
        return super().process_bind_param(NO_TIME if value is None else value, dialect)

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:
        found = super().process_result_value(value, dialect)
        return None if found == NO_TIME else found


class SentinelToken(EventId):
    """`claim_token`: nobody's is sixteen zero bytes, which is what '' becomes in a BINARY(16)."""

    cache_ok = True

    def process_bind_param(self, value: UUID | None, dialect: Dialect) -> Any:
        return super().process_bind_param(NO_TOKEN if value is None else value, dialect)

    def process_result_value(self, value: Any, dialect: Dialect) -> UUID | None:
        found = super().process_result_value(value, dialect)
        return None if found == NO_TOKEN else found


class SentinelInteger(TypeDecorator[int]):
    """A broker's partition, which is never negative."""

    impl = Integer
    cache_ok = True

    def process_bind_param(self, value: int | None, dialect: Dialect) -> int:
        return NO_NUMBER if value is None else value

    def process_result_value(self, value: int | None, dialect: Dialect) -> int | None:
        return None if value == NO_NUMBER else value


class SentinelBigInteger(SentinelInteger):
    """Its offset."""

    impl = BigInteger
    cache_ok = True


class AutoIncrement(mysql.BIGINT):
    """A number that the server counts up. SQLAlchemy writes AUTO_INCREMENT for primary keys only; the server asks for any key."""


@compiles(AutoIncrement, "mysql", "mariadb")
def _auto_increment(element: AutoIncrement, compiler: TypeCompiler, **_: Any) -> str:
    return "BIGINT AUTO_INCREMENT"
