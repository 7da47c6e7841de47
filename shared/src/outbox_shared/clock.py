"""The process's own time: for deadlines and pauses. What is written into the database is the database's time, never this."""

import threading
import time
from typing import Protocol


class Clock(Protocol):
    """What a loop needs of time; a test drives its own."""

    def monotonic(self) -> float:
        """Seconds that only ever grow."""

    def wait(self, wake: threading.Event, seconds: float) -> bool:
        """Sleep until `wake` is set or the time is over; True if it was set."""


class SystemClock:
    """The machine's clock."""

    def monotonic(self) -> float:
        return time.monotonic()

    def wait(self, wake: threading.Event, seconds: float) -> bool:
        return wake.wait(seconds)
