"""The seam between the relay and the ways to claim: rows now, hash lanes (order per key) later."""

from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from sqlalchemy.engine import Connection

from outbox_publisher.event import Event
from outbox_publisher.store import Settlement


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows that this relay alone may send until the lease is over; the token is the proof."""

    token: UUID
    event_type: str
    events: list[Event]


class ClaimStrategy(Protocol):
    """Every method runs in a transaction that the caller owns."""

    def due_types(self, connection: Connection) -> list[str]:
        """The event types that have something to claim."""

    def claim(self, connection: Connection, event_type: str, limit: int) -> Batch | None:
        """Up to `limit` due rows of one type, or None."""

    def settle(self, connection: Connection, batch: Batch, fate: Settlement) -> int:
        """Write what became of a batch; returns how many of its rows were still ours."""
