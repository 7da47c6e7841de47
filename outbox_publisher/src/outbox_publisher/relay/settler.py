"""Settle, come what may: what the broker has acknowledged should not be sent again because the database blinked.

In bulk first, together with the next claim. A settle that fails for another reason than the connection is repeated with the delivered
rows first and alone, and then the rest row by row: one bad row must not hold its neighbours. Dead letters are told of after the commit,
once at most.
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from uuid import UUID, uuid4

from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from outbox_publisher.claims import Batch, Claimed, ClaimStrategy
from outbox_publisher.event import Event
from outbox_publisher.relay.turn import Turn
from outbox_publisher.store import Buried, Delivered, EventStore, Rescheduled, Rows, Settled, Settlement
from outbox_shared.clock import Clock
from outbox_shared.conflicts import Transactions

log = logging.getLogger(__name__)

DeadLetterHook = Callable[[list[Event]], None]


Claim = Callable[[Connection, UUID], Claimed]
"""Claims under the token that it is given."""


@dataclass(frozen=True, slots=True)
class Landed:
    """A batch of which every event has its answer, and what is to become of them."""

    batch: Batch
    fate: Settlement
    lease_ends: float
    unavailable: bool = False


class Settler:
    def __init__(
        self,
        transactions: Transactions,
        store: EventStore,
        claims: ClaimStrategy,
        hook: DeadLetterHook,
        clock: Clock,
        stopping: Callable[[], bool],
        *,
        own: bool,
    ) -> None:
        """`own`: the engine is nobody else's. Who gave us one may want to see each statement."""
        self._transactions, self._store, self._claims = transactions, store, claims
        self.overlaps = own and store.leaves_at_once
        """Whether there is time for other things while the database is busy."""
        self._hook, self._clock, self._stopping = hook, clock, stopping
        self._unheard: list[UUID] = []

    def exchange(
        self, landed: Sequence[Landed], claim: Claim | None, meanwhile: Callable[[], object], *, plain: bool = True
    ) -> tuple[Turn, Batch | None]:
        """Settle what has landed and claim what goes next, in one transaction: a commit less for every batch.

        Where that fails the settles come first, each for itself and patiently; the claim is for the next time. It may have been committed
        all the same, so what it then holds is put back. `plain`: the claim asks nothing before it takes its rows. `meanwhile` may be
        done while the database is busy.
        """
        token = uuid4()
        at_once = self.overlaps and plain and not self._unheard and not any(one.fate.buried for one in landed)
        try:
            settled, claimed = self._transactions.run(
                lambda it: self._together(it, landed, claim, token),
                within=partial(self._store.at_once, meanwhile=meanwhile) if at_once else nullcontext,
            )
        except SQLAlchemyError:
            if claim is not None:
                self._unheard.append(token)
            if not landed:
                raise
            settled, batch = [self._settle(one) for one in landed], None
        else:
            self._unheard.clear()
            batch = claimed()
        turn = Turn()
        for one, found in zip(landed, settled, strict=True):
            moved = set(found.moved)
            if moved:
                tell(self._hook, [event for event in one.batch.events if event.id in moved])
            turn += _told(one, found)
        return turn, batch

    @property
    def has_unheard(self) -> bool:
        """Whether claims may have been made of which we do not know."""
        return bool(self._unheard)

    def _together(
        self, connection: Connection, landed: Sequence[Landed], claim: Claim | None, token: UUID
    ) -> tuple[list[Settled], Claimed]:
        settled = [self._claims.settle(connection, one.batch, one.fate) for one in landed]
        for unheard in self._unheard:
            self._store.give_up(connection, unheard)
        return settled, claim(connection, token) if claim else lambda: None

    def _settle(self, landed: Landed) -> Settled:
        """Tried again while the database is away. The token says whether the rows are ours, not the lease: while nobody can reach the
        database, nobody can take them.
        """
        batch, wait = landed.batch, 0.1
        pieces: Pieces | None = None
        while True:
            try:
                if pieces is not None:
                    return self._piece_by_piece(batch, pieces)
                return self._transactions.run(lambda it: self._claims.settle(it, batch, landed.fate))
            except DBAPIError as error:
                if pieces is None and not self._is_passing(error):
                    count, why = len(batch.events), database_error(error)
                    log.warning("settling %d %s events one by one: %s", count, batch.event_type, why)
                    pieces = Pieces.of(landed.fate)
                    continue
                self._give_up_or_wait(batch, error, wait, landed.lease_ends)
            except SQLAlchemyError as error:  # no connection out of the pool in time, and the like
                self._give_up_or_wait(batch, error, wait, landed.lease_ends)
            self._clock.sleep(wait)
            wait = min(wait * 2, 2.0)

    def _is_passing(self, error: DBAPIError) -> bool:
        """Nothing is wrong with what we asked."""
        return self._store.is_away(error) or self._store.is_conflict(error)

    def _give_up_or_wait(self, batch: Batch, error: SQLAlchemyError, wait: float, lease_ends: float) -> None:
        if self._stopping() and self._clock.monotonic() + wait >= lease_ends:
            raise error
        count, why = len(batch.events), database_error(error)
        log.warning("settling %d %s events again in %.1f s: %s", count, batch.event_type, wait, why)

    def _piece_by_piece(self, batch: Batch, pieces: "Pieces") -> Settled:
        """What cannot be written even alone keeps its claim, and comes back when the lease is over. Goes on where it was interrupted."""
        while pieces.left:
            piece = pieces.left[0]
            settled = self._try(batch, piece)
            if settled is None and len(piece.delivered) > 1:
                pieces.left.popleft()
                pieces.left.extendleft(Settlement(delivered=[row]) for row in reversed(piece.delivered))
                continue
            pieces.note(settled or self._try(batch, _plainer(piece)))
        if not pieces.refused:
            self._transactions.run(lambda it: self._store.end_claim(it, batch.token))
        return Settled([Rows(pieces.changed)], pieces.moved)

    def _try(self, batch: Batch, piece: Settlement) -> Settled | None:
        try:
            return self._transactions.run(lambda it: self._claims.settle(it, batch, piece, last=False))
        except DBAPIError as error:
            if self._is_passing(error):
                raise
            log.error("a %s event cannot be settled: %s", batch.event_type, database_error(error))  # noqa: TRY400
            return None


@dataclass(slots=True)
class Pieces:
    """A batch's fate in pieces, and what has become of them: delivered rows first and together, since to lose those costs most."""

    left: deque[Settlement]
    changed: int = 0
    moved: list[UUID] = field(default_factory=list)
    refused: int = 0

    @classmethod
    def of(cls, fate: Settlement) -> "Pieces":
        delivered = [Settlement(delivered=fate.delivered)] if fate.delivered else []
        later = (Settlement(rescheduled=[row]) for row in fate.rescheduled)
        return cls(deque([*delivered, *later, *(Settlement(buried=[row]) for row in fate.buried)]))

    def note(self, settled: Settled | None) -> None:
        """What became of the first of them."""
        self.left.popleft()
        if settled is None:
            self.refused += 1
        else:
            self.changed += settled.changed
            self.moved += settled.moved


def _told(landed: Landed, settled: Settled) -> Turn:
    batch, fate = landed.batch, landed.fate
    fenced = len(batch.events) - settled.changed
    if fenced:
        log.warning("%d %s events were no longer ours to settle", fenced, batch.event_type)
    return Turn(
        delivered=len(fate.delivered),
        rescheduled=len(fate.rescheduled),
        buried=len(fate.buried),
        fenced=fenced,
        unavailable=landed.unavailable,
    )


def _plainer(piece: Settlement) -> Settlement:
    """The same fate without what a broker said, which is all that a database can have taken offence at."""
    said = "(its error could not be stored)"
    return Settlement(
        delivered=[Delivered(row.id) for row in piece.delivered],
        rescheduled=[Rescheduled(row.id, row.attempts, row.delay, said, row.maybe_sent) for row in piece.rescheduled],
        buried=[Buried(row.id, row.attempts, row.reason, said, row.maybe_sent) for row in piece.buried],
    )


def tell(hook: DeadLetterHook, events: list[Event]) -> None:
    """Call the hook; its own failure is its author's, and harmless to us."""
    if not events:
        return
    try:
        hook(events)
    except Exception:
        log.exception("the dead-letter hook failed on %d events", len(events))


def log_dead_letters(events: list[Event]) -> None:
    """The hook where none is given."""
    for event in events:
        log.error("dead letter: event %s of type %s for %s", event.id, event.event_type, event.topic)


def database_error(error: SQLAlchemyError) -> str:
    """For the log: what the database said, without the statement and its parameters."""
    return str(getattr(error, "orig", None) or error).strip()
