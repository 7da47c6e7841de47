"""Claim: rows of one type under a new token and lease."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import (
    CTE,
    BigInteger,
    ColumnElement,
    Float,
    Integer,
    Select,
    String,
    Update,
    bindparam,
    func,
    insert,
    literal_column,
    or_,
    select,
    tuple_,
    update,
)
from sqlalchemy.engine import Connection, Row
from sqlalchemy.sql.dml import ReturningUpdate

from outbox_publisher.event import Event
from outbox_publisher.store.rows import CLAIMED, DUE_ORDER, event_of
from outbox_publisher.store.statements import IN_PROCESS, Statements
from outbox_shared.sqltypes import EventId, UtcTime, wall_time_plus
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
    behind: "Place | None" = None
    """Only rows behind this place in the claim order: those before it were claimed, or wait for a claim from the start."""

    @property
    def form(self) -> "Form":
        """The statement's shape: the values are bound."""
        topics = "only" if self.only is not None else "without" if self.without else "any"
        return Form(self.lost > 0, topics, self.behind is not None)


class Place(NamedTuple):
    """Where a row stands in the claim order of its type."""

    next_retry_at: datetime
    seq: int


class Form(NamedTuple):
    """Which statement a claim needs; each is built once."""

    suspects: bool
    topics: str
    """`any`, `without` some, or `only` one."""
    behind: bool


CLAIM_ROW: dict[str, ColumnElement[Any]] = {
    "token": bindparam("token_", type_=EventId),
    "relay": bindparam("relay_", type_=String),
    "event_type": bindparam("event_type_", type_=String),
    "lease_until": wall_time_plus(bindparam("lease_", type_=Float)),
}
"""A claim's row, but for the due times of its first and last event."""


def in_order(rows: Iterable[Sequence[Any]]) -> list[Event]:
    """UPDATE … RETURNING comes back unsorted."""
    return sorted(map(event_of, rows), key=DUE_ORDER)


class Claiming(Statements):
    def __init__(self, names: TableNames) -> None:
        super().__init__(names)
        self._claims: dict[Form, Any] = {}
        self._open_claim = insert(self.tables.claims).values(
            {
                **CLAIM_ROW,
                "first_due": bindparam("first_", type_=UtcTime),
                "last_due": bindparam("last_", type_=UtcTime),
            }
        )
        suspects = self._due_rows(
            self.tables.events.c.lost_claims,
            form=Form(suspects=True, topics="without", behind=False),
            limit=1,
            one_value=False,
        )
        self._first_suspect = suspects
        any_suspect = select(self.tables.events.c.id).where(
            self.tables.events.c.event_type == bindparam("event_type_"),
            self._is_open(self.tables.events),
            self.tables.events.c.lost_claims > _NONE,
        )
        self._any_suspect = select(self._by_due_index(any_suspect).exists())

    def claim(
        self, connection: Connection, *, event_type: str, wanted: Wanted, token: UUID, relay: str, lease: float
    ) -> list[Event]:
        """Take due rows of one type, in order, under a new token and lease."""
        given = {"token_": token, "relay_": relay, "lease_": lease}
        return self.begin_claim(connection, event_type, wanted, given)()

    def begin_claim(
        self, connection: Connection, event_type: str, wanted: Wanted, given: Mapping[str, Any]
    ) -> Callable[[], list[Event]]:
        """The same; the events are there when they are asked for, at the end of `at_once` or earlier."""
        rows = self._take(connection, event_type, wanted, given["token_"])
        if not rows:
            return list
        events = in_order(rows)
        bounds = {"first_": events[0].next_retry_at, "last_": events[-1].next_retry_at}
        connection.execute(self._open_claim, {"event_type_": event_type, **given, **bounds})
        return lambda: events

    def first_suspect(self, connection: Connection, event_type: str, without: frozenset[str]) -> int | None:
        """How many claims the oldest due suspect has lost; None where none is due."""
        given = {"event_type_": event_type, "without_": sorted(without) or [""]}
        found: int | None = connection.execute(self._first_suspect, given).scalar()
        return found

    def has_suspects(self, connection: Connection, event_type: str) -> bool:
        """Whether there are any at all, due or not, claimed or not."""
        return bool(connection.execute(self._any_suspect, {"event_type_": event_type}).scalar())

    # What a dialect may say differently.

    def _claim(self, form: Form) -> Any:
        """Pick in a CTE, then update by id: `IN (SELECT … LIMIT)` may run its subquery twice and claim more than it returns."""
        return self._claim_of(self._picked(form))

    def _picked(self, form: Form) -> CTE:
        """The bytes are summed over the rows that were locked: locks on those beyond the bound go with the commit."""
        events = self.tables.events
        columns = (
            events.c.id.label("due"),
            events.c.next_retry_at,
            events.c.seq,
            func.length(events.c.payload).label("size"),
        )
        locked = self._due_rows(*columns, form=form).subquery("locked")
        up_to_it = func.sum(locked.c.size).over(order_by=(locked.c.next_retry_at, locked.c.seq), rows=(None, 0))
        before = up_to_it - locked.c.size
        counted = select(locked.c.due, locked.c.next_retry_at, before.label("before")).subquery("counted")
        within = counted.c.before < bindparam("bytes_", type_=BigInteger)
        return select(counted.c.due, counted.c.next_retry_at).where(within).cte("picked")

    def _claim_of(self, picked: CTE) -> ReturningUpdate[Any]:
        events = self.tables.events
        return self._mark(update(events).where(events.c.id == picked.c.due)).returning(*self._claimed())

    def _is_behind(self, due: ColumnElement[datetime], seq: ColumnElement[int]) -> ColumnElement[bool]:
        events = self.tables.events
        return tuple_(events.c.next_retry_at, events.c.seq) > tuple_(due, seq)

    def _topic(self) -> ColumnElement[str]:
        """What a claim compares with topics."""
        return self.tables.events.c.topic

    def _is_other_topic(self) -> ColumnElement[bool]:
        """None of those that are bound to `without_`."""
        return self._topic().not_in(bindparam("without_", expanding=True))

    def _take(self, connection: Connection, event_type: str, wanted: Wanted, token: UUID) -> Sequence[Row[Any]]:
        """Put the token on the rows that are due, and read them."""
        given = {**self._given(event_type, wanted), "bytes_": wanted.bytes, "token_": token}
        return connection.execute(self._statement(wanted.form), given).all()

    # The statements behind them.

    def _statement(self, form: Form) -> Any:
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
        if wanted.behind is not None:
            given["due_"], given["seq_"] = wanted.behind
        return given

    def _due_rows(
        self, *columns: ColumnElement[Any], form: Form, limit: int | None = None, one_value: bool = True
    ) -> Select[Any]:
        """What a claim takes: due rows of one type, in order, past those that another claim is just taking."""
        events = self.tables.events
        found = select(*columns).where(events.c.event_type == bindparam("event_type_"), *self._is_due(events))
        if not form.suspects:
            found = found.where(events.c.lost_claims == _NONE)
        else:
            found = found.where(events.c.lost_claims > _NONE)
            if one_value:
                found = found.where(events.c.lost_claims == bindparam("lost_", type_=Integer))
        if form.topics == "only":
            found = found.where(self._topic() == bindparam("only_"))
        elif form.topics == "without":
            found = found.where(or_(events.c.topic.is_(None), self._is_other_topic()))
        if form.behind:
            found = found.where(self._is_behind(bindparam("due_", type_=UtcTime), bindparam("seq_", type_=BigInteger)))
        found = found.order_by(events.c.next_retry_at, events.c.seq)
        if limit is not None:
            return self._by_due_index(found.limit(limit))
        return self._by_due_index(found.limit(bindparam("limit_", type_=Integer)).with_for_update(skip_locked=True))
