"""A transaction that the database broke off for another one's sake (a deadlock and the like) changed nothing: it is run again at once.

Nobody is charged for it, neither the events with an attempt nor the loop with a pause.
"""

import logging
import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol, TypeAlias, TypeVar

from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DBAPIError

from outbox_shared.clock import Clock
from outbox_shared.sqlite import READS_ONLY

log = logging.getLogger(__name__)

Result = TypeVar("Result")
Within: TypeAlias = Callable[[Connection], AbstractContextManager[object]]

RETRIES = 5
_FIRST_PAUSE = 0.01


class Manners(Protocol):
    """What a store knows about transactions of its database."""

    def is_conflict(self, error: DBAPIError) -> bool:
        """Whether the database broke the transaction off for another one's sake: run again it may pass."""

    def limit_transaction(self, connection: Connection, seconds: float, *, own: bool) -> None:
        """Let the server end this transaction if its process stands still in it for so long. `own`: nobody else uses the session."""


class Transactions:
    """Runs a piece of work in a transaction of its own. What is not a conflict, or happens once too often, is the caller's.

    `longest`: seconds for which this process may stand still in one, before the server ends it and frees its locks. `own`: the engine
    is nobody else's. `keeps`: one thread alone uses this, and keeps its connection from one transaction to the next, since a pool asks the
    server at each checkout whether it is still there.
    """

    def __init__(
        self,
        engine: Engine,
        store: Manners,
        clock: Clock,
        longest: float = 30.0,
        *,
        own: bool = False,
        keeps: bool = False,
    ) -> None:
        self._engine, self._store, self._clock = engine, store, clock
        self._longest, self._own = longest, own
        self._keeps = keeps
        self._kept: Connection | None = None

    def close(self) -> None:
        """Give back the connection that was kept."""
        kept, self._kept = self._kept, None
        if kept is not None:
            kept.close()

    def run(self, work: Callable[[Connection], Result], *, within: Within = nullcontext) -> Result:
        """`within`: a block around the work, in the transaction."""
        for retry in range(RETRIES):
            try:
                return self._once(work, within)
            except DBAPIError as error:
                if not self._store.is_conflict(error):
                    raise
                log.info("a transaction met another one and is run again: %s", error.orig)
            # at random, so that those who met do not meet again
            self._clock.sleep(random.uniform(0, _FIRST_PAUSE * 2.0**retry))
        return self._once(work, within)

    def read(self, work: Callable[[Connection], Result]) -> Result:
        """A look that changes nothing, and never takes SQLite's write lock."""
        with self._connection() as connection:
            connection.execution_options(**{READS_ONLY: True})
            with connection.begin():
                return work(connection)

    def _once(self, work: Callable[[Connection], Result], within: Within) -> Result:
        with self._connection() as connection:
            connection.execution_options(**{READS_ONLY: False})
            with connection.begin(), within(connection):
                self._store.limit_transaction(connection, self._longest, own=self._own)
                return work(connection)

    @contextmanager
    def _connection(self) -> Iterator[Connection]:
        if not self._keeps:
            with self._engine.connect() as connection:
                yield connection
            return
        if self._kept is None:
            self._kept = self._engine.connect()
        try:
            yield self._kept
        except BaseException:  # whatever it was: the next one comes from the pool, and has been asked whether it lives
            self.close()
            raise
