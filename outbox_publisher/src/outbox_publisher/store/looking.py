"""The look that begins a relay's round: what is paused, where suspects are, and since when each type has rows waiting. One statement."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import CompoundSelect, Select, String, case, literal, literal_column, select, true, union_all
from sqlalchemy.engine import Connection

from outbox_publisher.store.statements import PENDING, Statements
from outbox_shared.sqltypes import statement_time
from outbox_shared.state import PAUSE, SUSPECTS
from outbox_shared.tables import TableNames

WAITING = "waiting"


@dataclass(frozen=True, slots=True)
class Look:
    """All times are the database's."""

    now: datetime | None = None
    pauses: frozenset[str] = frozenset()
    suspects: dict[str, datetime] = field(default_factory=dict)
    """Types with rows whose relay died over them, and when that was last seen."""
    waiting: dict[str, datetime] = field(default_factory=dict)
    """Types with PENDING rows, and when the first of them is due."""

    @property
    def due(self) -> list[str]:
        return [name for name, since in self.waiting.items() if self.now is not None and since <= self.now]

    @property
    def next_due(self) -> float | None:
        """In how many seconds the next type will have something due that has nothing now."""
        if self.now is None:
            return None
        later = [(since - self.now).total_seconds() for since in self.waiting.values() if since > self.now]
        return min(later, default=None)


class Looking(Statements):
    def __init__(self, names: TableNames) -> None:
        super().__init__(names)
        state = self.tables.state
        now = statement_time().label("now")
        self._marks: Select[Any] = select(state.c.kind, state.c.name, state.c.updated_at, now).where(
            state.c.kind.in_([literal_column(f"'{PAUSE}'"), literal_column(f"'{SUSPECTS}'")])
        )
        self._look_at_all = self._all()

    def look(self, connection: Connection) -> Look:
        """A few index looks per type, however many rows there are."""
        return _look_of(connection.execute(self._look_at_all))

    def look_at_marks(self, connection: Connection) -> Look:
        """Pauses and suspects alone: cheap, whatever the table of events is like."""
        return _look_of(connection.execute(self._marks))

    # What a dialect may say differently.

    def _all(self) -> CompoundSelect[Any]:
        """Type after type by the due index, and the oldest waiting row of each, looked up by itself: an EXISTS would be a join, and a
        planner whose statistics are from before the backlog would hash all of it, at every look. For the same planner a type or a
        status that is equal has few rows, which it would rather collect and sort: so both are said in a way that it cannot estimate.
        """
        events = self.tables.events

        def next_type(*after: Any) -> Select[Any]:
            open_rows = select(events.c.event_type).where(self._is_open(events), *after)
            return open_rows.order_by(events.c.event_type).limit(1)

        found = select(next_type().scalar_subquery().label("event_type")).cte("found", recursive=True)
        step = select(next_type(events.c.event_type > found.c.event_type).scalar_subquery())
        found = found.union_all(step.where(found.c.event_type.is_not(None)))
        of_this_type = case((events.c.event_type == found.c.event_type, events.c.next_retry_at))
        is_pending = case((events.c.status == PENDING, true()))
        waiting = select(of_this_type).where(
            events.c.event_type >= found.c.event_type, self._is_open(events), is_pending
        )
        oldest = waiting.order_by(events.c.event_type, events.c.next_retry_at, events.c.seq).limit(1).scalar_subquery()
        types = select(literal(WAITING, String), found.c.event_type, oldest.label("oldest"), statement_time()).where(
            found.c.event_type.is_not(None)
        )
        return union_all(self._marks, types)


def _look_of(rows: Iterable[Any]) -> Look:
    now, pauses, suspects, waiting = None, set(), {}, {}
    for kind, name, at, now in rows:  # noqa: B007 - the same in every row
        if kind == PAUSE:
            pauses.add(name)
        elif kind == SUSPECTS:
            suspects[name] = at
        elif at is not None:
            waiting[name] = at
    return Look(now, frozenset(pauses), suspects, waiting)
