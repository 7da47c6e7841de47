"""The batches that this process is working on: whose leases are renewed, and for how long."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

from outbox_shared.clock import Clock


class InFlight:
    """Written by workers, read by the heartbeat."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since: dict[UUID, float] = {}
        self._lock = threading.Lock()

    @contextmanager
    def holding(self, token: UUID, since: float) -> Iterator[None]:
        with self._lock:
            self._since[token] = since
        try:
            yield
        finally:
            with self._lock:
                del self._since[token]

    def younger_than(self, seconds: float) -> list[UUID]:
        now = self._clock.monotonic()
        with self._lock:
            return [token for token, since in self._since.items() if now - since < seconds]
