"""A duty is one small job that a long-running process repeats: recovery, cleanup and the like.

Each duty has a `run_once()`, which tests and one-shot commands call, and an interval, at which a thread calls it.
"""

import logging
import random
import threading
from datetime import timedelta
from typing import Protocol

log = logging.getLogger(__name__)

JITTER = 0.1


class Duty(Protocol):
    """A job that can be done at any time by any number of processes."""

    @property
    def name(self) -> str: ...

    def run_once(self) -> object:
        """Do what is due now and return what was done."""


class Periodic:
    """Runs a duty on its own daemon thread, first at once, then every `interval` with a little jitter, until stopped.

    An error is logged and the next round tries again: a database that is away for a minute must not end a duty for ever.
    """

    def __init__(self, duty: Duty, interval: timedelta) -> None:
        self._duty = duty
        self._interval = interval.total_seconds()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"outbox-{duty.name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout: float = 10.0) -> None:
        """Let the round that is running finish, and start no other."""
        self._stopping.set()
        self._thread.join(timeout)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._duty.run_once()
            except Exception:
                log.exception("%s failed; the next round is in %.1f s", self._duty.name, self._interval)
            self._stopping.wait(self._interval * (1 + random.uniform(0, JITTER)))
