"""What `/livez` and `/readyz` answer: whether the loop goes round, and whether database and broker answer."""

import concurrent.futures
import threading
from collections.abc import Callable

from sqlalchemy import select
from sqlalchemy.engine import Engine

from outbox_publisher.senders.base import Probing, Sender
from outbox_publisher.settings import PublisherSettings
from outbox_shared.clock import Clock
from outbox_shared.database import reading

SLACK = 30.0
ANSWER_WITHIN = 2.0
REMEMBERED = 2.0
"""Seconds for which an answer is given again: many may ask, the broker is asked once."""


class Health:
    def __init__(self, engine: Engine, sender: Sender, settings: PublisherSettings, clock: Clock) -> None:
        self._engine, self._sender, self._clock = engine, sender, clock
        # a batch may take emergency-timeout, and its settle a lease
        self._longest = (settings.sender.emergency_timeout + settings.lease).total_seconds() + SLACK
        self._beats: dict[str, float] = {}
        self._lock = threading.Lock()
        self._ready: tuple[float, list[str]] | None = None
        self._asked: dict[str, concurrent.futures.Future[str | None]] = {}

    def beat(self, worker: str) -> None:
        """A worker has begun another round."""
        self._beats[worker] = self._clock.monotonic()

    def live(self) -> list[str]:
        """What is wrong with this process; nothing where it works, or most of it does."""
        now = self._clock.monotonic()
        silent = {worker: now - beat for worker, beat in self._beats.items() if now - beat > self._longest}
        if 2 * len(silent) < max(1, len(self._beats)):
            return []
        return [f"the loop of {worker} has stood still for {seconds:.0f} s" for worker, seconds in silent.items()]

    def ask(self, question: str) -> list[str]:
        """`live` or `ready`, as probes and a supervisor put it."""
        return self.live() if question == "live" else self.ready()

    def ready(self) -> list[str]:
        """What is wrong around it: the database, the broker."""
        with self._lock:
            now = self._clock.monotonic()
            if self._ready is None or now - self._ready[0] > REMEMBERED:
                self._ready = now, [*self._ask("database", self._database), *self._ask("broker", self._broker)]
            return self._ready[1]

    def _ask(self, name: str, question: Callable[[], str | None]) -> list[str]:
        """A server that stands still answers nothing, not even an error: ask on a thread, and wait for a bounded time.

        While one question is open no other is asked, or threads would pile up before a server that stands still for long.
        """
        asked = self._asked.get(name)
        if asked is None:
            asked = self._asked[name] = concurrent.futures.Future()
            thread = threading.Thread(target=_answer, args=(question, asked), name=f"outbox-ready-{name}", daemon=True)
            thread.start()
        try:
            trouble = asked.result(ANSWER_WITHIN + 1)
            del self._asked[name]
        except TimeoutError:
            trouble = f"no answer within {ANSWER_WITHIN + 1:.0f} s"
        return [] if trouble is None else [f"{name}: {trouble}"]

    def _database(self) -> str | None:
        with reading(self._engine) as connection:
            connection.execute(select(1)).scalar()
        return None

    def _broker(self) -> str | None:
        return self._sender.probe(None, ANSWER_WITHIN) if isinstance(self._sender, Probing) else None


def _answer(question: Callable[[], str | None], answer: "concurrent.futures.Future[str | None]") -> None:
    try:
        answer.set_result(question())
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer
        answer.set_result(str(error).strip().partition("\n")[0] or type(error).__name__)
