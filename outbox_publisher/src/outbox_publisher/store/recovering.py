"""Recovery: claims whose lease is over, rows that no claim knows of, and the renewal that keeps a living relay's claims alive."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, Float, Integer, bindparam, or_, select, true, update
from sqlalchemy.engine import Connection, Row

from outbox_publisher.event import Event
from outbox_publisher.store.changes import Buried, Settlement
from outbox_publisher.store.rows import CLAIMED, event_of
from outbox_publisher.store.settling import Settling
from outbox_publisher.store.statements import IN_PROCESS, PENDING
from outbox_shared.sqltypes import EventId, UtcTime, statement_time, statement_time_plus, wall_time_plus
from outbox_shared.state import RELAY, SUSPECTS
from outbox_shared.tables import TableNames

KILLS = "kills its relay"
MOST_LOST = 5
"""A row that lost so many claims is dead: from the second on it was claimed in ever smaller company, the last two times alone."""


@dataclass(frozen=True, slots=True)
class Recovered:
    """What one transaction gave back."""

    claims: int = 0
    rows: int = 0
    condemned: list[Event] = field(default_factory=list)
    """Those that kill their relays: failed, and in the dead letters where there are any."""


class Recovering(Settling):
    def __init__(self, names: TableNames) -> None:
        super().__init__(names)
        events, claims, state = self.tables.events, self.tables.claims, self.tables.state
        # a living relay beats again before its promise is over; a dead one's ends before its last lease does
        beats = or_(state.c.until >= claims.c.lease_until, state.c.until >= statement_time())
        heartbeat = select(state.c.name).where(state.c.kind == RELAY, state.c.name == claims.c.relay, beats)
        too_old = claims.c.claimed_at < statement_time_plus(-bindparam("longest_", type_=Float))
        self._expired = (
            select(claims, heartbeat.exists().label("alive"))
            .where(or_(claims.c.lease_until < statement_time(), too_old))
            .order_by(claims.c.lease_until)
            .limit(bindparam("limit_", type_=Integer))
            .with_for_update(skip_locked=True)
        )
        self._lost = self._by_due_index(select(events.c.id, events.c.lost_claims).where(*self._is_of_lost_claim()))
        self._read = select(*(events.c[name] for name in CLAIMED)).where(
            self._is_one_of(events.c.id, "ids_"), self._is_claimed_by("token_")
        )
        given_back = {
            "status": PENDING,
            "claim_token": self.no_token,
            "maybe_sent": true(),
        }  # nobody knows how far it came
        back = self._update_by_id().where(self._is_claimed_by("token_"))
        self._give_back = back.values(given_back)
        self._count_lost = back.values({**given_back, "lost_claims": events.c.lost_claims + 1})
        self._renew = (
            update(claims)
            .where(self._is_one_of(claims.c.token, "ids_"))
            .values(lease_until=wall_time_plus(bindparam("lease_", type_=Float)))
        )
        self._claim_row = select(claims).where(claims.c.token == bindparam("token_", type_=EventId)).with_for_update()
        self._put_back = back.values({"status": PENDING, "claim_token": self.no_token})
        no_claim = ~select(claims.c.token).where(claims.c.token == events.c.claim_token).exists()
        self._orphans = (
            select(events.c.id, events.c.claim_token)
            .where(self._is_open(events), events.c.status == IN_PROCESS, no_claim)
            .limit(bindparam("limit_", type_=Integer))
        )

    def recover(self, connection: Connection, limit: int, longest: float, *, bury: bool = True) -> Recovered:
        """End up to `limit` claims whose lease is over, or that are older than `longest` seconds. No attempt is charged for it.

        A lost claim is counted only where its relay has not been heard of since: a slow one has killed nobody.
        """
        expired = connection.execute(self._expired, {"limit_": limit, "longest_": longest}).all()
        rows, condemned = 0, list[Event]()
        for lost in expired:
            self.end_claim(connection, lost.token)
            found = connection.execute(self._lost, self._where_lost(lost)).all()
            poison = set() if lost.alive else {row.id for row in found if row.lost_claims + 1 >= MOST_LOST}
            if poison:
                condemned += self._condemn(connection, lost.token, sorted(poison), bury=bury)
            ids = [row.id for row in found if row.id not in poison]
            if ids:
                statement = self._give_back if lost.alive else self._count_lost
                rows += connection.execute(statement, {**self._ids(ids), "token_": lost.token}).rowcount
            if ids and not lost.alive:
                self.state.put(connection, SUSPECTS, lost.event_type)
        return Recovered(len(expired), rows, condemned)

    def give_up(self, connection: Connection, token: UUID) -> int:
        """Put back what a claim holds of which its relay never heard, since the answer to its COMMIT was lost: nothing of it was sent."""
        unheard = connection.execute(self._claim_row, {"token_": token}).first()
        if unheard is None:
            return 0
        self.end_claim(connection, token)
        ids = [row.id for row in connection.execute(self._lost, self._where_lost(unheard))]
        return connection.execute(self._put_back, {**self._ids(ids), "token_": token}).rowcount if ids else 0

    def adopt_orphans(self, connection: Connection, limit: int) -> int:
        """Rows whose claim is gone without a word (somebody's DELETE, a restored table) become PENDING; returns how many."""
        orphans = connection.execute(self._orphans, {"limit_": limit}).all()
        rows = 0
        for token in {row.claim_token for row in orphans}:
            ids = [row.id for row in orphans if row.claim_token == token]
            rows += connection.execute(self._give_back, {**self._ids(ids), "token_": token}).rowcount
        return rows

    def renew(self, connection: Connection, tokens: Sequence[UUID], lease: float) -> int:
        """The leases of a relay's batches in flight, all at once."""
        return connection.execute(self._renew, {**self._ids(tokens), "lease_": lease}).rowcount

    def _condemn(self, connection: Connection, token: UUID, ids: list[UUID], *, bury: bool) -> list[Event]:
        error = f"{MOST_LOST} relays died while they held it, the last two while they held nothing else"
        events = [event_of(row) for row in connection.execute(self._read, {**self._ids(ids), "token_": token}).all()]
        buried = [Buried(event.id, event.attempts, KILLS, error, maybe_sent=True) for event in events]
        self.settle(connection, token, Settlement(buried=buried), bury=bury, last=False)
        return events

    def _where_lost(self, lost: Row[Any]) -> dict[str, Any]:
        bounds = {"event_type_": lost.event_type, "first_due_": lost.first_due, "last_due_": lost.last_due}
        return {"token_": lost.token, **bounds}

    def _is_of_lost_claim(self) -> tuple[ColumnElement[bool], ...]:
        """By the due index: the claim says within which times its rows are."""
        events = self.tables.events
        first, last = bindparam("first_due_", type_=UtcTime), bindparam("last_due_", type_=UtcTime)
        return (
            self._is_open(events),
            events.c.event_type == bindparam("event_type_"),
            events.c.next_retry_at.between(first, last),
            self._is_claimed_by("token_"),
        )
