"""The same in an event loop: a task for each run, and only a timer in between, so that a loop that ends finds nothing pending."""

import asyncio
import os
import random
import time
from collections.abc import Callable, Hashable
from contextvars import Context

from sqlalchemy.engine import Engine
from sqlalchemy.util import await_only, greenlet_spawn
from sqlalchemy.util.concurrency import in_greenlet

from outbox_consumer.cleaning.duty import Undisturbed
from outbox_consumer.cleaning.threads import FAREWELL
from outbox_consumer.cleaning.users import User, Users, key_of, when_disposed
from outbox_shared.periodic import JITTER


class LoopClock:
    """A sync duty's clock inside SQLAlchemy's greenlet: when the duty sleeps, the loop goes on."""

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        await_only(asyncio.sleep(seconds))

    def hear(self, heard: Callable[[float], bool], seconds: float) -> bool:
        self.sleep(seconds)
        return heard(0.0)


class Cleaner:
    """Of one loop: a connection belongs to the loop that made it."""

    def __init__(self) -> None:
        self._users = Users()
        self._duty: Undisturbed | None = None
        self._interval = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    def join(self, user: User) -> None:
        self._users.add(user)
        if self._timer is None and self._task is None:
            clean = user.settings.clean_up
            self._duty = self._duty or Undisturbed(self._users.cleaning(LoopClock()))
            self._interval = clean.fixed_delay.total_seconds()
            self._come_back(clean.initial_delay.total_seconds())

    def leave(self, user: User) -> None:
        """At once; a run that is under way is the last one."""
        self._users.remove(user)
        if not self._users and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def lost(self, user: User) -> None:
        """For a consumer that nobody closed: garbage may be collected in another thread, so the timer finds out by itself."""
        self._users.remove(user)

    def left(self, engine: Engine) -> bool:
        """Whether it was anybody's."""
        users = self._users.of(engine)
        for user in users:
            self.leave(user)
        return bool(users)

    async def ended(self, timeout: float) -> None:
        """Wait for the last run, where nobody is left, and break it off if it takes too long."""
        task = self._task
        if task is None or self._users or task is asyncio.current_task():
            return
        _, late = await asyncio.wait({task}, timeout=timeout)
        for one in late:
            one.cancel()

    def forget(self) -> None:
        """The loop is closed."""
        self._users.forget()

    def _come_back(self, seconds: float) -> None:
        if self._users:
            self._timer = asyncio.get_running_loop().call_later(seconds, self._begin)

    def _begin(self) -> None:
        self._timer = None
        if not self._users:
            return
        run, name = self._run(), "outbox-consumed-cleanup"
        self._task = asyncio.get_running_loop().create_task(run, name=name, context=Context())

    async def _run(self) -> None:
        assert self._duty is not None  # noqa: S101 - nothing begins before somebody joins
        try:
            done = await greenlet_spawn(self._duty.run_once)
        finally:
            self._task = None
        self._come_back(0.0 if done else self._interval * (1 + random.uniform(0, JITTER)))


_cleaners: dict[asyncio.AbstractEventLoop, dict[Hashable, Cleaner]] = {}


def join(user: User, engine: Engine) -> Cleaner:
    for closed in [loop for loop in _cleaners if loop.is_closed()]:
        for cleaner in _cleaners.pop(closed).values():
            cleaner.forget()
    of_loop = _cleaners.setdefault(asyncio.get_running_loop(), {})
    cleaner = of_loop.setdefault(key_of(engine, user.settings), Cleaner())
    cleaner.join(user)
    when_disposed(engine, _disposed)
    return cleaner


def _disposed(engine: Engine) -> None:
    """`await engine.dispose()` waits for a run that is under way; a plain `sync_engine.dispose()` cannot."""
    left = [one for of_loop in list(_cleaners.values()) for one in of_loop.values() if one.left(engine)]
    if in_greenlet():
        for cleaner in left:
            await_only(cleaner.ended(FAREWELL))
        if left:
            engine.pool.dispose()  # of what that run has put into it


def _after_fork() -> None:
    """In a child the loop is the parent's."""
    for of_loop in _cleaners.values():
        for cleaner in of_loop.values():
            cleaner.forget()
    _cleaners.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
