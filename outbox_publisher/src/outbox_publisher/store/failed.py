"""FAILED rows, which `dlq.enabled: false` leaves in outbox_events: a person may have them sent again."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import Integer, Select, bindparam, false, literal_column, select, true
from sqlalchemy.engine import Connection

from outbox_publisher.store.statements import PENDING, Statements
from outbox_shared.sqltypes import wall_time
from outbox_shared.tables import TableNames


class Failed(Statements):
    def __init__(self, names: TableNames) -> None:
        super().__init__(names)
        events = self.tables.events
        self._find_failed = self._some_failed()
        self._find_failed_of_type = self._some_failed().where(events.c.event_type == bindparam("event_type_"))
        fresh: dict[str, Any] = {
            "status": PENDING,
            "failed": false(),
            "processed_at": None,
            "attempts": literal_column("0"),
            "lost_claims": literal_column("0"),
            "replays": events.c.replays + 1,
            "next_retry_at": wall_time(),
        }
        self._send_again = self._update_by_id().where(events.c.failed == true()).values(fresh)
        standing = (events.c.id, events.c.status)
        self._standing = select(*standing).where(self._is_one_of(events.c.id, "ids_"))
        letters = self.tables.dead_letters
        self._standing_dead = select(letters.c.id, letters.c.dlq_status).where(self._is_one_of(letters.c.id, "ids_"))

    def failed(self, connection: Connection, limit: int, event_type: str | None = None) -> list[UUID]:
        """Some FAILED rows, of one type or of any, locked until the transaction ends."""
        if event_type is None:
            found = connection.execute(self._find_failed, {"limit_": limit})
        else:
            found = connection.execute(self._find_failed_of_type, {"limit_": limit, "event_type_": event_type})
        return list(found.scalars())

    def send_again(self, connection: Connection, ids: Sequence[UUID]) -> int:
        """Those of the rows that are FAILED become PENDING, due now and with a fresh budget; returns how many did."""
        return connection.execute(self._send_again, self._ids(ids)).rowcount

    def standing(self, connection: Connection, ids: Sequence[UUID]) -> dict[UUID, str]:
        """Where these events stand, as far as they are here: a status of outbox_events, or of the dead letters."""
        found = {
            row.id: f"dead letter, {row.dlq_status}" for row in connection.execute(self._standing_dead, self._ids(ids))
        }
        return found | {row.id: row.status for row in connection.execute(self._standing, self._ids(ids))}

    def _some_failed(self) -> Select[Any]:
        events = self.tables.events
        some: Any = bindparam("limit_", type_=Integer)
        failed = select(events.c.id).where(events.c.failed == true()).order_by(events.c.event_type)
        return failed.limit(some).with_for_update(skip_locked=True)
