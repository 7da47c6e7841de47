"""What `status` shows of the tables: how much of what there is, and for how long the oldest of it has waited."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import func, select
from sqlalchemy.engine import Connection

from outbox_publisher.store.statements import Statements
from outbox_shared.tables import TableNames


@dataclass(frozen=True, slots=True)
class Count:
    """So many events of a type stand so; the oldest was created then."""

    event_type: str
    status: str
    count: int
    oldest: datetime


class Counting(Statements):
    """Reads whole tables: for people who look now and then."""

    def __init__(self, names: TableNames) -> None:
        super().__init__(names)
        events, letters = self.tables.events.c, self.tables.dead_letters.c
        by_status = (events.event_type, events.status)
        by_dlq_status = (letters.event_type, letters.dlq_status)
        self._count_events = (
            select(*by_status, func.count(), func.min(events.created_at)).group_by(*by_status).order_by(*by_status)
        )
        self._count_letters = (
            select(*by_dlq_status, func.count(), func.min(letters.created_at))
            .group_by(*by_dlq_status)
            .order_by(*by_dlq_status)
        )

    def count_events(self, connection: Connection) -> list[Count]:
        return [Count(*row) for row in connection.execute(self._count_events)]

    def count_dead_letters(self, connection: Connection) -> list[Count]:
        return [Count(*row) for row in connection.execute(self._count_letters)]
