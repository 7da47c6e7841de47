"""One database's cleaning: consumed rows, and what was counted of failures that nobody came back for."""

import logging
import os
import socket
from collections.abc import Callable
from datetime import datetime
from uuid import uuid4

from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from outbox_consumer.store.upkeep import Expired, upkeep_for
from outbox_consumer.store.upkeep.base import LEASE
from outbox_consumer.store.upkeep.expired import BEGINNING
from outbox_shared.cleanup import Cleanup
from outbox_shared.clock import Clock
from outbox_shared.conflicts import Transactions
from outbox_shared.lease import Lease
from outbox_shared.settings import CleanUpSettings
from outbox_shared.tables import TableNames, is_missing_table

log = logging.getLogger(__name__)

REST = 2.0
"""Between two batches, in times of what a batch took: where the database is slow it rests longer. On two cores two busy consumers keep 0.85
of their rate beside it, and 0.7 beside one that rests for half as long as it works.
"""
FROM_THE_START = 60.0
"""Seconds after which a look begins at the oldest row again."""

Tell = Callable[[int], None]


class Memory:
    """Where the last batch ended. A row that was committed late stands before that place, and so does a batch whose commit failed: they
    are found within a minute.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._behind, self._until = BEGINNING, 0.0

    def behind(self) -> datetime:
        if self._clock.monotonic() >= self._until:
            self._behind, self._until = BEGINNING, self._clock.monotonic() + FROM_THE_START
        return self._behind

    def ended_at(self, last: datetime | None) -> None:
        self._behind = self._behind if last is None else last


class Cleaning:
    """A duty, done by whoever holds the lease. `engine` gives None once nobody wants it done any more: then even a run ends early."""

    name = LEASE

    def __init__(
        self,
        engine: Callable[[], Engine | None],
        names: TableNames,
        settings: Callable[[], CleanUpSettings],
        clock: Clock,
        tell: Tell,
    ) -> None:
        self._engine, self._names, self._settings, self._clock, self._tell = engine, names, settings, clock, tell
        self._events, self._attempts = Memory(clock), Memory(clock)
        self._holder = f"consumer@{socket.gethostname()}:{os.getpid()}:{uuid4().hex[:8]}"

    def run_once(self) -> int:
        """Some of what is due; returns how many rows went."""
        engine = self._engine()
        if engine is None:
            return 0
        pool = engine.pool
        try:
            return sum(part.run_once() for part in self._parts(engine))
        finally:
            if (
                engine.pool is not pool
            ):  # the engine was disposed of meanwhile: leave no connection of ours in either pool
                pool.dispose()
                engine.pool.dispose()

    def run_to_the_end(self) -> tuple[int, int]:
        """All that is due: how many consumed rows, and how many rows of failures."""
        engine = self._engine()
        if engine is None:
            return 0, 0
        events, attempts = (part.run_to_the_end() for part in self._parts(engine))
        return events, attempts

    def _parts(self, engine: Engine) -> list[Cleanup]:
        upkeep = upkeep_for(engine.dialect.name, self._names)
        transactions = Transactions(upkeep.engine_for(engine), upkeep, self._clock)
        lease = Lease(transactions.run, upkeep.state, LEASE, self._holder)
        return [
            self._part(engine, transactions, lease, upkeep.expired_events, self._events, self._tell),
            self._part(engine, transactions, lease, upkeep.expired_attempts, self._attempts, lambda _count: None),
        ]

    def _part(
        self, engine: Engine, transactions: Transactions, lease: Lease, expired: Expired, memory: Memory, tell: Tell
    ) -> Cleanup:
        def is_due(connection: Connection, ttl: float) -> bool:
            return expired.any(connection, ttl, memory.behind())

        def drop(connection: Connection, ttl: float, limit: int) -> int:
            if self._engine() is not engine:  # its last consumer has closed, and waits for us
                return 0
            dropped = expired.drop(connection, ttl, limit, memory.behind())
            memory.ended_at(dropped.last)
            return dropped.count

        settings = self._settings()
        return Cleanup(LEASE, transactions, is_due, drop, settings, lease, self._clock, rest=REST, tell=tell)


class Undisturbed:
    """A duty that goes on whatever happens, and says what is wrong once, not every five seconds."""

    name = LEASE

    def __init__(self, cleaning: Cleaning) -> None:
        self._cleaning = cleaning
        self._said: str | None = None

    def run_once(self) -> int:
        try:
            done = self._cleaning.run_once()
        except PoolTimeoutError:  # the application's pool is in use, all of it
            log.debug("no connection was free to clean up consumed rows; later")
            return 0
        except Exception as error:  # noqa: BLE001 - whatever it is, consuming goes on
            self._say(_what_is_wrong(error))
            return 0
        if self._said is not None:
            log.info("consumed rows are cleaned up again")
            self._said = None
        return done

    def _say(self, what: str) -> None:
        log.log(logging.DEBUG if what == self._said else logging.WARNING, "consumed rows are not cleaned up: %s", what)
        self._said = what


def _what_is_wrong(error: Exception) -> str:
    """What the database said, without the statement and its parameters."""
    first = str(getattr(error, "orig", None) or error).strip().partition("\n")[0]
    if is_missing_table(error):
        return f"{first}; run `outbox-consumer init-db` once, with a role that may create tables"
    return first if isinstance(error, SQLAlchemyError) else f"{type(error).__name__}: {first}"
