"""The publisher's tables: fixed-width columns first, payload last. What differs by database stands in `forms.py`."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    Boolean,
    Column,
    Index,
    Integer,
    MetaData,
    SmallInteger,
    String,
    Table,
    Text,
    UniqueConstraint,
    text,
)

from outbox_publisher.store.forms import FORMS, Form
from outbox_shared.ddl import STORAGE, WRITTEN_BY_CLAIMS
from outbox_shared.sqltypes import EventId, UtcTime
from outbox_shared.tables import EVENT_TYPE_LENGTH, TableNames, beginning, now, outbox_state, table_options

EVENTS_STORAGE = {"fillfactor": 50, "autovacuum_vacuum_scale_factor": 0, "autovacuum_vacuum_threshold": 10000}
"""On PostgreSQL half of each page stays free, so that claim and settle find room beside the row; vacuum comes by number, not by share."""


@dataclass(frozen=True, slots=True)
class Tables:
    """What one database holds for the publisher."""

    events: Table
    claims: Table
    dead_letters: Table
    state: Table
    audit: Table

    def __iter__(self) -> Iterator[Table]:
        return iter((self.events, self.claims, self.dead_letters, self.state, self.audit))


def publisher_tables(metadata: MetaData, names: TableNames, dialect: str) -> Tables:
    form = FORMS[dialect]
    return Tables(
        _events(metadata, names, dialect, form),
        _claims(metadata, names, dialect),
        _dead_letters(metadata, names, dialect, form),
        outbox_state(metadata, names, dialect),
        _audit(metadata, names, dialect),
    )


def _events(metadata: MetaData, names: TableNames, dialect: str, form: Form) -> Table:
    table = Table(
        names.of("events"),
        metadata,
        *form.identity(),
        Column("lane", SmallInteger, nullable=False),
        Column("attempts", SmallInteger, nullable=False, server_default=text("0")),
        Column("lost_claims", SmallInteger, nullable=False, server_default=text("0")),
        Column("replays", SmallInteger, nullable=False, server_default=text("0")),
        Column("maybe_sent", Boolean, nullable=False, server_default=text("false")),
        Column("next_retry_at", UtcTime, nullable=False, server_default=beginning(dialect)),
        Column("created_at", UtcTime, nullable=False, server_default=beginning(dialect)),
        Column("occurred_at", UtcTime),
        *form.progress(),
        Column("version", Integer),
        *_content(form),
        *(UniqueConstraint(column, name=names.of(f"events_{column}_key")) for column in form.unique),
        info={STORAGE: EVENTS_STORAGE, WRITTEN_BY_CLAIMS: ("status", "claim_token")},
        **table_options(names),
    )
    for index in form.indexes():
        where = None if index.where is None else text(index.where)
        columns = (table.c[name] for name in index.columns)
        Index(names.of(f"events_{index.name}"), *columns, postgresql_where=where, sqlite_where=where)
    return table


def _content(form: Form) -> Iterator[Column[Any]]:
    """What an event is, apart from where it stands: the same in outbox_events and in the dead letters."""
    yield Column("event_type", String(EVENT_TYPE_LENGTH), nullable=False)
    yield Column("topic", String(255))
    yield Column("key", String(512))
    yield Column("content_type", String(255), nullable=False)
    yield Column("aggregate_type", String(255))
    yield Column("aggregate_id", String(512))
    yield Column("correlation_id", String(255))
    yield Column("traceparent", String(255))
    yield Column("tracestate", String(512))
    yield Column("baggage", form.large_text)
    yield Column("headers", form.large_text)
    yield Column("last_error", Text)
    yield Column("payload", form.payload, nullable=False)


def _claims(metadata: MetaData, names: TableNames, dialect: str) -> Table:
    """One row per claimed batch: the lease, and the bounds within which recovery finds its rows by the due index."""
    return Table(
        names.of("claims"),
        metadata,
        Column("token", EventId, primary_key=True, autoincrement=False),
        Column("claimed_at", UtcTime, nullable=False, server_default=now(dialect)),
        Column("lease_until", UtcTime, nullable=False),
        Column("first_due", UtcTime, nullable=False),
        Column("last_due", UtcTime, nullable=False),
        Column("event_type", String(EVENT_TYPE_LENGTH), nullable=False),
        Column("relay", String(255), nullable=False),
        **table_options(names),
    )


def _dead_letters(metadata: MetaData, names: TableNames, dialect: str, form: Form) -> Table:
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
        Column("moved_at", UtcTime, nullable=False, server_default=now(dialect)),
        Column("status_at", UtcTime, nullable=False, server_default=now(dialect)),
        Column("version", Integer),
        Column("dlq_status", String(16), nullable=False, server_default=text("'MOVED'")),
        Column("reason", String(64), nullable=False),
        Column("note", Text),
        *_content(form),
        **table_options(names),
    )
    # lists and the TO_RETRY sweep: one status, oldest first
    Index(names.of("dlq_events_status"), table.c.dlq_status, table.c.moved_at)
    return table


def _audit(metadata: MetaData, names: TableNames, dialect: str) -> Table:
    """Who changed what by hand: written in the transaction of the change itself."""
    table = Table(
        names.of("audit"),
        metadata,
        Column("id", EventId, primary_key=True, autoincrement=False),
        Column("at", UtcTime, nullable=False, server_default=now(dialect)),
        Column("actor", String(255), nullable=False),
        Column("action", String(64), nullable=False),
        Column("event_id", EventId),
        Column("detail", Text),
        **table_options(names),
    )
    # lists, newest first, and cleanup
    Index(names.of("audit_at"), table.c.at)
    return table
