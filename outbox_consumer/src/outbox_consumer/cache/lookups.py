"""How a consumer uses its cache: look before the transaction, remember after its commit, under the epoch of that look.

An id is remembered under the epoch that was in force before its transaction began. So a process that stands still between COMMIT and
cache, while its rows are removed and a new epoch begins, writes what nobody will ask for, and cannot hide an event.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar
from uuid import UUID

from outbox_consumer.cache.base import Cache, immediate_part
from outbox_consumer.cache.epoch import Epoch

log = logging.getLogger(__name__)

R = TypeVar("R")

NOTHING: frozenset[UUID] = frozenset()


@dataclass(frozen=True, slots=True)
class Look:
    """What a cache knew of a message or a batch."""

    known: Collection[UUID] = NOTHING
    scope: str | None = None
    """Under which it was asked, `<epoch>:<consumer>`; None where it was not."""

    @property
    def was_asked(self) -> bool:
        return self.scope is not None


NO_LOOK = Look()


class ConsumerCache:
    """One consumer's way to its cache, under its name and in the epoch of its database. Without a cache it knows nothing, at no cost."""

    def __init__(self, cache: Cache | None, consumer: str, epoch: Epoch) -> None:
        self._cache, self._consumer, self._epoch = cache, consumer, epoch
        self._has_failed = False

    # Sync consumers.

    def look(self, ids: Collection[UUID]) -> Look:
        """Before the transaction."""
        if self._cache is None or not ids:
            return NO_LOOK
        scope = self._scope(self._epoch.current())
        return NO_LOOK if scope is None else Look(self._known(self._cache, scope, ids), scope)

    def remember(self, look: Look, ids: Collection[UUID]) -> None:
        """After the outermost COMMIT has returned: what was consumed, and what the database said is a duplicate."""
        if self._cache is not None and look.scope is not None and ids:
            self._remember(self._cache, look.scope, ids)

    def forget(self, ids: Collection[UUID]) -> None:
        """From this process and from Redis. What other processes remember goes with the next epoch."""
        cache, scope = self._cache, self._scope(None if self._cache is None else self._epoch.current())
        if cache is not None and scope is not None:
            self._safely(lambda: cache.forget(scope, ids), None)

    # Async consumers: what needs no I/O at once, the rest in a thread. A task that is cancelled leaves its thread to read the answer.

    async def look_async(self, ids: Collection[UUID]) -> Look:
        cache = self._cache
        if cache is None or not ids:
            return NO_LOOK
        scope = self._scope(await self._epoch.current_async())
        if scope is None:
            return NO_LOOK
        near = immediate_part(cache)
        found = NOTHING if near is None else self._known(near, scope, ids)
        if near is not cache and len(found) < len(ids):
            found = await _in_a_thread(lambda: self._known(cache, scope, ids))
        return Look(found, scope)

    async def remember_async(self, look: Look, ids: Collection[UUID]) -> None:
        cache, scope = self._cache, look.scope
        if cache is None or scope is None or not ids:
            return
        if immediate_part(cache) is cache:
            self._remember(cache, scope, ids)
        else:
            await _in_a_thread(lambda: self._remember(cache, scope, ids))

    def close(self) -> None:
        cache = self._cache
        if cache is not None:
            self._safely(cache.close, None)

    def _scope(self, epoch: str | None) -> str | None:
        return None if epoch is None else f"{epoch}:{self._consumer}"

    def _known(self, cache: Cache, scope: str, ids: Collection[UUID]) -> Collection[UUID]:
        return self._safely(lambda: cache.known(scope, ids), NOTHING)

    def _remember(self, cache: Cache, scope: str, ids: Collection[UUID]) -> None:
        self._safely(lambda: cache.remember(scope, ids), None)

    def _safely(self, call: Callable[[], R], otherwise: R) -> R:
        """Caches do not raise; one that somebody else wrote may."""
        try:
            return call()
        except Exception:
            if not self._has_failed:
                self._has_failed = True
                log.exception("a cache of type %s raised, which none may; told once", type(self._cache).__name__)
            return otherwise


_THREADS = 4  # each waits for Redis one short timeout at most
_executors: dict[int, ThreadPoolExecutor] = {}


async def _in_a_thread(work: Callable[[], R]) -> R:
    """In a pool of our own: the loop's may be full of what the application does there."""
    pid = os.getpid()  # a forked child has no threads
    if pid not in _executors:
        _executors[pid] = ThreadPoolExecutor(_THREADS, "outbox-cache")
    return await asyncio.get_running_loop().run_in_executor(_executors[pid], work)
