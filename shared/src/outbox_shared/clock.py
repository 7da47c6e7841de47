"""The process's own time: for deadlines and pauses. What is written into the database is the database's time, never this."""

import time
from collections.abc import Callable
from typing import Protocol

SLICE = 0.1


class Clock(Protocol):
    """What a loop needs of time; a test drives its own."""

    def monotonic(self) -> float:
        """Seconds that only ever grow."""

    def sleep(self, seconds: float) -> None: ...

    def hear(self, heard: Callable[[float], bool], seconds: float) -> bool:
        """Sleep, unless `heard`, which waits for so long at most, returns True before."""


class SystemClock:
    """The machine's clock."""

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def hear(self, heard: Callable[[float], bool], seconds: float) -> bool:
        return heard(seconds)


def pause(clock: Clock, seconds: float, stopping: Callable[[], bool]) -> None:
    """Sleep, but notice within a moment that it is time to stop.

    A plain flag in short slices, not a threading.Event: a signal handler that sets an Event can deadlock with the thread that it
    interrupted in the Event's own lock.
    """
    until = clock.monotonic() + seconds
    while not stopping() and (left := until - clock.monotonic()) > 0:
        clock.sleep(min(left, SLICE))
