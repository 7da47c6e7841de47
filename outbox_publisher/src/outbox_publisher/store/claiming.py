"""Claim: which types have something due, and rows of one type under a new token and lease."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Float,
    Integer,
    Select,
    Update,
    bindparam,
    func,
    insert,
    literal_column,
    or_,
    select,
    update,
)
from sqlalchemy.engine import Connection, Row

from outbox_publisher.event import Event
from outbox_publisher.store.rows import CLAIMED, due_order, event_of
from outbox_publisher.store.statements import IN_PROCESS, Statements
from outbox_shared.sqltypes import EventId, wall_time_plus
from outbox_shared.tables import TableNames

_NONE: ColumnElement[int] = literal_column("0")
"""Lost claims of a row that is no suspect. A bound zero would let a generic plan miss the partial index of suspects."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which due rows a claim takes, beside their type."""

    limit: int
    bytes: int
    lost: int = 0
    """How many claims the rows have lost: 0, or suspects of exactly this number."""
    without: frozenset[str] = frozenset()
    """Topics that are blocked or paused."""
    only: str | None = None
    """One topic alone: the row that tries it again."""

    @property
    def form(self) -> tuple[bool, str]:
        """The statement's shape: the values are bound."""
        return self.lost > 0, "only" if self.only is not None else "without" if self.without else "any"


class Claiming(Statements):
    def __init__(self, names: TableNames) -> None:
        super().__init__(names)
        self._claims: dict[tuple[bool, str], Any] = {}
        self._open_claim = insert(self.tables.claims).values(
            lease_until=wall_time_plus(bindparam("lease", type_=Float))
        )
        self._prepare_types()
        suspects = self._due_rows(self.tables.events.c.lost_claims, form=(True, "without"), limit=1, one_value=False)
        self._first_suspect = suspects
        any_suspect = select(self.tables.events.c.id).where(
            self.tables.events.c.event_type == bindparam("event_type_"),
            self._is_open(self.tables.events),
            self.tables.events.c.lost_claims > _NONE,
        )
        self._any_suspect = select(self._by_due_index(any_suspect).exists())

    def due_types(self, connection: Connection) -> list[str]:
        """Every type that has rows to send now: a few index looks per type, however many rows there are."""
        return list(connection.execute(self._due_types).scalars())

    def claim(
        self, connection: Connection, *, event_type: str, wanted: Wanted, token: UUID, relay: str, lease: float
    ) -> list[Event]:
        """Take due rows of one type, in order, under a new token and lease."""
        rows = self._take(connection, event_type, wanted, token)
        if not rows:
            return []
        events = sorted(map(event_of, rows), key=due_order)  # UPDATE … RETURNING comes back unsorted
        bounds = {"first_due": events[0].next_retry_at, "last_due": events[-1].next_retry_at}
        opened = {"token": token, "relay": relay, "event_type": event_type, "lease": lease, **bounds}
        connection.execute(self._open_claim, opened)
        return events

    def first_suspect(self, connection: Connection, event_type: str, without: frozenset[str]) -> int | None:
        """How many claims the oldest due suspect has lost; None where none is due."""
        given = {"event_type_": event_type, "without_": sorted(without) or [""]}
        found: int | None = connection.execute(self._first_suspect, given).scalar()
        return found

    def has_suspects(self, connection: Connection, event_type: str) -> bool:
        """Whether there are any at all, due or not, claimed or not."""
        return bool(connection.execute(self._any_suspect, {"event_type_": event_type}).scalar())

    # What a dialect may say differently.

    def _prepare_types(self) -> None:
        self._due_types = self._loose_scan_of_types()

    def _claim(self, form: tuple[bool, str]) -> Any:
        """Pick in a CTE, then update by id: `IN (SELECT … LIMIT)` may run its subquery twice and claim more than it returns.

        The bytes are summed over the rows that were locked: locks on those beyond the bound go with the commit.
        """
        events = self.tables.events
        columns = (
            events.c.id.label("due"),
            events.c.next_retry_at,
            events.c.seq,
            func.length(events.c.payload).label("size"),
        )
        locked = self._due_rows(*columns, form=form).cte("locked")
        before = func.sum(locked.c.size).over(order_by=(locked.c.next_retry_at, locked.c.seq)) - locked.c.size
        counted = select(locked.c.due, before.label("before")).subquery("counted")
        picked = select(counted.c.due).where(counted.c.before < bindparam("bytes_", type_=BigInteger)).cte("picked")
        return self._mark(update(events).where(events.c.id == picked.c.due)).returning(*self._claimed())

    def _topic(self) -> ColumnElement[str]:
        """What a claim compares with blocked topics."""
        return self.tables.events.c.topic

    def _take(self, connection: Connection, event_type: str, wanted: Wanted, token: UUID) -> Sequence[Row[Any]]:
        """Put the token on the rows that are due, and read them."""
        given = {**self._given(event_type, wanted), "bytes_": wanted.bytes, "token_": token}
        return connection.execute(self._statement(wanted.form), given).all()

    # The statements behind them.

    def _statement(self, form: tuple[bool, str]) -> Any:
        if form not in self._claims:
            self._claims[form] = self._claim(form)
        return self._claims[form]

    def _mark(self, rows: Update) -> Update:
        return rows.values(status=IN_PROCESS, claim_token=bindparam("token_", type_=EventId))

    def _claimed(self) -> list[ColumnElement[Any]]:
        return [self.tables.events.c[name] for name in CLAIMED]

    @staticmethod
    def _given(event_type: str, wanted: Wanted) -> dict[str, Any]:
        given: dict[str, Any] = {"event_type_": event_type, "limit_": wanted.limit}
        if wanted.lost:
            given["lost_"] = wanted.lost
        if wanted.only is not None:
            given["only_"] = wanted.only
        elif wanted.without:
            given["without_"] = sorted(wanted.without)
        return given

    def _due_rows(
        self, *columns: ColumnElement[Any], form: tuple[bool, str], limit: int | None = None, one_value: bool = True
    ) -> Select[Any]:
        """What a claim takes: due rows of one type, in order, past those that another claim is just taking."""
        events = self.tables.events
        suspects, topics = form
        found = select(*columns).where(events.c.event_type == bindparam("event_type_"), *self._is_due(events))
        if not suspects:
            found = found.where(events.c.lost_claims == _NONE)
        else:
            found = found.where(events.c.lost_claims > _NONE)
            if one_value:
                found = found.where(events.c.lost_claims == bindparam("lost_", type_=Integer))
        if topics == "only":
            found = found.where(self._topic() == bindparam("only_"))
        elif topics == "without":
            blocked = self._topic().in_(bindparam("without_", expanding=True))
            found = found.where(or_(events.c.topic.is_(None), ~blocked))
        found = found.order_by(events.c.next_retry_at, events.c.seq)
        if limit is not None:
            return self._by_due_index(found.limit(limit))
        return self._by_due_index(found.limit(bindparam("limit_", type_=Integer)).with_for_update(skip_locked=True))

    def _loose_scan_of_types(self) -> Select[Any]:
        """The oldest due row of each type is looked up by itself. EXISTS would be a join, and a planner whose statistics are from before
        the backlog would hash all of it, at every look.
        """
        events = self.tables.events

        def next_type(*after: Any) -> Select[Any]:
            open_rows = select(events.c.event_type).where(self._is_open(events), *after)
            return open_rows.order_by(events.c.event_type).limit(1)

        found = select(next_type().scalar_subquery().label("event_type")).cte("found", recursive=True)
        step = select(next_type(events.c.event_type > found.c.event_type).scalar_subquery())
        found = found.union_all(step.where(found.c.event_type.is_not(None)))
        due = select(events.c.id).where(events.c.event_type == found.c.event_type, *self._is_due(events))
        oldest = due.order_by(events.c.next_retry_at, events.c.seq).limit(1).scalar_subquery()
        return select(found.c.event_type).where(found.c.event_type.is_not(None), oldest.is_not(None))
