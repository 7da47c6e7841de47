"""A duty that one process at a time should do: not for correctness, but because two at once stand in everybody's way."""

from collections.abc import Callable
from typing import TypeVar

from sqlalchemy.engine import Connection

from outbox_shared.clock import Clock, pause
from outbox_shared.state import State

Result = TypeVar("Result")
Run = Callable[[Callable[[Connection], Result]], Result]
"""Runs a piece of work in a transaction of its own."""


class Lease:
    """A row of outbox_state with an end: a process that dies keeps the others waiting for `seconds` at most."""

    def __init__(self, run: "Run[bool]", state: State, name: str, holder: str, seconds: float = 30.0) -> None:
        self._run, self._state, self._name, self._holder, self._seconds = run, state, name, holder, seconds

    def take(self) -> bool:
        """Take it or, where it is ours already, renew it."""
        return self._run(lambda it: self._state.take_lease(it, self._name, self._holder, self._seconds))

    def end(self) -> None:
        def work(connection: Connection) -> bool:
            self._state.end_lease(connection, self._name, self._holder)
            return True

        self._run(work)

    def wait(self, clock: Clock, seconds: float) -> bool:
        """Take it as soon as it is free, within so long."""
        until = clock.monotonic() + seconds
        while not self.take():
            if clock.monotonic() >= until:
                return False
            pause(clock, 0.2, lambda: False)
        return True
