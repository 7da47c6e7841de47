"""An event's life after its publish, in statements written once: claim, settle, recover. A dialect overrides what differs, and says why.

Every method works on a Connection inside a transaction that the caller owns. Every write after the claim names the claim's token, so a
relay that lost its rows to another changes nothing when it wakes up. Statuses are literals: a bound status would let a generic plan
miss the partial indexes. What "not yet" is (NULL, or a value that means it) is said in one place, `_is_open` and `no_token`.
"""

from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import (
    BigInteger,
    Boolean,
    ColumnElement,
    Double,
    Float,
    FromClause,
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
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql import Executable

from outbox_publisher.event import Event
from outbox_publisher.store.bulk import Assign, BulkUpdate, Columns, UpdateByRow
from outbox_publisher.store.changes import Settlement
from outbox_publisher.store.dead_letters import DeadLetters
from outbox_publisher.store.rows import CLAIMED, due_order, event_of
from outbox_publisher.store.tables import publisher_tables
from outbox_shared.sqltypes import EventId, UtcTime, statement_time, wall_time, wall_time_plus
from outbox_shared.tables import TableNames

PENDING: ColumnElement[str] = literal_column("'PENDING'")
IN_PROCESS: ColumnElement[str] = literal_column("'IN_PROCESS'")
PROCESSED: ColumnElement[str] = literal_column("'PROCESSED'")
FAILED: ColumnElement[str] = literal_column("'FAILED'")


class EventStore:
    """The outbox of one database, in SQL as SQLAlchemy writes it."""

    dialect: str
    insert_or: Callable[[Table], Any]
    """The dialect's own INSERT, which knows what to do with an id that is there already."""
    no_token: ColumnElement[Any] = null()
    """`claim_token` of a row that is nobody's."""

    def __init__(self, names: TableNames) -> None:
        self.tables = publisher_tables(MetaData(), names, self.dialect)
        self._dead_letters = DeadLetters(self.tables, self._upsert, self._remove)
        self._prepare_types()
        self._prepare_claim()
        self._prepare_claim_rows()
        self._prepare_settle()

    # What a dialect may say differently.

    def _bulk(self, columns: Columns, assign: Assign) -> BulkUpdate:
        return UpdateByRow(self.tables.events, columns, assign)

    def _upsert(self, table: Table, columns: list[str], source: Select[Any], again: dict[str, Any]) -> Executable:
        statement = self.insert_or(table).from_select(columns, source)
        overwrite = {name: statement.excluded[name] for name in columns if name != "id"}
        return statement.on_conflict_do_update(index_elements=["id"], set_={**overwrite, **again})  # type: ignore[no-any-return]

    def _remove(self, connection: Connection, token: UUID, ids: list[UUID]) -> None:
        events = self.tables.events
        connection.execute(delete(events).where(events.c.id.in_(ids), events.c.claim_token == token))

    def _is_open(self, events: FromClause) -> ColumnElement[bool]:
        """Neither delivered nor failed yet."""
        return events.c.processed_at.is_(None)

    def _prepare_types(self) -> None:
        self._due_types = self._loose_scan_of_types()

    def _prepare_claim(self) -> None:
        """Pick in a CTE, then update by id: `IN (SELECT … LIMIT)` may run its subquery twice and claim more than it returns."""
        events = self.tables.events
        picked = self._due_rows(events.c.id.label("due")).cte("picked")
        self._claim = (
            update(events)
            .where(events.c.id == picked.c.due)
            .values(status=IN_PROCESS, claim_token=bindparam("token_", type_=EventId))
            .returning(*self._claimed())
        )

    def _take(self, connection: Connection, event_type: str, limit: int, token: UUID) -> Sequence[Row[Any]]:
        """Put the token on the rows that are due, and read them."""
        return connection.execute(self._claim, {"event_type_": event_type, "limit_": limit, "token_": token}).all()

    def _give_back(self, connection: Connection, lost: Row[Any]) -> int:
        """The rows of one lost claim become PENDING; returns how many."""
        bounds = {"event_type_": lost.event_type, "first_due_": lost.first_due, "last_due_": lost.last_due}
        return connection.execute(self._recover, {"token_": lost.token, **bounds}).rowcount

    def check_session(self, connection: Connection) -> None:
        """Raise a ConfigurationError where the claims of such a session would stand in the way of others."""

    def is_conflict(self, error: DBAPIError) -> bool:
        """Whether the database broke the transaction off for another one's sake: nothing is wrong with it, run again it may pass."""
        return False

    # Claim.

    def due_types(self, connection: Connection) -> list[str]:
        """Every type that has rows to send now: a few index looks per type, however many rows there are."""
        return list(connection.execute(self._due_types).scalars())

    def claim(
        self, connection: Connection, *, event_type: str, limit: int, token: UUID, relay: str, lease: float
    ) -> list[Event]:
        """Take up to `limit` due rows of one type, in order, under a new token and lease."""
        rows = self._take(connection, event_type, limit, token)
        if not rows:
            return []
        events = sorted(map(event_of, rows), key=due_order)  # UPDATE … RETURNING comes back unsorted
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
        for lost in expired:
            rows += self._give_back(connection, lost)
            connection.execute(self._end_claim, {"token": lost.token})
        return len(expired), rows

    # The statements behind them.

    def _claimed(self) -> list[ColumnElement[Any]]:
        return [self.tables.events.c[name] for name in CLAIMED]

    def _is_due(self, events: FromClause) -> tuple[ColumnElement[bool], ...]:
        return self._is_open(events), events.c.status == PENDING, events.c.next_retry_at <= statement_time()

    def _due_rows(self, *columns: ColumnElement[Any]) -> Select[Any]:
        """What a claim takes: due rows of one type, in order, past those that another claim is just taking."""
        events = self.tables.events
        return (
            select(*columns)
            .where(events.c.event_type == bindparam("event_type_"), *self._is_due(events))
            .order_by(events.c.next_retry_at, events.c.seq)
            .limit(bindparam("limit_", type_=Integer))
            .with_for_update(skip_locked=True)
        )

    def _loose_scan_of_types(self) -> Select[Any]:
        events = self.tables.events

        def next_type(*after: Any) -> Select[Any]:
            open_rows = select(events.c.event_type).where(self._is_open(events), *after)
            return open_rows.order_by(events.c.event_type).limit(1)

        found = select(next_type().scalar_subquery().label("event_type")).cte("found", recursive=True)
        step = select(next_type(events.c.event_type > found.c.event_type).scalar_subquery())
        found = found.union_all(step.where(found.c.event_type.is_not(None)))
        due = select(events.c.id).where(events.c.event_type == found.c.event_type, *self._is_due(events))
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
        self._recover = update(events).where(*self._is_of_lost_claim()).values(self._given_back())

    def _is_of_lost_claim(self) -> tuple[ColumnElement[bool], ...]:
        """By the due index: the claim says within which times its rows are."""
        events = self.tables.events
        first, last = bindparam("first_due_", type_=UtcTime), bindparam("last_due_", type_=UtcTime)
        return (
            self._is_open(events),
            events.c.event_type == bindparam("event_type_"),
            events.c.next_retry_at.between(first, last),
            events.c.claim_token == bindparam("token_", type_=EventId),
        )

    def _given_back(self) -> dict[str, Any]:
        return {
            "status": PENDING,
            "claim_token": self.no_token,
            "lost_claims": self.tables.events.c.lost_claims + 1,
            "maybe_sent": true(),  # nobody knows how far the lost relay came
        }

    def _prepare_settle(self) -> None:
        events = self.tables.events
        self._deliver = self._bulk(
            {"id": EventId(), "partition": Integer(), "offset": BigInteger()},
            lambda given: {
                "status": PROCESSED,
                "processed_at": wall_time(),
                "claim_token": self.no_token,
                # without a position they stay what they were from the start, which is each database's own "none"
                "broker_partition": func.coalesce(given["partition"], events.c.broker_partition),
                "broker_offset": func.coalesce(given["offset"], events.c.broker_offset),
            },
        )
        self._reschedule = self._bulk(
            {"id": EventId(), "attempts": SmallInteger(), "delay": Double(), "error": Text(), "maybe_sent": Boolean()},
            lambda given: {
                "status": PENDING,
                "claim_token": self.no_token,
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
