"""Strategy `rows`: any relay takes any due row. Fair and simple; promises no order."""

from dataclasses import replace
from datetime import timedelta
from uuid import UUID

from sqlalchemy.engine import Connection

from outbox_publisher.claims.base import Batch, Claimed
from outbox_publisher.store import EventStore, Settled, Settlement, Wanted


def company(lost: int, batch_size: int) -> int:
    """How many suspects are claimed together. A row that kills its relay takes fewer and fewer along, and is alone from the fourth time."""
    return max(1, batch_size // {1: 8, 2: 64}.get(lost, batch_size))


class RowClaims:
    """Claims rows under the token that it is given: random and never reused, so an old one can never match again."""

    def __init__(
        self, store: EventStore, relay: str, lease: timedelta, *, keep: bool = True, bury: bool = True
    ) -> None:
        self._store, self._relay, self._lease = store, relay, lease.total_seconds()
        self._keep, self._bury = keep, bury

    def begin_claim(self, connection: Connection, event_type: str, wanted: Wanted, token: UUID) -> Claimed:
        given = {"token_": token, "relay_": self._relay, "lease_": self._lease}
        taken = self._store.begin_claim(connection, event_type, wanted, given)

        def claimed() -> Batch | None:
            events = taken()
            return Batch(token, event_type, events) if events else None

        return claimed

    def begin_claim_of_suspects(self, connection: Connection, event_type: str, wanted: Wanted, token: UUID) -> Claimed:
        lost = self._store.first_suspect(connection, event_type, wanted.without)
        if lost is None:
            return lambda: None
        suspects = replace(wanted, lost=lost, limit=company(lost, wanted.limit))
        return self.begin_claim(connection, event_type, suspects, token)

    def settle(self, connection: Connection, batch: Batch, fate: Settlement, *, last: bool = True) -> Settled:
        return self._store.settle(connection, batch.token, fate, keep=self._keep, bury=self._bury, last=last)
