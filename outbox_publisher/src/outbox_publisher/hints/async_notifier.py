"""Hints from the tasks of an event loop: the same rhythm as the thread's, as a task that lives only while there is something to tell."""

import asyncio
import logging
import time
import weakref
from collections.abc import AsyncGenerator, Callable
from contextvars import Context

from sqlalchemy.util import await_only, greenlet_spawn
from sqlalchemy.util.concurrency import in_greenlet

from outbox_publisher.hints.notifier import FAREWELL
from outbox_publisher.hints.pace import AFTER_FAILURE, Pace
from outbox_shared.lines import Line

log = logging.getLogger(__name__)


class AsyncNotifier:
    """A teller for each loop: a connection belongs to the loop that made it."""

    def __init__(self, open_line: Callable[[], Line], statement: str, idle: float) -> None:
        self._open, self._statement, self._idle = open_line, statement, idle
        self._tellers: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Teller] = weakref.WeakKeyDictionary()

    def wake(self) -> None:
        loop = asyncio.get_running_loop()
        teller = self._tellers.get(loop)
        if teller is None:
            teller = self._tellers[loop] = Teller(self._open, self._statement, self._idle)
        teller.wake(loop)

    def close(self) -> None:
        """Called by `await engine.dispose()`; a plain `sync_engine.dispose()` leaves it to the loop's own end."""
        if in_greenlet():
            teller = self._tellers.pop(asyncio.get_running_loop(), None)
            if teller is not None:
                await_only(teller.close())


class Teller:
    def __init__(self, open_line: Callable[[], Line], statement: str, idle: float) -> None:
        self._open, self._statement, self._idle = open_line, statement, idle
        self._pace, self._news = Pace(), False
        self._task: asyncio.Task[None] | None = None
        self._held: AsyncGenerator[Line, None] | None = None
        self._line: Line | None = None
        self._until_idle: asyncio.TimerHandle | None = None

    def wake(self, loop: asyncio.AbstractEventLoop) -> None:
        self._news = True
        if self._task is None:
            self._task = loop.create_task(self._tell(), name="outbox-notifier", context=Context())

    async def _tell(self) -> None:
        self._stay()
        try:
            while self._news:
                self._news = False
                used = self._line is not None
                told = await self._say() or (used and await self._say())
                await asyncio.sleep(self._pace.after(time.monotonic()) if told else AFTER_FAILURE)
        finally:
            self._task = None
            self._until_idle = asyncio.get_running_loop().call_later(self._idle, self._end)

    async def _say(self) -> bool:
        told = False
        try:
            if self._line is None:
                self._held = _holding(self._open)
                self._line = await anext(self._held)
            await greenlet_spawn(self._line.execute, self._statement)
            told = True
        except Exception as error:  # noqa: BLE001 - a hint is never worth an error
            log.debug("a hint was dropped: %s", error)
        finally:
            if not told:
                await self._hang_up()
        return told

    async def _hang_up(self) -> None:
        held, self._held, self._line = self._held, None, None
        if held is not None:
            await held.aclose()

    def _stay(self) -> None:
        if self._until_idle is not None:
            self._until_idle.cancel()
            self._until_idle = None

    def _end(self) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._rest(), name="outbox-notifier", context=Context())

    async def _rest(self) -> None:
        try:
            await self._hang_up()
        finally:
            self._task = None
        if self._news:
            self.wake(asyncio.get_running_loop())

    async def close(self) -> None:
        """Tell what is to be told, then close the connection."""
        if self._task is not None:
            _, late = await asyncio.wait({self._task}, timeout=FAREWELL)
            for task in late:
                task.cancel()
        self._stay()
        await self._hang_up()


async def _holding(open_line: Callable[[], Line]) -> AsyncGenerator[Line, None]:
    """A line inside of a generator, since generators are what a loop ends before it closes: no task has to wait for that."""
    line = await greenlet_spawn(open_line)
    try:
        while True:
            yield line
    finally:
        await greenlet_spawn(line.close)
