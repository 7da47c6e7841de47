"""The nearest cache: ids in this process's own memory, bounded by time and number."""

import os
import threading
import weakref
from collections.abc import Collection
from datetime import timedelta
from uuid import UUID

from cachetools import TTLCache

from outbox_consumer.arguments import duration_of
from outbox_shared.clock import Clock, SystemClock
from outbox_shared.errors import ConfigurationError
from outbox_shared.settings import SHORTEST

DEFAULT_SIZE = 100_000


class InProcessCache:
    """Remembers the `size` ids that were used last, each for `ttl`. Thread-safe; a forked child begins with an empty one."""

    def __init__(
        self,
        *,
        ttl: "timedelta | str" = "1h",
        size: int = DEFAULT_SIZE,
        clock: Clock = SystemClock(),  # noqa: B008 - no state
    ) -> None:
        if size < 1:
            raise ConfigurationError(f"size: a cache has room for one id or more, not {size}")
        self.ttl = duration_of("ttl", ttl, at_least=SHORTEST)
        self._size, self._now = size, clock.monotonic
        self._begin()
        _all.add(self)

    def _begin(self) -> None:
        # after a fork the lock may be another thread's for ever, and the entries half written
        self._lock = threading.Lock()
        self._entries: TTLCache[tuple[str, int], bool] = TTLCache(self._size, self.ttl.total_seconds(), self._now)

    @property
    def immediate(self) -> "InProcessCache":
        return self

    def known(self, consumer: str, ids: Collection[UUID]) -> set[UUID]:
        found, entries = set(), self._entries
        with self._lock, entries.timer:  # one look at the clock for all of them
            for event_id in ids:
                try:
                    entries[consumer, event_id.int]  # unlike `in`, this makes it the one that was used last
                except KeyError:
                    continue
                found.add(event_id)
        return found

    def remember(self, consumer: str, ids: Collection[UUID]) -> None:
        with self._lock:
            for event_id in ids:
                self._entries[consumer, event_id.int] = True

    def forget(self, consumer: str, ids: Collection[UUID]) -> None:
        with self._lock:
            for event_id in ids:
                self._entries.pop((consumer, event_id.int), None)

    def close(self) -> None:
        with self._lock:
            self._entries.clear()

    def __len__(self) -> int:
        with self._lock:
            return len(self._entries)


_all: "weakref.WeakSet[InProcessCache]" = weakref.WeakSet()


def _after_fork() -> None:
    for cache in list(_all):
        cache._begin()  # noqa: SLF001 - of this module


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
