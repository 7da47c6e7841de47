"""How much there is, at a bounded cost: exact where that is cheap, else an estimate or "at least", and said."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from sqlalchemy import ColumnElement, Float, Select, Table, bindparam, func, literal_column, select
from sqlalchemy.engine import Connection

from outbox_shared.sqltypes import statement_time_plus

EXACT_UP_TO = 200_000
"""Rows that one look reads at most. A consumer that handles 100 messages a second has 60 million."""
CONSUMERS_SHOWN = 200


@dataclass(frozen=True, slots=True)
class Number:
    value: int
    kind: Literal["exact", "estimate", "at least"] = "exact"


@dataclass(frozen=True, slots=True)
class Span:
    """The rows of one consumer; when is known only where they were counted one by one."""

    consumer: str
    rows: Number
    oldest: datetime | None = None
    newest: datetime | None = None


class Counting:
    def __init__(self, consumed: Table, attempts: Table) -> None:
        self._consumed, self._attempts = consumed, attempts
        columns = consumed.c
        self._by_consumer = (
            select(columns.consumer, func.count(), func.min(columns.consumed_at), func.max(columns.consumed_at))
            .group_by(columns.consumer)
            .order_by(columns.consumer)
        )
        self._next_consumer = select(func.min(columns.consumer)).where(columns.consumer > bindparam("last_"))
        self._old = columns.consumed_at < statement_time_plus(-bindparam("ttl_", type_=Float))

    def consumers(self, connection: Connection) -> list[Span]:
        """By name. In a large table each costs a step in the primary key, and an estimate."""
        if self._up_to(connection, self._consumed).kind == "exact":
            rows = connection.execute(self._by_consumer)
            return [Span(name, Number(count), oldest, newest) for name, count, oldest, newest in rows]
        return [Span(name, self._of(connection, name)) for name in self._names(connection)]

    def expired(self, connection: Connection, ttl: float) -> Number:
        return self._up_to(connection, self._consumed, self._old, {"ttl_": ttl})

    def attempts(self, connection: Connection) -> Number:
        return self._up_to(connection, self._attempts)

    def ends(self, connection: Connection) -> tuple[datetime | None, datetime | None]:
        """When the oldest and the newest row were consumed: two looks into an index."""
        at = self._consumed.c.consumed_at
        oldest, newest = (select(at).order_by(order).limit(1) for order in (at, at.desc()))
        return connection.execute(oldest).scalar(), connection.execute(newest).scalar()

    def oldest_attempt(self, connection: Connection) -> datetime | None:
        at = self._attempts.c.updated_at
        return connection.execute(select(at).order_by(at).limit(1)).scalar()

    def _names(self, connection: Connection) -> Iterator[str]:
        last = ""
        for _ in range(CONSUMERS_SHOWN):
            found = connection.execute(self._next_consumer, {"last_": last}).scalar()
            if found is None:
                return
            yield (last := found)

    def _of(self, connection: Connection, consumer: str) -> Number:
        counted = self._up_to(connection, self._consumed, self._consumed.c.consumer == consumer)
        if counted.kind == "exact":
            return counted
        estimate = self._estimate(connection, consumer)
        return counted if estimate is None or estimate < counted.value else Number(estimate, "estimate")

    def _estimate(self, connection: Connection, consumer: str) -> int | None:
        """What the database thinks without counting; None where it has no idea."""
        return None

    @staticmethod
    def _up_to(
        connection: Connection,
        table: Table,
        which: ColumnElement[bool] | None = None,
        given: dict[str, Any] | None = None,
    ) -> Number:
        some: Select[Any] = select(literal_column("1").label("one")).select_from(table)
        if which is not None:
            some = some.where(which)
        counted = select(func.count()).select_from(some.limit(EXACT_UP_TO + 1).subquery())
        count = connection.execute(counted, given or {}).scalar_one()
        return Number(count) if count <= EXACT_UP_TO else Number(EXACT_UP_TO, "at least")
