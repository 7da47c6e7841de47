"""The seam between the relay and the ways to claim: rows now, hash lanes (order per key) later."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias
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


Claimed: TypeAlias = Callable[[], Batch | None]
"""To be called for the batch when its transaction has been committed, or earlier."""


class ClaimStrategy(Protocol):
    """Every method runs in a transaction that the caller owns."""

    def begin_claim(self, connection: Connection, event_type: str, wanted: Wanted, token: UUID) -> Claimed:
        """Due rows of one type under this token, which is never used again; or None."""

    def begin_claim_of_suspects(self, connection: Connection, event_type: str, wanted: Wanted, token: UUID) -> Claimed:
        """Rows whose relay died over them, in a company that is the smaller the more often it happened."""

    def settle(self, connection: Connection, batch: Batch, fate: Settlement, *, last: bool = True) -> Settled:
        """Write what became of a batch; `last`: and of all that was left of it, so that the claim ends."""
