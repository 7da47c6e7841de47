"""Storing events in the caller's transaction: the statements of `publish`, `publish_batch` and `cancel`, for the driver's own cursor.

Ids that the library made are inserted plainly, so that a clash is an error; only a caller's own id may be there already. Which time an
event is due is computed by the database: its clock is the one that relays go by. Columns that have nothing to say are left out, since
each parameter costs as much as a small column's worth of work.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import compress, groupby
from operator import attrgetter, is_not, itemgetter
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import MetaData
from sqlalchemy.sql.compiler import IdentifierPreparer

from outbox_publisher.event import NewEvent
from outbox_publisher.store.tables import publisher_tables
from outbox_shared.driver import Driver, Speech
from outbox_shared.sqltypes import SQLITE_NOW, stored_id, stored_time
from outbox_shared.tables import TableNames

COLUMNS = NewEvent._fields[: NewEvent._fields.index("delay")]
"""What a publish may fill; the other columns have defaults."""

ROWS_AT_ONCE, BYTES_AT_ONCE = 5_000, 4_000_000  # MariaDB takes 16 MiB, and escapes may double them
_OTHER_COLUMNS = 500
_NOTHING = (None,) * len(COLUMNS)


class Shape(NamedTuple):
    """Which statement an insert needs. A program has few of them, so each is built once."""

    filled: tuple[bool, ...]
    """Of COLUMNS, in their order."""
    delayed: bool
    own_id: bool


class Plan(NamedTuple):
    """A statement, and what it takes of an event after its id."""

    sql: str
    pick: Callable[[NewEvent], tuple[Any, ...]]
    has_occurred_at: bool
    delayed: bool


class Inserts:
    """The general form, which is SQLite's: one statement for one row, repeated by the driver for many."""

    on_clash = " ON CONFLICT DO NOTHING"  # bare: an INSERT-only role may not name the column
    now = SQLITE_NOW

    def __init__(self, names: TableNames, speech: Speech, quote: IdentifierPreparer) -> None:
        self._speech, self._dialect = speech, speech.dialect
        events = publisher_tables(MetaData(), names, speech.dialect).events
        self.table_name = events.fullname
        self._table = quote.format_table(events)
        self._quoted = {name: quote.quote(name) for name in COLUMNS}
        self._plans: dict[Shape, Plan] = {}
        mark = speech.marks(1)[0]
        self._cancel = f"DELETE FROM {self._table} WHERE id = {mark} AND status = 'PENDING' AND NOT maybe_sent"  # noqa: S608

    def one(self, driver: Driver, event: NewEvent) -> bool:
        """Store an event; False where the caller's own id was there already."""
        filled = tuple(map(is_not, event[: len(COLUMNS)], _NOTHING))
        plan = self._plan(Shape(filled, is_delayed(event), event.own_id))
        return driver.execute(plan.sql, self._values(event, plan)) == 1

    def many(self, driver: Driver, events: Sequence[NewEvent]) -> int:
        """Store events in their order; returns how many were not there already."""
        stored = 0
        for own_id, alike in groupby(events, key=attrgetter("own_id")):
            for chunk in _chunks(alike):
                count = self._many(driver, chunk, own_id)
                stored += count if own_id else len(chunk)
        return stored

    def cancel(self, driver: Driver, event_id: UUID) -> bool:
        """Remove an event that no relay has, and that certainly nobody sent."""
        return driver.execute(self._cancel, (stored_id(event_id, self._dialect),)) == 1

    # What a dialect says differently.

    def _many(self, driver: Driver, events: Sequence[NewEvent], own_id: bool) -> int:
        plan = self._plan(shape_of(events, own_id))
        return driver.execute_many(plan.sql, [self._values(event, plan) for event in events])

    def _due(self, not_before: str, delay: str) -> str:
        """When a delayed event is due: as given, but never before now."""
        return f"MAX(COALESCE({not_before}, {self.now} + {delay}), {self.now})"

    def _delay(self, event: NewEvent) -> Any:
        """The delay as `_due` takes it: here in milliseconds."""
        return round(event.delay.total_seconds() * 1000) if event.delay else 0

    # What they have in common.

    def _plan(self, shape: Shape) -> Plan:
        plan = self._plans.get(shape)
        if plan is None:
            names = list(compress(COLUMNS, shape.filled))
            pick = itemgetter(*map(COLUMNS.index, names[1:]))
            plan = self._plans[shape] = Plan(self._insert(names, shape), pick, "occurred_at" in names, shape.delayed)
        return plan

    def _insert(self, names: list[str], shape: Shape) -> str:
        count = len(names)
        columns, marks = [self._quoted[name] for name in names], self._speech.marks(count + 2)
        values = marks[:count]
        if shape.delayed:
            columns.append("next_retry_at")
            values.append(self._due(*marks[count:]))
        clash = self.on_clash if shape.own_id else ""
        return f"INSERT INTO {self._table} ({', '.join(columns)}) VALUES ({', '.join(values)}){clash}"  # noqa: S608

    def _values(self, event: NewEvent, plan: Plan) -> tuple[Any, ...]:
        if plan.has_occurred_at:
            event = event._replace(occurred_at=stored_time(event.occurred_at, self._dialect))
        values = (stored_id(event.id, self._dialect), *plan.pick(event))
        if plan.delayed:
            values += (stored_time(event.not_before, self._dialect), self._delay(event))
        return values


def shape_of(events: Sequence[NewEvent], own_id: bool) -> Shape:
    """One shape for many events: each column that any of them fills."""
    columns = list(zip(*events, strict=True))[: len(COLUMNS)]
    filled = tuple(values.count(None) < len(events) for values in columns)
    return Shape(filled, any(map(is_delayed, events)), own_id)


def is_delayed(event: NewEvent) -> bool:
    return event.delay is not None or event.not_before is not None


def _chunks(events: Iterable[NewEvent]) -> Iterator[list[NewEvent]]:
    """As many at once as a statement should carry."""
    chunk: list[NewEvent] = []
    size = 0
    for event in events:
        weight = len(event.payload) + len(event.headers or "") + len(event.baggage or "") + _OTHER_COLUMNS
        if chunk and (len(chunk) >= ROWS_AT_ONCE or size + weight > BYTES_AT_ONCE):
            yield chunk
            chunk, size = [], 0
        chunk.append(event)
        size += weight
    if chunk:
        yield chunk
