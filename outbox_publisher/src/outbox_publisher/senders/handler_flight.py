"""One batch on its way through handlers: a thread runs them one after another, the relay waits no longer than the deadline.

Nothing can end a Python thread from outside. One whose handler outlives the deadline is left alone: it finishes that call, begins no
other event, and ends. All threads are daemons, so that a handler that hangs never keeps its process alive.
"""

import asyncio
import contextvars
import itertools
import logging
import threading
from collections.abc import Awaitable, Callable, Sequence
from queue import SimpleQueue

from outbox_publisher.event import Event
from outbox_publisher.senders.base import SendResult
from outbox_shared.clock import Clock

log = logging.getLogger(__name__)

SLICE = 0.1
"""Seconds between two looks at the clock, which a test may hold in its hand."""

GOODBYE = 1.0
"""Seconds that `close` waits for all idle threads together; each needs about a millisecond."""

_NUMBERS = itertools.count(1)


class Loop:
    """The asyncio loop of one thread, made when a handler first needs one and kept for the next."""

    def __init__(self) -> None:
        self._runner: asyncio.Runner | None = None

    def run(self, awaitable: Awaitable[object], context: contextvars.Context) -> None:
        self._runner = self._runner or asyncio.Runner()
        try:
            self._runner.run(_awaited(awaitable), context=context)
        except Exception:
            raise
        except BaseException:
            # SystemExit breaks out of the loop: what it leaves behind must not go on beside the next handler
            self.close()
            raise

    def close(self) -> None:
        runner, self._runner = self._runner, None
        if runner is not None:
            runner.close()


async def _awaited(awaitable: Awaitable[object]) -> None:
    await awaitable


Call = Callable[[Event, contextvars.Context, Loop], SendResult]
"""Runs the handler of one event, and tells what became of it; never raises."""


class HandlerFlight:
    """The batch that one thread works on; the thread writes the results, and whoever waits reads them."""

    def __init__(self, events: Sequence[Event], deadline: float, clock: Clock, call: Call) -> None:
        self._events, self._deadline, self._clock, self._call = events, deadline, clock, call
        self._context = contextvars.copy_context()  # of whoever sends: each handler gets a copy of its own
        self._began_at = clock.monotonic()
        self._results: list[SendResult | None] = [None] * len(events)
        self._running: int | None = None
        self._stopped = False
        self._over = False
        self._changed = threading.Condition()

    def done(self) -> bool:
        with self._changed:
            self._give_up_if_late()
            return self._over

    def results(self) -> Sequence[SendResult]:
        with self._changed:
            while not self._over:
                self._changed.wait(min(max(self._deadline - self._clock.monotonic(), 0), SLICE))
                self._give_up_if_late()
        why = "the relay is stopping" if self._stopped else "not begun within the batch's time"
        unsent = SendResult.retry(why, charged=False, after=0)
        return [result or unsent for result in self._results]

    def stop(self) -> None:
        """A plain flag and no lock: a signal may interrupt the very thread that holds it."""
        self._stopped = True

    def run(self, loop: Loop) -> bool:
        """On the worker thread: every event in turn. Whether the thread came back in time and may serve again."""
        for index, event in enumerate(self._events):
            if not self._begin(index):
                break
            if not self._finish(index, self._call(event, self._context.copy(), loop)):
                return False
        return True

    def land(self) -> None:
        """Wake whoever waits, after the thread is free again: the next flight then finds it."""
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def _begin(self, index: int) -> bool:
        with self._changed:
            if self._stopped or self._clock.monotonic() >= self._deadline:
                return False
            self._running = index
            return True

    def _finish(self, index: int, result: SendResult) -> bool:
        with self._changed:
            if not self._over:
                self._results[index], self._running = result, None
                return True
        event = self._events[index]
        log.warning("a handler has returned too late: %s %s was given up before", event.event_type, event.id)
        return False

    def _give_up_if_late(self) -> None:
        """Under the lock: whoever looks after the deadline ends the flight, whatever the thread is doing."""
        if self._over or self._clock.monotonic() < self._deadline:
            return
        self._over = True
        if self._running is None:
            return
        event, seconds = self._events[self._running], self._deadline - self._began_at
        self._results[self._running] = SendResult.retry(
            f"handler still running after the batch's time of {seconds:.1f} s", maybe_sent=True
        )
        log.warning(
            "the handler of %s %s is still running after the batch's time of %.1f s: its thread is left alone, and another takes over",
            event.event_type, event.id, seconds,
        )  # fmt: skip


class HandlerThreads:
    """Daemon threads that are kept for the next flight: as many as there were flights at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[_Thread] = []
        self._flying: set[HandlerFlight] = set()
        self._closed = False

    def fly(self, flight: HandlerFlight) -> None:
        with self._lock:
            thread = self._idle.pop() if self._idle else None
            self._flying.add(flight)
        try:
            (thread or _Thread(self)).serve(flight)
        except RuntimeError:  # the system gives no further thread
            with self._lock:
                self._flying.discard(flight)
            raise

    def landed(self, thread: "_Thread", flight: HandlerFlight, *, in_time: bool) -> bool:
        """Whether the thread may wait for another flight."""
        with self._lock:
            self._flying.discard(flight)
            if self._closed or not in_time:
                return False
            self._idle.append(thread)
            return True

    def close(self) -> None:
        """Idle threads end now, the others after the event that they are at."""
        with self._lock:
            self._closed = True
            idle, self._idle, flying = self._idle, [], list(self._flying)
        for flight in flying:
            flight.stop()
        for thread in idle:
            thread.end()
        for thread in idle:
            thread.join(GOODBYE / len(idle))


class _Thread(threading.Thread):
    def __init__(self, home: HandlerThreads) -> None:
        super().__init__(name=f"outbox-handlers-{next(_NUMBERS)}", daemon=True)
        self._home = home
        self._work: SimpleQueue[HandlerFlight | None] = SimpleQueue()

    def serve(self, flight: HandlerFlight) -> None:
        self._work.put(flight)
        if self.ident is None:
            self.start()

    def end(self) -> None:
        self._work.put(None)

    def run(self) -> None:
        loop = Loop()
        try:
            while flight := self._work.get():
                kept = self._home.landed(self, flight, in_time=flight.run(loop))
                flight.land()
                if not kept:
                    return
                del flight  # a thread that waits must not keep the last batch's payloads
        finally:
            loop.close()
