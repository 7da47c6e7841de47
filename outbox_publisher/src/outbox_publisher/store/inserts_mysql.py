"""MariaDB and MySQL: many rows in one VALUES list, and no ON CONFLICT."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy.sql.compiler import IdentifierPreparer

from outbox_publisher.event import NewEvent
from outbox_publisher.store.inserts import Inserts, shape_of
from outbox_shared.driver import Driver, Speech, driver_error
from outbox_shared.sqltypes import stored_id
from outbox_shared.tables import TableNames

_DUPLICATE = 1062


class MysqlInserts(Inserts):
    on_clash = ""
    now = "UTC_TIMESTAMP(6)"

    def __init__(self, names: TableNames, speech: Speech, quote: IdentifierPreparer) -> None:
        super().__init__(names, speech, quote)
        self._look = f"SELECT 1 FROM {self._table} WHERE id = {speech.marks(1)[0]}"  # noqa: S608

    def one(self, driver: Driver, event: NewEvent) -> bool:
        """With a caller's own id a plain look goes first.

        The error for a duplicate would leave a lock on the other row until the caller's transaction ends, and a relay that settles it
        would wait; so it is kept for the race that the look did not see. INSERT IGNORE would also swallow what is too long.
        """
        if not event.own_id:
            return super().one(driver, event)
        if driver.fetch_one(self._look, (stored_id(event.id, self._dialect),)) is not None:
            return False
        try:
            return super().one(driver, event)
        except Exception as error:
            if getattr(driver_error(error), "args", (None,))[0] == _DUPLICATE:
                return False
            raise

    def _many(self, driver: Driver, events: Sequence[NewEvent], own_id: bool) -> int:
        if own_id:
            return sum(self.one(driver, event) for event in events)
        plan = self._plan(shape_of(events, own_id))
        head, values, row = plan.sql.partition(" VALUES ")
        parameters = [value for event in events for value in self._values(event, plan)]
        return driver.execute(head + values + ", ".join([row] * len(events)), parameters)

    def _due(self, not_before: str, delay: str) -> str:
        later = f"{self.now} + INTERVAL {delay} MICROSECOND"
        return f"GREATEST(COALESCE(CAST({not_before} AS DATETIME(6)), {later}), {self.now})"

    def _delay(self, event: NewEvent) -> Any:
        return round(event.delay.total_seconds() * 1_000_000) if event.delay else 0
