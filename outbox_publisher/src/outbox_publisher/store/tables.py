"""The publisher's tables. Every column order and index here was measured; ARCHITECTURE.md says what each decision is worth.

No index of outbox_events names `status` or `claim_token`: so a claim is a HOT update on PostgreSQL, which touches no index at all.
"""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    DDL,
    BigInteger,
    Boolean,
    Column,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    String,
    Table,
    Text,
    event,
    text,
)

from outbox_shared.sqltypes import EventId, UtcTime, transaction_time, wall_time
from outbox_shared.tables import EVENT_TYPE_LENGTH, TableNames

STORAGE = DDL(  # type: ignore[no-untyped-call]
    "ALTER TABLE %(fullname)s SET (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000)"
)


@dataclass(frozen=True, slots=True)
class Tables:
    """What one database holds for the publisher."""

    events: Table
    claims: Table
    dead_letters: Table

    def __iter__(self) -> Any:
        return iter((self.events, self.claims, self.dead_letters))


def publisher_tables(metadata: MetaData, names: TableNames, dialect: str) -> Tables:
    return Tables(_events(metadata, names, dialect), _claims(metadata, names), _dead_letters(metadata, names))


def _events(metadata: MetaData, names: TableNames, dialect: str) -> Table:
    table = Table(
        names.of("events"),
        metadata,
        *_identity(dialect),
        Column("lane", SmallInteger, nullable=False),
        Column("attempts", SmallInteger, nullable=False, server_default=text("0")),
        Column("lost_claims", SmallInteger, nullable=False, server_default=text("0")),
        Column("replays", SmallInteger, nullable=False, server_default=text("0")),
        Column("maybe_sent", Boolean, nullable=False, server_default=text("false")),
        Column("failed", Boolean, nullable=False, server_default=text("false")),
        Column("next_retry_at", UtcTime, nullable=False, server_default=transaction_time()),
        Column("created_at", UtcTime, nullable=False, server_default=transaction_time()),
        Column("occurred_at", UtcTime),
        Column("processed_at", UtcTime),
        Column("claim_token", EventId),
        Column("broker_partition", Integer),
        Column("broker_offset", BigInteger),
        Column("version", Integer),
        Column("status", String(16), nullable=False, server_default=text("'PENDING'")),
        *_content(),
        schema=names.schema,
        implicit_returning=False,  # a producer's role may have INSERT alone
    )
    open_rows = text("processed_at IS NULL")
    for name, columns, where in (
        # the claim: due rows of one type, in order
        ("due", ("event_type", "next_retry_at", "seq"), open_rows),
        # cleanup: what has been done for longer than its ttl
        ("done", ("processed_at",), text("processed_at IS NOT NULL")),
        # the claim of suspects: rows whose relay died over them
        ("suspects", ("event_type", "next_retry_at", "seq"), text("lost_claims > 0 AND processed_at IS NULL")),
        # the sweep and `status`: rows that no relay will send any more
        ("failed", ("event_type",), text("failed")),
    ):
        Index(names.of(f"events_{name}"), *(table.c[c] for c in columns), postgresql_where=where, sqlite_where=where)
    event.listen(table, "after_create", STORAGE.execute_if(dialect="postgresql"))
    return table


def _identity(dialect: str) -> tuple[Column[Any], ...]:
    """`seq` orders, `id` identifies. Only `id` may be unique: a sequence that fell behind must never swallow an insert."""
    if dialect == "sqlite":
        return (Column("seq", Integer, primary_key=True), Column("id", EventId, nullable=False, unique=True))
    return (
        Column("seq", BigInteger, Identity(always=True), nullable=False),
        Column("id", EventId, primary_key=True, autoincrement=False),
    )


def _content() -> tuple[Column[Any], ...]:
    """What an event is, apart from where it stands: the same in outbox_events and in the dead letters."""
    return (
        Column("event_type", String(EVENT_TYPE_LENGTH), nullable=False),
        Column("topic", String(255)),
        Column("key", String(512)),
        Column("content_type", String(255), nullable=False),
        Column("aggregate_type", String(255)),
        Column("aggregate_id", String(512)),
        Column("correlation_id", String(255)),
        Column("traceparent", String(255)),
        Column("tracestate", String(512)),
        Column("baggage", Text),
        Column("headers", Text),
        Column("last_error", Text),
        Column("payload", LargeBinary, nullable=False),
    )


def _claims(metadata: MetaData, names: TableNames) -> Table:
    """One row per claimed batch: the lease, and the bounds within which recovery finds its rows by the due index."""
    return Table(
        names.of("claims"),
        metadata,
        Column("token", EventId, primary_key=True, autoincrement=False),
        Column("claimed_at", UtcTime, nullable=False, server_default=wall_time()),
        Column("lease_until", UtcTime, nullable=False),
        Column("first_due", UtcTime, nullable=False),
        Column("last_due", UtcTime, nullable=False),
        Column("event_type", String(EVENT_TYPE_LENGTH), nullable=False),
        Column("relay", String(255), nullable=False),
        schema=names.schema,
        implicit_returning=False,
    )


def _dead_letters(metadata: MetaData, names: TableNames) -> Table:
    table = Table(
        names.of("dlq_events"),
        metadata,
        Column("id", EventId, primary_key=True, autoincrement=False),
        Column("lane", SmallInteger, nullable=False),
        Column("attempts", SmallInteger, nullable=False),
        Column("lost_claims", SmallInteger, nullable=False),
        Column("replays", SmallInteger, nullable=False),
        Column("maybe_sent", Boolean, nullable=False),
        Column("created_at", UtcTime, nullable=False),
        Column("occurred_at", UtcTime),
        Column("moved_at", UtcTime, nullable=False, server_default=wall_time()),
        Column("version", Integer),
        Column("dlq_status", String(16), nullable=False, server_default=text("'MOVED'")),
        Column("reason", String(64), nullable=False),
        Column("note", Text),
        *_content(),
        schema=names.schema,
        implicit_returning=False,
    )
    # lists and the TO_RETRY sweep: one status, oldest first
    Index(names.of("dlq_events_status"), table.c.dlq_status, table.c.moved_at)
    return table
