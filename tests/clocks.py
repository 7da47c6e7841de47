"""Time in a test's hands: a clock for the process, and the times that stand in the database."""

from collections.abc import Callable
from datetime import datetime
from typing import Any

from sqlalchemy import select, update

from outbox_shared.clock import SystemClock
from outbox_shared.sqltypes import wall_time, wall_time_plus
from tests.fixtures import OutboxDatabase


class HandHeldClock(SystemClock):
    """Time that passes when it is told to. What was planned with `at` happens as it passes by."""

    def __init__(self) -> None:
        self.now = self.began = 1000.0
        self._plans: list[tuple[float, Callable[[], Any]]] = []

    @property
    def elapsed(self) -> float:
        return self.now - self.began

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        due = [plan for plan in self._plans if plan[0] <= self.elapsed]
        self._plans = [plan for plan in self._plans if plan[0] > self.elapsed]
        for _, action in sorted(due, key=lambda plan: plan[0]):
            action()

    def hear(self, heard: Callable[[float], bool], seconds: float) -> bool:
        self.sleep(seconds)
        return heard(0.0)

    def at(self, seconds: float, action: Callable[[], Any]) -> None:
        """Let `action` happen when so much time has passed since the clock was made."""
        self._plans.append((seconds, action))


def time_of(database: OutboxDatabase) -> datetime:
    """What time it is there."""
    with database.engine.connect() as connection:
        now: datetime = connection.execute(select(wall_time())).scalar_one()
        return now


def make_everything_due(database: OutboxDatabase) -> None:
    with database.engine.begin() as connection:
        connection.execute(update(database.store.tables.events).values(next_retry_at=wall_time_plus(-1.0)))


def expire_leases(database: OutboxDatabase) -> None:
    """As if every claim had been made, or renewed, long ago."""
    with database.engine.begin() as connection:
        connection.execute(update(database.store.tables.claims).values(lease_until=wall_time_plus(-1.0)))
