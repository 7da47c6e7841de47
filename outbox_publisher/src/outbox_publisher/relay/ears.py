"""A psycopg connection that waits for notifications, and for the word to stop, at once and without polling.

psycopg's own `notifies()` waits in a generator that nobody else can end, and before 3.2.4 forgot what came between two calls. This reads
the socket when there is something on it, with the calls of libpq that psycopg publishes for that.
"""

import selectors
import socket
import time
from contextlib import suppress
from typing import Any

TRIES = 10
"""Others may come in between, and get the connection that was just given back."""


def backend_of(connection: Any) -> int:
    return int(connection.execute("SELECT pg_backend_pid()").fetchone()[0])


class Stopped:
    """A flag that a selector can wait for."""

    def __init__(self) -> None:
        self.is_set = False
        self._told, self._telling = socket.socketpair()

    def set(self) -> None:
        self.is_set = True
        with suppress(OSError):
            self._telling.send(b".")

    def wait(self, seconds: float) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self, selectors.EVENT_READ)
            selector.select(max(0.0, seconds))

    def fileno(self) -> int:
        return self._told.fileno()

    def close(self) -> None:
        self._told.close()
        self._telling.close()


class Ears:
    def __init__(self, connection: Any, stopping: Stopped) -> None:
        self._connection, self._libpq, self._stopping = connection, connection.pgconn, stopping
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._libpq.socket, selectors.EVENT_READ)
        self._selector.register(stopping, selectors.EVENT_READ)

    def close(self) -> None:
        self._selector.close()

    def hear(self, seconds: float) -> list[str]:
        """What was said, as soon as something is; nothing after so many seconds, or when it is time to stop."""
        until = time.monotonic() + seconds
        while not (heard := self._heard()) and not self._stopping.is_set:
            left = until - time.monotonic()
            if left <= 0 or not self._selector.select(left):
                break
            self._libpq.consume_input()  # raises where the connection is broken
        return heard

    def waits_for(self, word: str, seconds: float) -> bool:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and not self._stopping.is_set:
            if word in self.hear(left):
                return True
        return False

    def ask(self, seconds: float) -> list[str]:
        """An empty query: a connection that a router has forgotten is silent for ever. Returns what was said meanwhile."""
        self._libpq.send_query(b"")
        self._libpq.flush()
        until = time.monotonic() + seconds
        heard: list[str] = []
        while not self._stopping.is_set:
            heard += self._heard()
            while not self._libpq.is_busy():
                if self._libpq.get_result() is None:
                    return heard
            if not self._selector.select(max(0.0, until - time.monotonic())):
                raise TimeoutError("the server does not answer")
            self._libpq.consume_input()
        return heard

    def is_pooled(self) -> bool:
        """Whether the one who answers is not the one who said hello: a pooler makes up its own process number."""
        return backend_of(self._connection) != int(self._libpq.backend_pid)

    def shares_with(self, connection: Any) -> bool:
        """Whether a pooler lets both speak to the same server process, one transaction after the other: what one of them sets there, or
        listens to, is the other's a moment later.
        """
        return any(backend_of(self._connection) == backend_of(connection) for _ in range(TRIES))

    def _heard(self) -> list[str]:
        heard = []
        while (notify := self._libpq.notifies()) is not None:
            heard.append(notify.extra.decode(errors="replace"))
        return heard
