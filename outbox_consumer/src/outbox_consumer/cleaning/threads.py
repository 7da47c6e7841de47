"""One daemon thread for each database of a process, from the first use of a consumer until the last one is closed."""

import atexit
import logging
import os
import threading
import time
from collections.abc import Hashable

from sqlalchemy.engine import Engine

from outbox_consumer.cleaning.duty import Undisturbed
from outbox_consumer.cleaning.users import User, Users, key_of, when_disposed
from outbox_consumer.store.upkeep.base import LEASE
from outbox_shared.clock import SystemClock
from outbox_shared.periodic import Duty, Every, Rota

log = logging.getLogger(__name__)

THREAD = "consumed-cleanup"
CLOSE = 5.0
"""Seconds that the last consumer's close() waits for a batch that is under way."""
FAREWELL = 0.5
"""The same for the end of an engine, or of the process."""


class AtRest:
    """A duty during which nobody forks: what a thread has locked in a database's library stays locked in the child for ever."""

    name = LEASE

    def __init__(self, duty: Duty) -> None:
        self._duty = duty
        self.lock = threading.Lock()

    def run_once(self) -> int:
        with self.lock:
            return self._duty.run_once()


class Cleaner:
    """Its thread keeps neither consumers nor their engines alive."""

    def __init__(self, key: Hashable) -> None:
        self._key, self._users = key, Users()
        self._rota: Rota | None = None
        self._duty: AtRest | None = None
        self._held_by: int | None = None

    def join(self, user: User) -> None:
        self._users.add(user)
        if self._rota is None:
            clean = user.settings.clean_up
            self._duty = AtRest(Undisturbed(self._users.cleaning(SystemClock())))
            rota = Rota(THREAD, Every(self._duty, clean.fixed_delay, clean.initial_delay, repeats=True))
            try:
                rota.start()
            except RuntimeError as error:  # no more threads, or the process ends: consuming goes on
                log.debug("no thread for cleaning: %s", error)
                self._users.remove(user)
            else:
                self._rota = rota

    def leave(self, user: User, timeout: float) -> None:
        with _guard:
            self._users.remove(user)
            last = not self._users
            if last and _cleaners.get(self._key) is self:  # else another one has taken its place already
                del _cleaners[self._key]
        if last:
            self.stop(timeout)

    def left(self, engine: Engine) -> bool:
        """Whether it was anybody's."""
        users = self._users.of(engine)
        for user in users:
            self.leave(user, FAREWELL)
        return bool(users)

    def stop(self, timeout: float) -> None:
        if self._rota is not None:
            self._rota.stop(timeout)

    def end(self) -> None:
        """At once, also in the middle of a run."""
        self._users.forget()
        self.stop(0.0)

    def hold(self) -> None:
        """Before a fork: wait for the run that is under way, though not for ever."""
        if self._duty is not None and self._duty.lock.acquire(timeout=FAREWELL):
            self._held_by = threading.get_ident()

    def let_go(self) -> None:
        if self._duty is not None and self._held_by == threading.get_ident():
            self._held_by = None
            self._duty.lock.release()

    def forget(self) -> None:
        """In a forked child: the thread is the parent's."""
        self._users.forget()
        self._rota = self._duty = None


_cleaners: dict[Hashable, Cleaner] = {}
_guard = threading.RLock()  # a garbage collection inside of it may come back here


def join(user: User, engine: Engine) -> Cleaner:
    key = key_of(engine, user.settings)
    with _guard:
        cleaner = _cleaners.get(key) or _cleaners.setdefault(key, Cleaner(key))
        cleaner.join(user)
    when_disposed(engine, _disposed)
    return cleaner


def _disposed(engine: Engine) -> None:
    """The pool is empty, and a run that was under way may have put a connection into it."""
    left = [cleaner for cleaner in list(_cleaners.values()) if cleaner.left(engine)]
    if left:
        engine.pool.dispose()


def _before_fork() -> None:
    for cleaner in list(_cleaners.values()):
        cleaner.hold()


def _after_fork_in_parent() -> None:
    for cleaner in list(_cleaners.values()):
        cleaner.let_go()


def _after_fork() -> None:
    global _guard  # noqa: PLW0603 - another thread of the parent's may have held it
    _guard = threading.RLock()
    for cleaner in _cleaners.values():
        cleaner.forget()
    _cleaners.clear()


def _farewell() -> None:
    """Let them give their leases back, if that takes no time."""
    cleaners, until = list(_cleaners.values()), time.monotonic() + FAREWELL
    for cleaner in cleaners:
        cleaner.end()
    for cleaner in cleaners:
        cleaner.stop(max(0.0, until - time.monotonic()))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork)
atexit.register(_farewell)
