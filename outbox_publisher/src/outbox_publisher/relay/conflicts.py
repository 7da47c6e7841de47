"""A transaction that the database broke off for another one's sake (a deadlock and the like) changed nothing: it is run again at once.

Nobody is charged for it, neither the events with an attempt nor the loop with a pause.
"""

import logging
import random
from collections.abc import Callable
from typing import TypeVar

from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DBAPIError

from outbox_publisher.store import EventStore
from outbox_shared.clock import Clock

log = logging.getLogger(__name__)

Result = TypeVar("Result")

RETRIES = 5
_FIRST_PAUSE = 0.01


class Transactions:
    """Runs a piece of work in a transaction of its own. What is not a conflict, or happens once too often, is the caller's.

    `longest`: seconds for which this process may stand still in one, before the server ends it and frees its locks. `own`: the engine
    is nobody else's.
    """

    def __init__(
        self, engine: Engine, store: EventStore, clock: Clock, longest: float = 30.0, *, own: bool = False
    ) -> None:
        self._engine, self._store, self._clock = engine, store, clock
        self._longest, self._own = longest, own

    def run(self, work: Callable[[Connection], Result]) -> Result:
        for retry in range(RETRIES):
            try:
                return self._once(work)
            except DBAPIError as error:
                if not self._store.is_conflict(error):
                    raise
                log.info("a transaction met another one and is run again: %s", error.orig)
            # at random, so that those who met do not meet again
            self._clock.sleep(random.uniform(0, _FIRST_PAUSE * 2.0**retry))
        return self._once(work)

    def _once(self, work: Callable[[Connection], Result]) -> Result:
        with self._engine.begin() as connection:
            self._store.limit_transaction(connection, self._longest, own=self._own)
            return work(connection)
