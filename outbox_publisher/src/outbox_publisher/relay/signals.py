"""What a process is told from outside: SIGTERM and Ctrl-C drain, a second one ends the process at once."""

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

log = logging.getLogger(__name__)


@contextmanager
def drain_on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """`stop` runs in the signal handler. Only a main thread may set handlers; elsewhere this does nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def drain(number: int, _frame: FrameType | None) -> None:
        for either in (signal.SIGTERM, signal.SIGINT):
            signal.signal(either, signal.SIG_DFL)
        log.info("%s: finishing what is under way", signal.Signals(number).name)
        stop()

    before = {number: signal.signal(number, drain) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
