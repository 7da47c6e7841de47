"""The epoch: what every cache's keys begin with. It lives in the database, so that one command makes every cache forget.

A database that was restored from a backup, or made anew, has lost rows that caches still know: they would hide events. So each database
has an epoch of its own, a random word in outbox_state, made by the first who looks for it. `next_epoch` writes another one, and no cache
is asked under the old one any more. A number that is counted up would not do: a restore takes it back, and the next one was used before.

A process believes what it has read for VALID seconds, and reads again before they are over. A hit costs no statement, and yet a new
epoch is obeyed everywhere VALID seconds after its commit: where the database cannot be read any more, the cache is not asked either.
"""

import logging
import os
import secrets
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sqlalchemy import MetaData
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.util import greenlet_spawn  # what run_sync itself is made of

from outbox_consumer.binds import shares_connections
from outbox_shared.clock import Clock, SystemClock
from outbox_shared.sqlite import READS_ONLY
from outbox_shared.state import EPOCH, State
from outbox_shared.tables import TableNames, outbox_state

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

log = logging.getLogger(__name__)

VALID = 10.0
READ_AGAIN = 5.0
AFTER_FAILURE = 1.0

_NAME = "cache"
_DEFAULT_NAMES = TableNames()


def current_epoch(connection: Connection, names: TableNames = _DEFAULT_NAMES) -> str | None:
    """What stands in the database; None as long as nobody has used a cache with it."""
    return _state(connection, names).value(connection, EPOCH, _NAME)


def next_epoch(connection: Connection, names: TableNames = _DEFAULT_NAMES) -> str:
    """Write a new one, in the caller's transaction. VALID seconds after its commit no cache knows any id of before."""
    epoch = _new()
    _state(connection, names).put(connection, EPOCH, _NAME, value=epoch)
    return epoch


def read_epoch(engine: Engine, names: TableNames) -> str | None:
    """What stands there, on a connection of its own; the first who looks writes it. None if the row went away meanwhile."""
    for _ in range(2):
        with engine.connect() as connection:
            found = current_epoch(connection.execution_options(**{READS_ONLY: True}), names)
        if found is not None:
            return found
        with engine.begin() as connection:
            _state(connection, names).put_first(connection, EPOCH, _NAME, _new())
    return None


def engine_beside(bind: "Engine | Connection | None") -> Engine | None:
    """The engine on which the epoch may be read beside the consumer's transactions; None where it would be read inside of one.

    A Connection's transaction is its owner's, and so is that of a pool with one connection for all.
    """
    return bind if isinstance(bind, Engine) and not shares_connections(bind) else None


class Epoch:
    """What one process knows of the epoch of one database. Thread-safe; `engine_of` is asked for the Engine when it is read."""

    def __init__(
        self,
        engine_of: "Callable[[], Engine | AsyncEngine | None]",
        names: TableNames = _DEFAULT_NAMES,
        clock: Clock = SystemClock(),  # noqa: B008 - no state
    ) -> None:
        self._engine_of, self._names, self._now = engine_of, names, clock.monotonic
        self._begin()
        _all.add(self)

    def _begin(self) -> None:
        self._value: str | None = None
        self._valid_until = self._read_at = float("-inf")
        self._reading = threading.Lock()  # one reads; the others go on with what is known
        self._is_silent = False

    def current(self) -> str | None:
        """The epoch in force; None where it cannot be known, and no cache may be asked. Never raises."""
        if self._begin_reading():
            began = self._now()
            try:
                engine: Any = self._engine_of()
                self._read(None if engine is None else read_epoch(engine, self._names), began)
            except Exception as error:  # noqa: BLE001 - if the database is away, its own statements will say so
                self._failed(error)
            finally:
                self._reading.release()
        return self._in_force()

    async def current_async(self) -> str | None:
        """The same for an AsyncEngine."""
        if self._begin_reading():
            began = self._now()
            try:
                engine: Any = self._engine_of()
                read = None if engine is None else await greenlet_spawn(read_epoch, engine.sync_engine, self._names)
                self._read(read, began)
            except Exception as error:  # noqa: BLE001
                self._failed(error)
            finally:
                self._reading.release()
        return self._in_force()

    def _begin_reading(self) -> bool:
        return self._now() >= self._read_at and self._reading.acquire(blocking=False)

    def _in_force(self) -> str | None:
        return self._value if self._now() < self._valid_until else None

    def _read(self, value: str | None, began: float) -> None:
        """`began`: before the statement was sent, since what it saw may have changed while its answer was under way."""
        self._value, self._valid_until, self._read_at = value, began + VALID, began + READ_AGAIN
        self._is_silent = False

    def _failed(self, error: Exception) -> None:
        self._read_at = self._now() + AFTER_FAILURE
        if not self._is_silent:
            self._is_silent = True
            reason = str(error).strip().partition("\n")[0]
            log.warning("the epoch of the caches cannot be read, so no cache is asked: %s", reason)


def _state(connection: Connection, names: TableNames) -> State:
    return State(outbox_state(MetaData(), names, connection.dialect.name))


def _new() -> str:
    return secrets.token_hex(4)


_all: "weakref.WeakSet[Epoch]" = weakref.WeakSet()


def _after_fork() -> None:
    for epoch in list(_all):
        epoch._begin()  # noqa: SLF001 - of this module; its lock may be another thread's for ever


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
