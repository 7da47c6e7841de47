"""How each database wants the columns that a claim and a settle write, and its indexes: all three on one screen.

No index names `status` or `claim_token`: so a claim is a HOT update on PostgreSQL, which touches no index at all. No index stands here
without the query that needs it. ARCHITECTURE.md says what each decision is worth.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sqlalchemy import BigInteger, Boolean, Column, Identity, Integer, LargeBinary, String, Text, text
from sqlalchemy.dialects import mysql
from sqlalchemy.types import TypeEngine

from outbox_publisher.store.sentinels import (
    AutoIncrement,
    SentinelBigInteger,
    SentinelInteger,
    SentinelTime,
    SentinelToken,
)
from outbox_shared.sqltypes import EventId, UtcTime

STATUSES = ("PENDING", "IN_PROCESS", "PROCESSED", "FAILED")


@dataclass(frozen=True, slots=True)
class IndexForm:
    """One index of outbox_events and the query that it is for."""

    name: str
    columns: tuple[str, ...]
    where: str | None = None


class Form:
    """PostgreSQL's, and what SQLite has of it."""

    large_text: TypeEngine[Any] = Text()
    payload: TypeEngine[Any] = LargeBinary()
    unique: tuple[str, ...] = ()
    """What is unique beside the primary key."""

    def identity(self) -> Iterator[Column[Any]]:
        """`seq` orders, `id` identifies. Only `id` may be unique: a sequence that fell behind must never swallow an insert."""
        yield Column("seq", BigInteger, Identity(always=True), nullable=False)
        yield Column("id", EventId, primary_key=True, autoincrement=False)

    def progress(self) -> Iterator[Column[Any]]:
        """What is written after the insert, apart from counters."""
        yield Column("processed_at", UtcTime)
        yield Column("claim_token", EventId)
        yield Column("broker_partition", Integer)
        yield Column("broker_offset", BigInteger)
        yield Column("failed", Boolean, nullable=False, server_default=text("false"))
        yield Column("status", String(16), nullable=False, server_default=text("'PENDING'"))

    def indexes(self) -> Iterator[IndexForm]:
        due = ("event_type", "next_retry_at", "seq")
        # the claim: due rows of one type, in order
        yield IndexForm("due", due, "processed_at IS NULL")
        # cleanup: what has been done for longer than its ttl
        yield IndexForm("done", ("processed_at",), "processed_at IS NOT NULL")
        # the claim of suspects: rows whose relay died over them
        yield IndexForm("suspects", due, "lost_claims > 0 AND processed_at IS NULL")
        # the sweep and `status`: rows that no relay will send any more
        yield IndexForm("failed", ("event_type",), "failed")


class SqliteForm(Form):
    """An integer primary key is the row's own address there, so `seq` is it."""

    unique = ("id",)

    def identity(self) -> Iterator[Column[Any]]:
        yield Column("seq", Integer, primary_key=True)
        yield Column("id", EventId, nullable=False)


class MysqlForm(Form):
    """MariaDB and MySQL: no column that claim or settle writes may change its stored width, or every update moves the row.

    So what is not known yet is a sentinel and not NULL (`sentinels.py` hides it from Python), and the status is an ENUM: 2.3 times the
    drain rate. There are no partial indexes; `processed_at` in front of the due index keeps finished rows out of the claim's way, and
    serves cleanup too.
    """

    large_text = mysql.MEDIUMTEXT()  # TEXT ends at 64 KB
    payload = mysql.LONGBLOB()

    def identity(self) -> Iterator[Column[Any]]:
        # AUTO_INCREMENT needs a key, not the primary one; SQLAlchemy knows it on primary keys only
        yield Column("seq", AutoIncrement, nullable=False)
        yield Column("id", EventId, primary_key=True, autoincrement=False)

    def progress(self) -> Iterator[Column[Any]]:
        yield Column("processed_at", SentinelTime, nullable=False, server_default=text("'9999-12-31'"))
        yield Column("claim_token", SentinelToken, nullable=False, server_default=text("''"))
        yield Column("broker_partition", SentinelInteger, nullable=False, server_default=text("'-1'"))
        yield Column("broker_offset", SentinelBigInteger, nullable=False, server_default=text("'-1'"))
        yield Column("failed", Boolean, nullable=False, server_default=text("false"))
        yield Column("status", mysql.ENUM(*STATUSES), nullable=False, server_default=text("'PENDING'"))

    def indexes(self) -> Iterator[IndexForm]:
        # AUTO_INCREMENT asks for it
        yield IndexForm("seq", ("seq",))
        # the claim, and cleanup
        yield IndexForm("due", ("processed_at", "event_type", "next_retry_at", "seq"))


FORMS: dict[str, Form] = {"postgresql": Form(), "sqlite": SqliteForm(), "mysql": MysqlForm(), "mariadb": MysqlForm()}
