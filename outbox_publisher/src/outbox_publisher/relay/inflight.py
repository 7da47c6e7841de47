"""The batches that this process is working on: whose leases are renewed, and whether one may be alone.

Several workers share it. A batch is on its way from before its claim until after its settle.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from uuid import UUID

from outbox_shared.clock import Clock, pause


class InFlight:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since: dict[UUID, float] = {}
        self._on_their_way = 0
        self._alone = False
        self._lock = threading.Lock()

    def enter(self, *, alone: bool = False) -> bool:
        """Whether a batch may set out now: not while another one must be alone."""
        with self._lock:
            if self._alone and not alone:
                return False
            self._on_their_way += 1
            return True

    def leave(self) -> None:
        with self._lock:
            self._on_their_way -= 1

    @contextmanager
    def alone(self, seconds: float, stopping: Callable[[], bool]) -> Iterator[bool]:
        """For rows that may kill this process: no other batch sets out, and those on their way have so long to arrive."""
        with self._lock:
            free, self._alone = not self._alone, True
        if not free:
            yield False
            return
        try:
            pause(self._clock, seconds, lambda: stopping() or not self._on_their_way)
            yield not self._on_their_way
        finally:
            with self._lock:
                self._alone = False

    def hold(self, token: UUID, since: float) -> None:
        with self._lock:
            self._since[token] = since

    def release(self, token: UUID) -> None:
        with self._lock:
            self._since.pop(token, None)

    def younger_than(self, seconds: float) -> list[UUID]:
        now = self._clock.monotonic()
        with self._lock:
            return [token for token, since in self._since.items() if now - since < seconds]
