"""Hints from the threads of one process: at most one NOTIFY in 10 ms, on a thread and a connection of its own.

In the writers' transactions a NOTIFY would make their commits follow each other; here it costs them the ringing of a bell.
"""

import atexit
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable

from outbox_publisher.hints.bells import Bell
from outbox_publisher.hints.pace import AFTER_FAILURE, Pace
from outbox_shared.lines import Line

log = logging.getLogger(__name__)

FAREWELL = 0.5
"""Seconds that the end of an engine or a process may wait for a hint that is under way."""


class Notifier:
    """Its thread begins with a hint and ends when none has come for `idle` seconds; the connection is the thread's alone."""

    def __init__(self, open_line: Callable[[], Line], statement: str, idle: float) -> None:
        self._open, self._statement, self._idle = open_line, statement, idle
        self._begin()
        _all.add(self)

    def _begin(self) -> None:
        self._bell, self._pace = Bell(), Pace()
        self._news = self._closing = False
        self._thread: threading.Thread | None = None
        self._guard = threading.RLock()  # of `_thread`; a garbage collection inside of it may come back here
        self._line: Line | None = None

    def wake(self) -> None:
        self._news = True
        self._bell.ring()
        if self._thread is None:
            self._start()

    def close(self) -> None:
        """Let the thread tell what is to be told, close its connection and end; the next hint begins anew."""
        self.end()
        self.join(FAREWELL)

    def end(self) -> None:
        if self._thread is not None:
            self._closing = True
            self._bell.ring()

    def join(self, seconds: float) -> None:
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(max(0.0, seconds))

    def forget(self) -> None:
        """In a forked child: thread and locks are the parent's, and its connection must neither be used nor closed here."""
        if self._line is not None:
            _the_parents.append(self._line)
        self._begin()

    def _start(self) -> None:
        with self._guard:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="outbox-notifier", daemon=True)
                try:
                    self._thread.start()
                except RuntimeError:  # no more threads, or the process ends
                    self._thread = None
                    raise

    def _run(self) -> None:
        while True:
            rung = self._bell.heard(self._idle)
            told = self._tell() if self._news else True
            if self._closing or not rung:
                self._hang_up()
                if self._is_done():
                    return
            else:
                time.sleep(self._pace.after(time.monotonic()) if told else AFTER_FAILURE)

    def _is_done(self) -> bool:
        """A hint is news first, and looks for a thread last: one that comes right now is seen here, or starts another thread."""
        with self._guard:
            me, self._thread, self._closing = self._thread, None, False
            if self._news:
                self._thread = me
            return not self._news

    def _tell(self) -> bool:
        self._news = False
        used = self._line is not None
        return self._say() or (used and self._say())  # a used line may have been cut long ago: a new one is worth a try

    def _say(self) -> bool:
        try:
            if self._line is None:
                self._line = self._open()
            self._line.execute(self._statement)
        except Exception as error:  # noqa: BLE001 - a hint is never worth an error
            log.debug("a hint was dropped: %s", error)
            self._hang_up()
            return False
        return True

    def _hang_up(self) -> None:
        line, self._line = self._line, None
        if line is not None:
            line.close()


_all: "weakref.WeakSet[Notifier]" = weakref.WeakSet()
_the_parents: list[Line] = []


def _after_fork() -> None:
    for notifier in list(_all):
        notifier.forget()


def _farewell() -> None:
    """A short program's last commit should be told as well, if that takes no time."""
    until = time.monotonic() + FAREWELL
    for notifier in list(_all):
        notifier.end()
    for notifier in list(_all):
        notifier.join(until - time.monotonic())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
atexit.register(_farewell)
