"""A circuit: what fails is left alone for a while, and one call at a time tries it again. The caller brings the time.

closed   everything passes
open     nothing passes until the pause is over; then one call does, and the pause begins anew while it is under way. If it succeeds the
         circuit is closed, if it fails the pause is doubled, and if its thread dies nothing is stuck
"""

import threading
from dataclasses import dataclass, field

FIRST_PAUSE = 1.0
LONGEST_PAUSE = 10.0


@dataclass(slots=True)
class Circuit:
    """Thread-safe. A call that was let through before the last change of state tells nothing about the present one."""

    _lock: threading.Lock = field(default_factory=threading.Lock)
    _changes: int = 0
    _is_open: bool = False
    _failures: int = 0
    _until: float = 0.0

    @property
    def is_open(self) -> bool:
        return self._is_open

    def let_through(self, now: float) -> int | None:
        """A pass for one call, which goes to `succeeded` or `failed`; None: do not call."""
        with self._lock:
            if self._is_open:
                if now < self._until:
                    return None
                self._until = now + self._pause()
            return self._changes

    def succeeded(self, passed: int) -> bool:
        """Whether this closed the circuit."""
        with self._lock:
            if not self._is_open or passed != self._changes:
                return False
            self._is_open, self._failures, self._changes = False, 0, self._changes + 1
            return True

    def failed(self, passed: int, now: float) -> bool:
        """Whether this opened the circuit."""
        with self._lock:
            if passed != self._changes:
                return False
            opened = not self._is_open
            self._failures += 1
            self._until = now + self._pause()
            if opened:
                self._is_open, self._changes = True, self._changes + 1
            return opened

    def _pause(self) -> float:
        return float(min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** max(0, min(self._failures - 1, 10))))
