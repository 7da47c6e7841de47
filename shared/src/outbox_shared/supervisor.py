"""Several processes of one command: more cores than one interpreter uses. A dead one is started again, all of them end together.

Parent and child share a socket. The parent asks on it how the child is; the child answers, and stops in good order when nobody is there
to ask any more. Each child has a session of its own, so that Ctrl-C reaches the parent alone, which passes it on once.
"""

import json
import logging
import os
import random
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import FrameType

log = logging.getLogger(__name__)

LINE = "OUTBOX_SUPERVISED_BY"
"""In a child's environment: the number of its end of the socket."""
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
"""Seconds before a child that died is started again; the pause doubles while it goes on dying."""
PROVEN = 60.0
"""A child that lived for so long begins with the first pause again."""
ANSWER_WITHIN = 5.0

Ask = Callable[[str], list[str]]
"""What is wrong, to a question such as "live" or "ready"."""


@dataclass(slots=True)
class _Child:
    number: int
    process: "subprocess.Popen[bytes] | None" = None
    line: socket.socket | None = None
    started: float = 0.0
    deaths: int = 0
    start_at: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock)


class Supervisor:
    """`run()` keeps `count` processes of `command` alive until SIGTERM or SIGINT; a second one kills them."""

    def __init__(self, command: Sequence[str], count: int) -> None:
        self._command = list(command)
        self._children = [_Child(number) for number in range(1, count + 1)]
        self._signals = 0

    def run(self) -> int:
        """Returns the exit code: 0 where every process ended well when it was told to."""
        with self._listening():
            while not self._signals:
                for child in self._children:
                    self._tend(child)
                time.sleep(0.1)
            return self._end()

    def ask(self, question: str) -> list[str]:
        """What is wrong with half of the processes or more; nothing where most of them are well."""
        troubles = [trouble for child in self._children if (trouble := self._ask_one(child, question))]
        if 2 * len(troubles) < len(self._children):
            return []
        return [line for trouble in troubles for line in trouble]

    def _tend(self, child: _Child) -> None:
        now = time.monotonic()
        if child.process is None:
            if now >= child.start_at:
                self._start(child)
            return
        code = child.process.poll()
        if code is None:
            return
        child.deaths = 1 if now - child.started > PROVEN else child.deaths + 1
        pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** (child.deaths - 1)) * random.uniform(0.8, 1)
        log.error("worker %d (process %d) ended with %d, again in %.1f s", child.number, child.process.pid, code, pause)
        self._forget(child)
        child.start_at = now + pause

    def _start(self, child: _Child) -> None:
        ours, theirs = socket.socketpair()
        ours.settimeout(ANSWER_WITHIN)
        environment = {**os.environ, LINE: str(theirs.fileno())}
        child.process = subprocess.Popen(
            self._command, env=environment, pass_fds=[theirs.fileno()], start_new_session=True
        )
        theirs.close()
        child.line, child.started = ours, time.monotonic()
        log.info("worker %d is process %d", child.number, child.process.pid)

    def _forget(self, child: _Child) -> None:
        with child.lock:
            if child.line is not None:
                child.line.close()
            child.process = child.line = None

    def _ask_one(self, child: _Child, question: str) -> list[str]:
        with child.lock:
            if child.line is None:
                return [f"worker {child.number} does not run"]
            try:
                child.line.sendall(f"{question}\n".encode())
                return [f"worker {child.number}: {trouble}" for trouble in json.loads(_read_line(child.line))]
            except (OSError, ValueError):
                return [f"worker {child.number} does not answer"]

    def _end(self) -> int:
        living = [child.process for child in self._children if child.process is not None]
        log.info("ending %d workers", len(living))
        for process in living:
            process.terminate()
        while any(process.poll() is None for process in living):
            if self._signals > 1:
                for process in living:
                    process.kill()
            time.sleep(0.05)
        for child in self._children:
            self._forget(child)
        return max((abs(process.returncode) for process in living), default=0)

    @contextmanager
    def _listening(self) -> Iterator[None]:
        def heard(number: int, _frame: FrameType | None) -> None:
            self._signals += 1

        before = {number: signal.signal(number, heard) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


@contextmanager
def supervised(ask: Ask, stop: Callable[[], None]) -> Iterator[None]:
    """In a child: answer the parent, and stop when it is gone. Does nothing in a process that nobody supervises."""
    number = os.environ.pop(LINE, None)
    if number is None:
        yield
        return
    line = socket.socket(fileno=int(number))
    line.set_inheritable(False)
    thread = threading.Thread(target=_answer, args=(line, ask, stop), name="outbox-supervised", daemon=True)
    thread.start()
    try:
        yield
    finally:
        with suppress(OSError):
            line.shutdown(socket.SHUT_RDWR)
        thread.join(1.0)
        line.close()


def _answer(line: socket.socket, ask: Ask, stop: Callable[[], None]) -> None:
    try:
        while question := _read_line(line):
            line.sendall(json.dumps(ask(question)).encode() + b"\n")
    except OSError as error:
        log.debug("the line to the supervisor is broken: %s", error)
    stop()


def _read_line(line: socket.socket) -> str:
    """One line without its end; empty where the other side is gone."""
    read = bytearray()
    while not read.endswith(b"\n"):
        some = line.recv(4096)
        if not some:
            return ""
        read += some
    return read.decode().rstrip("\n")
