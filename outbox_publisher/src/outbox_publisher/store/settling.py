"""Settle: the fate of a whole batch in one transaction, fenced by its token. A relay that lost its rows changes nothing."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import UUID

from sqlalchemy import (
    BigInteger,
    Boolean,
    Double,
    Integer,
    SmallInteger,
    Text,
    bindparam,
    case,
    delete,
    func,
    or_,
    true,
)
from sqlalchemy.engine import Connection

from outbox_publisher.store.bulk import BulkUpdate
from outbox_publisher.store.changes import Settlement
from outbox_publisher.store.dead_letters import DeadLetters
from outbox_publisher.store.hot import Changed
from outbox_publisher.store.statements import FAILED, PENDING, PROCESSED, Statements
from outbox_shared.sqltypes import EventId, wall_time, wall_time_plus
from outbox_shared.tables import TableNames


@dataclass(frozen=True, slots=True)
class Settled:
    """How many rows were still this claim's, and which of them went to the dead letters. To be read when the statements are over."""

    changes: Sequence[Changed]
    moved: list[UUID] = field(default_factory=list)

    @property
    def changed(self) -> int:
        return sum(one.rowcount for one in self.changes)


class Settling(Statements):
    def __init__(self, names: TableNames) -> None:
        super().__init__(names)
        claims = self.tables.claims
        self._end_claim = self._hot(delete(claims).where(claims.c.token == bindparam("token_", type_=EventId)))
        self._drop_delivered = self._deletes(self.tables.events)
        self._deliver = self._delivered()
        self._reschedule = self._rescheduled()
        self._fail, self._leave = self._failed(keep_token=True), self._failed(keep_token=False)
        self.dead_letters = DeadLetters(self.tables, self._upsert, self._insert_absent, self._deletes, self._is_one_of)

    def settle(
        self,
        connection: Connection,
        token: UUID,
        fate: Settlement,
        *,
        keep: bool = True,
        bury: bool = True,
        last: bool = True,
    ) -> Settled:
        """`keep`: delivered rows stay until cleanup. `bury`: failed ones go to the dead letters. `last`: the claim ends with these.

        The claim row is touched first, as in recovery: transactions that take their locks in one order cannot deadlock.
        """
        if last:
            self.end_claim(connection, token)
        changes, moved = list[Changed](), list[UUID]()
        if fate.delivered and keep:
            changes.append(self._deliver.run(connection, token, fate.delivered))
        elif fate.delivered:
            changes.append(self._drop_delivered.run(connection, [row.id for row in fate.delivered], token))
        if fate.rescheduled:
            changes.append(self._reschedule.run(connection, token, fate.rescheduled))
        if fate.buried:
            failed = [(row.id, row.attempts, row.error, row.maybe_sent) for row in fate.buried]
            changes.append((self._fail if bury else self._leave).run(connection, token, failed))
            moved = self.dead_letters.bury(connection, token, fate.buried) if bury else []
        return Settled(changes, moved)

    def end_claim(self, connection: Connection, token: UUID) -> None:
        self._end_claim.change(connection, {"token_": token})

    def _delivered(self) -> BulkUpdate:
        events = self.tables.events
        return self._bulk(
            {"id": EventId(), "partition": Integer(), "offset": BigInteger()},
            lambda given: {
                "status": PROCESSED,
                "processed_at": wall_time(),
                "claim_token": self.no_token,
                # without a position they stay what they were from the start, which is each database's own "none"
                "broker_partition": func.coalesce(given["partition"], events.c.broker_partition),
                "broker_offset": func.coalesce(given["offset"], events.c.broker_offset),
            },
        )

    def _rescheduled(self) -> BulkUpdate:
        events = self.tables.events
        return self._bulk(
            {"id": EventId(), "attempts": SmallInteger(), "delay": Double(), "error": Text(), "maybe_sent": Boolean()},
            lambda given: {
                "status": PENDING,
                "claim_token": self.no_token,
                "attempts": given["attempts"],
                "next_retry_at": case(
                    (given["delay"].is_(None), events.c.next_retry_at), else_=wall_time_plus(given["delay"])
                ),
                "last_error": func.coalesce(given["error"], events.c.last_error),
                "maybe_sent": or_(events.c.maybe_sent, given["maybe_sent"]),
            },
        )

    def _failed(self, *, keep_token: bool) -> BulkUpdate:
        """The token stays where the rows move on: it is how the move into the dead letters finds them."""
        events = self.tables.events
        freed = {} if keep_token else {"claim_token": self.no_token}
        return self._bulk(
            {"id": EventId(), "attempts": SmallInteger(), "error": Text(), "maybe_sent": Boolean()},
            lambda given: {
                **freed,
                "status": FAILED,
                "failed": true(),
                "processed_at": wall_time(),
                "attempts": given["attempts"],
                "last_error": given["error"],
                "maybe_sent": or_(events.c.maybe_sent, given["maybe_sent"]),
            },
        )
