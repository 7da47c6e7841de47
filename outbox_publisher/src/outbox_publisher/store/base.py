"""The statements of an event's life, written once: insert, claim, settle, recover. A dialect overrides only what differs, and says why.

Every method works on a Connection inside a transaction that the caller owns. Every write after the claim names the claim's token, so a
relay that lost its rows to another changes nothing when it wakes up. Statuses are literals: a bound status would let a generic plan
miss the partial indexes.
"""

import json
from collections.abc import Callable
from typing import Any
from uuid import UUID

from sqlalchemy import (
    BigInteger,
    Boolean,
    ColumnElement,
    Float,
    Integer,
    MetaData,
    Select,
    SmallInteger,
    Table,
    Text,
    bindparam,
    case,
    delete,
    func,
    insert,
    literal_column,
    null,
    or_,
    select,
    true,
    update,
)
from sqlalchemy.engine import Connection, Row
from sqlalchemy.sql import Executable

from outbox_publisher.event import Event
from outbox_publisher.store.bulk import Assign, BulkUpdate, Columns, UpdateByRow
from outbox_publisher.store.changes import Settlement
from outbox_publisher.store.dead_letters import DeadLetters
from outbox_publisher.store.tables import publisher_tables
from outbox_shared.sqltypes import EventId, UtcTime, statement_time, wall_time, wall_time_plus
from outbox_shared.tables import TableNames

PENDING: ColumnElement[str] = literal_column("'PENDING'")
IN_PROCESS: ColumnElement[str] = literal_column("'IN_PROCESS'")
PROCESSED: ColumnElement[str] = literal_column("'PROCESSED'")
FAILED: ColumnElement[str] = literal_column("'FAILED'")

_CLAIMED = (
    "id", "seq", "event_type", "topic", "key", "payload", "content_type", "created_at", "next_retry_at", "attempts", "maybe_sent",
    "occurred_at", "version", "aggregate_type", "aggregate_id", "correlation_id", "traceparent", "tracestate", "baggage", "headers",
)  # fmt: skip


class EventStore:
    """The outbox of one database, in SQL as SQLAlchemy writes it."""

    dialect: str
    insert_or: Callable[[Table], Any]
    """The dialect's own INSERT, which knows ON CONFLICT."""

    def __init__(self, names: TableNames) -> None:
        self.tables = publisher_tables(MetaData(), names, self.dialect)
        self._dead_letters = DeadLetters(self.tables, self._upsert)
        self._insert = insert(self.tables.events)
        self._due_types = self._loose_scan_of_types()
        self._claim = self._claim_statement()
        self._prepare_claim_rows()
        self._prepare_settle()

    # What a dialect may say differently.

    def _bulk(self, columns: Columns, assign: Assign) -> BulkUpdate:
        return UpdateByRow(self.tables.events, columns, assign)

    def _upsert(self, table: Table, columns: list[str], source: Select[Any], again: dict[str, Any]) -> Executable:
        statement = self.insert_or(table).from_select(columns, source)
        overwrite = {name: statement.excluded[name] for name in columns if name != "id"}
        return statement.on_conflict_do_update(index_elements=["id"], set_={**overwrite, **again})  # type: ignore[no-any-return]

    def _claim_statement(self) -> Executable:
        """Pick in a CTE, then update by id: `IN (SELECT … LIMIT)` may run its subquery twice and claim more than it returns."""
        events = self.tables.events
        picked = (
            select(events.c.id.label("due"))
            .where(
                events.c.event_type == bindparam("event_type_"),
                *self._is_due(),
            )
            .order_by(events.c.next_retry_at, events.c.seq)
            .limit(bindparam("limit_", type_=Integer))
            .with_for_update(skip_locked=True)
            .cte("picked")
        )
        return (
            update(events)
            .where(events.c.id == picked.c.due)
            .values(status=IN_PROCESS, claim_token=bindparam("token_", type_=EventId))
            .returning(*(events.c[name] for name in _CLAIMED))
        )

    def _is_due(self) -> tuple[ColumnElement[bool], ...]:
        events = self.tables.events
        return events.c.processed_at.is_(None), events.c.status == PENDING, events.c.next_retry_at <= statement_time()

    # Publish.

    def insert(self, connection: Connection, row: dict[str, Any]) -> None:
        connection.execute(self._insert, row)

    # Claim.

    def due_types(self, connection: Connection) -> list[str]:
        """Every type that has rows to send now: a few index looks per type, however many rows there are."""
        return list(connection.execute(self._due_types).scalars())

    def claim(
        self, connection: Connection, *, event_type: str, limit: int, token: UUID, relay: str, lease: float
    ) -> list[Event]:
        """Take up to `limit` due rows of one type, in order, under a new token and lease."""
        rows = connection.execute(self._claim, {"event_type_": event_type, "limit_": limit, "token_": token}).all()
        if not rows:
            return []
        events = sorted(map(_event_of, rows), key=_due_order)  # UPDATE … RETURNING comes back unsorted
        bounds = {"first_due": events[0].next_retry_at, "last_due": events[-1].next_retry_at}
        opened = {"token": token, "relay": relay, "event_type": event_type, "lease": lease, **bounds}
        connection.execute(self._open_claim, opened)
        return events

    # Settle.

    def settle(self, connection: Connection, token: UUID, fate: Settlement) -> int:
        """Write the fate of a whole batch and end its claim; returns how many rows were still this claim's.

        The claim row is touched first, as in recovery: transactions that take their locks in one order cannot deadlock.
        """
        connection.execute(self._end_claim, {"token": token})
        changed = 0
        if fate.delivered:
            delivered = [(row.id, row.partition, row.offset) for row in fate.delivered]
            changed += self._deliver.run(connection, token, delivered)
        if fate.rescheduled:
            later = [(row.id, row.attempts, row.delay, row.error, row.maybe_sent) for row in fate.rescheduled]
            changed += self._reschedule.run(connection, token, later)
        if fate.buried:
            failed = [(row.id, row.attempts, row.error, row.maybe_sent) for row in fate.buried]
            changed += self._fail.run(connection, token, failed)
            self._dead_letters.bury(connection, token, fate.buried)
        return changed

    # Recovery.

    def recover(self, connection: Connection, limit: int) -> tuple[int, int]:
        """End up to `limit` claims whose lease is over; returns how many claims and rows came back. No attempt is charged for it."""
        expired = connection.execute(self._expired, {"limit_": limit}).all()
        rows = 0
        for claim in expired:
            bounds = {"event_type_": claim.event_type, "first_due_": claim.first_due, "last_due_": claim.last_due}
            rows += connection.execute(self._recover, {"token_": claim.token, **bounds}).rowcount
            connection.execute(self._end_claim, {"token": claim.token})
        return len(expired), rows

    # The statements behind them.

    def _loose_scan_of_types(self) -> Select[Any]:
        events = self.tables.events

        def next_type(*after: Any) -> Select[Any]:
            open_rows = select(events.c.event_type).where(events.c.processed_at.is_(None), *after)
            return open_rows.order_by(events.c.event_type).limit(1)

        found = select(next_type().scalar_subquery().label("event_type")).cte("found", recursive=True)
        step = select(next_type(events.c.event_type > found.c.event_type).scalar_subquery())
        found = found.union_all(step.where(found.c.event_type.is_not(None)))
        due = select(events.c.id).where(events.c.event_type == found.c.event_type, *self._is_due())
        return select(found.c.event_type).where(found.c.event_type.is_not(None), due.exists())

    def _prepare_claim_rows(self) -> None:
        events, claims = self.tables.events, self.tables.claims
        self._open_claim = insert(claims).values(lease_until=wall_time_plus(bindparam("lease", type_=Float)))
        self._end_claim = delete(claims).where(claims.c.token == bindparam("token", type_=EventId))
        self._expired = (
            select(claims)
            .where(claims.c.lease_until < statement_time())
            .order_by(claims.c.lease_until)
            .limit(bindparam("limit_", type_=Integer))
            .with_for_update(skip_locked=True)
        )
        self._recover = (
            update(events)
            .where(
                events.c.processed_at.is_(None),
                events.c.event_type == bindparam("event_type_"),
                events.c.next_retry_at.between(
                    bindparam("first_due_", type_=UtcTime), bindparam("last_due_", type_=UtcTime)
                ),
                events.c.claim_token == bindparam("token_", type_=EventId),
            )
            .values(
                status=PENDING,
                claim_token=null(),
                lost_claims=events.c.lost_claims + 1,
                maybe_sent=true(),  # nobody knows how far the lost relay came
            )
        )

    def _prepare_settle(self) -> None:
        events = self.tables.events
        self._deliver = self._bulk(
            {"id": EventId(), "partition": Integer(), "offset": BigInteger()},
            lambda given: {
                "status": PROCESSED,
                "processed_at": wall_time(),
                "claim_token": null(),
                "broker_partition": given["partition"],
                "broker_offset": given["offset"],
            },
        )
        self._reschedule = self._bulk(
            {"id": EventId(), "attempts": SmallInteger(), "delay": Float(), "error": Text(), "maybe_sent": Boolean()},
            lambda given: {
                "status": PENDING,
                "claim_token": null(),
                "attempts": given["attempts"],
                "next_retry_at": case(
                    (given["delay"].is_(None), events.c.next_retry_at), else_=wall_time_plus(given["delay"])
                ),
                "last_error": func.coalesce(given["error"], events.c.last_error),
                "maybe_sent": or_(events.c.maybe_sent, given["maybe_sent"]),
            },
        )
        # the token stays: it is how the move into the dead letters finds its rows
        self._fail = self._bulk(
            {"id": EventId(), "attempts": SmallInteger(), "error": Text(), "maybe_sent": Boolean()},
            lambda given: {
                "status": FAILED,
                "failed": true(),
                "processed_at": wall_time(),
                "attempts": given["attempts"],
                "last_error": given["error"],
                "maybe_sent": or_(events.c.maybe_sent, given["maybe_sent"]),
            },
        )


def _event_of(row: Row[Any]) -> Event:
    values = dict(row._mapping)  # noqa: SLF001 - the public way to a row's names
    own = values.pop("headers")
    return Event(**values, headers=_headers_of(own)) if own else Event(**values)


def _headers_of(text: str) -> dict[str, str]:
    """What is no JSON object becomes a header without a name, which is refused for this row alone: a claim must not fail for it."""
    try:
        headers = json.loads(text)
    except ValueError:
        headers = None
    return headers if isinstance(headers, dict) else {"": text[:100]}


def _due_order(event: Event) -> tuple[Any, int]:
    return event.next_retry_at, event.seq
