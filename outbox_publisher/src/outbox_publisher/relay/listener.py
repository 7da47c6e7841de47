"""Hears NOTIFY on a thread and a connection of its own, as long as it can, and says so once when it cannot."""

import logging
import random
import threading
from collections.abc import Callable
from contextlib import closing
from uuid import uuid4

from outbox_publisher.relay.backoff import pause_after
from outbox_publisher.relay.ears import Ears, Stopped
from outbox_publisher.store import listening, notification
from outbox_shared.lines import EngineLine

log = logging.getLogger(__name__)

TEST = "outbox-test:"
"""What a relay says to itself; others pass over it."""
TEST_SECONDS = 3.0
ALIVE_AFTER = 30.0
"""Seconds of silence after which the connection is asked whether it is still one."""
STOP_SECONDS = 5.0


class Deaf(Exception):
    """Nothing is heard here, or would be."""


class Listener:
    def __init__(self, open_line: Callable[[], EngineLine], channel: str, ring: Callable[[], None], poll: str) -> None:
        self._open, self._channel, self._ring, self._poll = open_line, channel, ring, poll
        self._stopping = Stopped()
        self._failures = 0
        self.hears = False
        self._thread = threading.Thread(target=self._run, name="outbox-listener", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(STOP_SECONDS)
        if not self._thread.is_alive():
            self._stopping.close()

    def _run(self) -> None:
        while not self._stopping.is_set:
            try:
                self._listen()
            except Deaf:
                self._say_deaf()
                return
            except Exception as error:  # noqa: BLE001 - whatever it is, polling goes on
                self._say_lost(error)
            finally:
                self.hears = False
            self._stopping.wait(pause_after(self._failures, 0.1, random.random()))

    def _listen(self) -> None:
        """Until it is stopped, or the connection breaks."""
        with closing(self._open()) as line, closing(Ears(line.driver, self._stopping)) as ears:
            with closing(self._open()) as other:
                if ears.is_pooled() and ears.shares_with(other.driver):
                    raise Deaf  # without a LISTEN, which would stay behind with a connection of the pool's
                line.execute(listening(self._channel))
                self._test(ears, other)
            if self._stopping.is_set:
                return
            self._say_listening()
            self.hears = True
            self._ring()  # for what was told before
            while not self._stopping.is_set:
                heard = ears.hear(ALIVE_AFTER)
                if not heard and not self._stopping.is_set:
                    heard = ears.ask(TEST_SECONDS)
                if any(not said.startswith(TEST) for said in heard):
                    self._ring()

    def _test(self, ears: Ears, other: EngineLine) -> None:
        """Whether this connection hears what another one says."""
        token = f"{TEST}{uuid4().hex}"
        other.execute(notification(self._channel, token))
        if ears.waits_for(token, TEST_SECONDS) or self._stopping.is_set:
            return
        if ears.is_pooled():
            raise Deaf
        raise TimeoutError("the server takes too long to pass on a notification")

    def _say_listening(self) -> None:
        if self._failures:
            log.info("relays hear of new events again")
        self._failures = 0

    def _say_lost(self, error: Exception) -> None:
        self._failures += 1
        if self._failures == 1 and not self._stopping.is_set:
            log.warning(
                "nobody tells of new events until the connection is back, they are found by polling, every %s: %s",
                self._poll,
                str(error).strip().partition("\n")[0],
            )

    def _say_deaf(self) -> None:
        log.warning(
            "this connection hears no hints, as behind pgbouncer in transaction mode: new events are found by polling, every %s. "
            "Give the relay a database-url that leads to PostgreSQL itself, or set wakeup: poll to end this message",
            self._poll,
        )
