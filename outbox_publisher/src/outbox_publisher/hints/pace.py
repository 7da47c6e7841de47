"""How often to tell. Pure: the caller brings the time."""

QUIET = 0.01
"""Seconds between two NOTIFYs. The first hint is told at once, and what comes in the quiet once more at its end."""
LASTING = 50.0
"""NOTIFYs a second that a process may go on with. Each costs the server and its listeners as much as a small transaction, and eight
processes that all tell a hundred times a second take a fifth of their own commits.
"""
BURST = 10.0
"""NOTIFYs that it may send faster than that, every QUIET; saved up while it sends fewer."""
AFTER_FAILURE = 1.0


class Pace:
    def __init__(self) -> None:
        self._saved, self._last = BURST, 0.0

    def after(self, now: float) -> float:
        """Seconds of quiet after a NOTIFY that was sent `now`."""
        self._saved = min(BURST, self._saved + (now - self._last) * LASTING) - 1
        self._last = now
        return QUIET if self._saved >= 0 else max(QUIET, -self._saved / LASTING)
