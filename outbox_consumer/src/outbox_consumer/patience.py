"""How long a delivery is tried again before its caller hears of it: a decision over values, without a database."""

import random
import time
from collections.abc import Callable
from datetime import timedelta

from outbox_shared.errors import EventInProgress

CONFLICT_RETRIES = 5
_FIRST_PAUSE = 0.01
_LONGEST_PAUSE = 0.3


class Patience:
    """The retries of one `consume`: a few for conflicts, and until the lock timeout for an event that is in progress elsewhere."""

    def __init__(self, lock_timeout: timedelta, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._until = now() + lock_timeout.total_seconds()
        self._tries = 0
        self._conflicts = 0

    def pause_after(self, error: Exception, *, is_conflict: bool) -> float | None:
        """Seconds to pause before the transaction is begun again; None to let the error out."""
        if isinstance(error, EventInProgress):
            # PostgreSQL has waited that long already; SQLite may refuse at once
            if self._now() >= self._until:
                return None
        elif is_conflict and self._conflicts < CONFLICT_RETRIES:
            self._conflicts += 1
        else:
            return None
        self._tries += 1
        # at random, so that those who met do not meet again
        return random.uniform(0, min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0 ** min(self._tries, 10)))
