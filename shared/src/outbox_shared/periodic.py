"""A duty is one small job that a long-running process repeats: recovery, cleanup and the like.

Each duty has a `run_once()`, which tests and one-shot commands call, and an interval, at which a thread calls it. Several duties share
one thread: each is short, and comes back soon where it has more to do.
"""

import logging
import random
import threading
import time
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol

from sqlalchemy.exc import SQLAlchemyError

log = logging.getLogger(__name__)

JITTER = 0.1


class Duty(Protocol):
    """A job that can be done at any time by any number of processes."""

    @property
    def name(self) -> str: ...

    def run_once(self) -> int:
        """Do some of what is due now and return how much was done."""


@dataclass(slots=True)
class Every:
    """A duty with its interval. `repeats`: one that did something is called again at once, until nothing is due."""

    duty: Duty
    interval: timedelta
    initial_delay: timedelta = timedelta(0)
    repeats: bool = False
    next_at: float = field(default=0.0, init=False)


class Rota:
    """Runs duties on one daemon thread, each first after its initial delay, then every `interval` with a little jitter, until stopped.

    An error is logged and the next round tries again: a database that is away for a minute must not end a duty for ever.
    """

    def __init__(self, name: str, *duties: Every) -> None:
        self._duties = duties
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"outbox-{name}", daemon=True)

    def start(self) -> None:
        for entry in self._duties:
            entry.next_at = time.monotonic() + entry.initial_delay.total_seconds()
        self._thread.start()

    def stop(self, timeout: float = 10.0) -> None:
        """Let the duty that is running finish, and start no other."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(timeout)

    def _run(self) -> None:
        while not self._stopping.is_set():
            for entry in self._duties:
                if entry.next_at <= time.monotonic() and not self._stopping.is_set():
                    self._do(entry)
            soonest = min(entry.next_at for entry in self._duties)
            self._stopping.wait(max(0.0, soonest - time.monotonic()))

    def _do(self, entry: Every) -> None:
        interval = entry.interval.total_seconds()
        done = 0
        try:
            done = entry.duty.run_once()
        except SQLAlchemyError as error:  # what the database said, without the statement and its parameters
            log.warning(
                "%s failed, again in %.1f s: %s", entry.duty.name, interval, getattr(error, "orig", None) or error
            )
        except Exception:
            log.exception("%s failed; the next round is in %.1f s", entry.duty.name, interval)
        again = entry.repeats and done > 0
        entry.next_at = time.monotonic() + (0.0 if again else interval * (1 + random.uniform(0, JITTER)))
