"""Looking at processes through /proc: who belongs to a server, and what state they are in.

A pid alone may be somebody else's by tomorrow; together with its start time it is one process.
"""

import os
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")


class Process(NamedTuple):
    pid: int
    started: int

    @property
    def alive(self) -> bool:
        """Running or stopped. A killed process is a zombie before its last thread has let go of its files."""
        found = _stat(self.pid)
        return (
            found is not None
            and found.started == self.started
            and (found.state not in "ZX" or any(state not in "ZX" for state in self._thread_states()))
        )

    @property
    def stopped(self) -> bool:
        """Every thread stands still. A JVM's threads need some milliseconds after SIGSTOP."""
        return all(state in "TtZX" for state in self._thread_states())

    def _thread_states(self) -> list[str]:
        tasks = _entries(PROC / str(self.pid) / "task")
        return [found.state for task in tasks if (found := _stat(int(task), self.pid))]

    def send(self, what: signal.Signals) -> None:
        if self.alive:
            with suppress(ProcessLookupError):
                os.kill(self.pid, what)


class _Stat(NamedTuple):
    state: str
    parent: int
    started: int


def _entries(folder: Path) -> list[str]:
    with suppress(OSError):
        return [entry.name for entry in folder.iterdir() if entry.name.isdigit()]
    return []


def _stat(task: int, pid: int | None = None) -> _Stat | None:
    try:
        text = Path(PROC, str(pid or task), "task", str(task), "stat").read_text(errors="replace")
    except OSError:
        return None
    # The command's name stands in parentheses and may contain anything.
    fields = text.rpartition(")")[2].split()
    return _Stat(fields[0], int(fields[1]), int(fields[19]))


def find_process(pid: int) -> Process | None:
    found = _stat(pid)
    return Process(pid, found.started) if found else None


def family(roots: Iterable[int]) -> list[Process]:
    """These processes and all their descendants, parents first."""
    children: dict[int, list[Process]] = {}
    known: dict[int, Process] = {}
    for entry in _entries(PROC):
        if found := _stat(int(entry)):
            known[int(entry)] = Process(int(entry), found.started)
            children.setdefault(found.parent, []).append(known[int(entry)])
    waiting = [known[root] for root in roots if root in known]
    members: list[Process] = []
    while waiting:
        process = waiting.pop(0)
        if process.alive:
            members.append(process)
        waiting.extend(children.get(process.pid, []))
    return members


def wait_until(condition: Callable[[], bool], seconds: float, pause: float = 0.01) -> bool:
    """Whether the condition came true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(pause)
    return True
