"""Bells: how one thread wakes another, and how a publisher finds the relays of its own process."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeAlias

from outbox_shared.clock import SLICE, Clock
from outbox_shared.places import Place
from outbox_shared.tables import TableNames

Address: TypeAlias = "tuple[Place, TableNames]"
"""An outbox: which database, and which tables there."""


class Bell:
    """Rings once, however often it is rung before somebody listens.

    A bare lock, held while it is silent: releasing it is one step, so a bell may be rung from a signal handler, or by the garbage
    collector in the middle of ringing. An Event would wait for its own lock there, for ever.
    """

    def __init__(self) -> None:
        self._silence = threading.Lock()
        self._silence.acquire()

    def ring(self) -> None:
        with suppress(RuntimeError):  # it rings already
            self._silence.release()

    def heard(self, seconds: float) -> bool:
        """Whether it rings within so many seconds; it is silent again."""
        return self._silence.acquire(timeout=max(0.0, seconds))

    def wait(self, clock: Clock, seconds: float, stopping: Callable[[], bool]) -> bool:
        """The same, but notices within a moment that it is time to stop: a signal handler sets a plain flag (`outbox_shared.clock`)."""
        until = clock.monotonic() + seconds
        while not stopping():
            left = until - clock.monotonic()
            if clock.hear(self.heard, min(max(left, 0.0), SLICE)):
                return True
            if left <= SLICE:
                return False
        return False


_answering: dict[Address, tuple[Callable[[], None], ...]] = {}
_guard = threading.Lock()


def ring(address: Address) -> None:
    """Tell the relays of this process. No SQL, so it works with every database."""
    for told in _answering.get(address, ()):
        told()


@contextmanager
def answer(address: Address, told: Callable[[], None]) -> Iterator[None]:
    """Call `told` whenever this process has published something there."""
    with _guard:
        _answering[address] = (*_answering.get(address, ()), told)
    try:
        yield
    finally:
        with _guard:
            left = tuple(one for one in _answering[address] if one is not told)
            _answering[address] = left
            if not left:
                del _answering[address]
