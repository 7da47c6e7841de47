"""The seam between the relay and the ways to claim: rows now, hash lanes (order per key) later."""

from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from sqlalchemy.engine import Connection

from outbox_publisher.event import Event
from outbox_publisher.store import Settled, Settlement, Wanted


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows that this relay alone may send until the lease is over; the token is the proof."""

    token: UUID
    event_type: str
    events: list[Event]


class ClaimStrategy(Protocol):
    """Every method runs in a transaction that the caller owns."""

    def claim(self, connection: Connection, event_type: str, wanted: Wanted, token: UUID) -> Batch | None:
        """Due rows of one type under this token, which is never used again; or None."""

    def claim_suspects(self, connection: Connection, event_type: str, wanted: Wanted, token: UUID) -> Batch | None:
        """Rows whose relay died over them, in a company that is the smaller the more often it happened."""

    def settle(self, connection: Connection, batch: Batch, fate: Settlement, *, last: bool = True) -> Settled:
        """Write what became of a batch; `last`: and of all that was left of it, so that the claim ends."""
