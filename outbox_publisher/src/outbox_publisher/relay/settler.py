"""Settle, come what may: what the broker has acknowledged should not be sent again because the database blinked.

In bulk first. A settle that fails for another reason than the connection is repeated with the delivered rows first and alone, and then
the rest row by row: one bad row must not hold its neighbours. Dead letters are told of after the commit, once at most.
"""

import logging
from collections.abc import Callable, Iterator
from uuid import UUID

from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from outbox_publisher.claims import Batch, ClaimStrategy
from outbox_publisher.event import Event
from outbox_publisher.relay.conflicts import Transactions
from outbox_publisher.store import Buried, Delivered, EventStore, Rescheduled, Settled, Settlement
from outbox_shared.clock import Clock

log = logging.getLogger(__name__)

DeadLetterHook = Callable[[list[Event]], None]


class Settler:
    def __init__(
        self,
        transactions: Transactions,
        store: EventStore,
        claims: ClaimStrategy,
        hook: DeadLetterHook,
        clock: Clock,
        stopping: Callable[[], bool],
    ) -> None:
        self._transactions, self._store, self._claims = transactions, store, claims
        self._hook, self._clock, self._stopping = hook, clock, stopping

    def settle(self, batch: Batch, fate: Settlement, lease_ends: float) -> int:
        """Returns how many rows were still ours.

        Tried again while the database is away. The token says whether the rows are ours, not the lease: while nobody can reach the
        database, nobody can take them.
        """
        wait = 0.1
        while True:
            try:
                settled = self._transactions.run(lambda it: self._claims.settle(it, batch, fate))
            except DBAPIError as error:
                if not self._store.is_away(error) and not self._store.is_conflict(error):
                    log.warning(
                        "settling %d %s events one by one: %s",
                        len(batch.events),
                        batch.event_type,
                        database_error(error),
                    )
                    return self._piece_by_piece(batch, fate)
                self._give_up_or_wait(batch, error, wait, lease_ends)
            except SQLAlchemyError as error:  # no connection out of the pool in time, and the like
                self._give_up_or_wait(batch, error, wait, lease_ends)
            else:
                tell(self._hook, [event for event in batch.events if event.id in set(settled.moved)])
                return settled.changed
            self._clock.sleep(wait)
            wait = min(wait * 2, 2.0)

    def _give_up_or_wait(self, batch: Batch, error: SQLAlchemyError, wait: float, lease_ends: float) -> None:
        if self._stopping() and self._clock.monotonic() + wait >= lease_ends:
            raise error
        count, why = len(batch.events), database_error(error)
        log.warning("settling %d %s events again in %.1f s: %s", count, batch.event_type, wait, why)

    def _piece_by_piece(self, batch: Batch, fate: Settlement) -> int:
        """What cannot be written even alone keeps its claim, and comes back when the lease is over."""
        changed, moved, left = 0, list[UUID](), 0
        for piece in pieces(fate):
            settled = self._try(batch, piece)
            if settled is None and len(piece.delivered) > 1:
                for row in piece.delivered:
                    one = self._try(batch, Settlement(delivered=[row]))
                    left += one is None
                    changed += 0 if one is None else one.changed
                continue
            if settled is None:
                settled = self._try(batch, _plainer(piece))
            if settled is None:
                left += 1
            else:
                changed += settled.changed
                moved += settled.moved
        if not left:
            self._transactions.run(lambda it: self._store.end_claim(it, batch.token))
        tell(self._hook, [event for event in batch.events if event.id in set(moved)])
        return changed

    def _try(self, batch: Batch, piece: Settlement) -> Settled | None:
        try:
            return self._transactions.run(lambda it: self._claims.settle(it, batch, piece, last=False))
        except DBAPIError as error:
            if self._store.is_away(error):
                raise
            log.error("a %s event cannot be settled: %s", batch.event_type, database_error(error))  # noqa: TRY400
            return None


def pieces(fate: Settlement) -> Iterator[Settlement]:
    """Delivered rows first and together, since to lose those costs most; the rest alone."""
    if fate.delivered:
        yield Settlement(delivered=fate.delivered)
    for later in fate.rescheduled:
        yield Settlement(rescheduled=[later])
    for failed in fate.buried:
        yield Settlement(buried=[failed])


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
