"""The process's own time: for deadlines and pauses. What is written into the database is the database's time, never this."""

import threading
import time
from collections.abc import Callable
from typing import Protocol

SLICE = 0.1


class Clock(Protocol):
    """What a loop needs of time; a test drives its own."""

    def monotonic(self) -> float:
        """Seconds that only ever grow."""

    def sleep(self, seconds: float) -> None: ...

    def acquire(self, lock: threading.Lock, seconds: float) -> bool:
        """Sleep, unless the lock is free before that; whether it is held now."""


class SystemClock:
    """The machine's clock."""

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def acquire(self, lock: threading.Lock, seconds: float) -> bool:
        return lock.acquire(timeout=max(0.0, seconds))


def pause(clock: Clock, seconds: float, stopping: Callable[[], bool]) -> None:
    """Sleep, but notice within a moment that it is time to stop.

    A plain flag in short slices, not a threading.Event: a signal handler that sets an Event can deadlock with the thread that it
    interrupted in the Event's own lock.
    """
    until = clock.monotonic() + seconds
    while not stopping() and (left := until - clock.monotonic()) > 0:
        clock.sleep(min(left, SLICE))
