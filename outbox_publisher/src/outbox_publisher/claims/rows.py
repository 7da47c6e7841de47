"""Strategy `rows`: any relay takes any due row. Fair and simple; promises no order."""

from datetime import timedelta
from uuid import uuid4

from sqlalchemy.engine import Connection

from outbox_publisher.claims.base import Batch
from outbox_publisher.store import EventStore, Settlement


class RowClaims:
    """Claims rows with a fresh random token for each batch: a token is never reused, so an old one can never match again."""

    def __init__(self, store: EventStore, relay: str, lease: timedelta) -> None:
        self._store, self._relay, self._lease = store, relay, lease.total_seconds()

    def due_types(self, connection: Connection) -> list[str]:
        return self._store.due_types(connection)

    def claim(self, connection: Connection, event_type: str, limit: int) -> Batch | None:
        token = uuid4()
        events = self._store.claim(
            connection, event_type=event_type, limit=limit, token=token, relay=self._relay, lease=self._lease
        )
        return Batch(token, event_type, events) if events else None

    def settle(self, connection: Connection, batch: Batch, fate: Settlement) -> int:
        return self._store.settle(connection, batch.token, fate)
