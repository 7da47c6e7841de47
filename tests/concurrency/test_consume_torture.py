"""Every event three times, in any order, to many threads of several processes that are killed at random: each effect happens once.

The effects have no unique key, so one that happens twice is two rows. The run counts the deliveries that stood waiting for another's key,
and fails if there were none: it would have shown nothing.
"""

import multiprocessing
import os
import random
import select
import signal
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from outbox_consumer.schema import create_tables
from outbox_shared.ids import new_event_id
from tests.concurrency.consumer_process import Share, work
from tests.consuming import ConsumingDatabase

COPIES = 3
PATIENCE = 120.0
"""Seconds without a word from anybody."""

_PROCESSES = multiprocessing.get_context("forkserver")


@dataclass(frozen=True)
class Size:
    events: int
    processes: int
    threads: int
    kills: int


SMALL = Size(events=250, processes=2, threads=8, kills=6)
FULL = Size(events=5_000, processes=4, threads=16, kills=60)
SIZES = [SMALL, pytest.param(FULL, marks=[pytest.mark.full, pytest.mark.timeout(3600)])]


class Worker:
    """One place for a process; whoever dies here is replaced."""

    def __init__(self, url: str, folder: Path, threads: int, deliveries: dict[int, UUID], seed: int) -> None:
        self._url, self._folder, self._threads, self.open, self._seed = url, folder, threads, deliveries, seed
        self._lives = 0
        self._rest = b""
        self.start()

    def start(self) -> None:
        self._lives += 1
        self.pipe, theirs = _PROCESSES.Pipe(duplex=False)
        share = Share(
            self._url,
            str(self._folder / f"{self._seed}-{self._lives}.log"),
            self._threads,
            list(self.open.items()),
            self._seed * 100 + self._lives,
        )
        self.process: ForkServerProcess = _PROCESSES.Process(target=work, args=(share, theirs))
        self.process.start()
        theirs.close()

    def kill(self) -> bool:
        """False where it was dead already."""
        assert self.process.pid is not None
        try:
            os.kill(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True

    def lines(self) -> Iterator[list[str]]:
        """What it has said since; EOFError when it is dead and has said everything."""
        said = os.read(self.pipe.fileno(), 1 << 20)
        if not said:
            raise EOFError
        *whole, self._rest = (self._rest + said).split(b"\n")
        for line in whole:
            yield line.decode().split()

    def bury(self) -> int | None:
        self._rest = b""
        self.pipe.close()
        self.process.join(PATIENCE)
        return self.process.exitcode


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES, ids=["small", "full"])
def test_each_effect_happens_once_whoever_dies(
    sync_database: ConsumingDatabase, size: Size, tmp_path: Path, record_property: Any
):
    # given every event three times, shuffled and dealt to the processes
    database, chance = sync_database, random.Random(17)
    create_tables(database.engine)
    events = [new_event_id() for _ in range(size.events)]
    deliveries = events * COPIES
    chance.shuffle(deliveries)
    shares = [
        {number: event_id for number, event_id in enumerate(deliveries) if number % size.processes == place}
        for place in range(size.processes)
    ]
    moments = sorted(chance.sample(range(len(deliveries) // 20, len(deliveries) * 9 // 10), size.kills))

    # when they are consumed, and processes are killed at random moments
    workers = [Worker(database.url, tmp_path, size.threads, share, number + 1) for number, share in enumerate(shares)]
    ledger, acked, killed = Ledger(), 0, 0
    try:
        while any(worker.open for worker in workers):
            living: dict[Connection, Worker] = {worker.pipe: worker for worker in workers if not worker.pipe.closed}
            readable, _, _ = select.select(list(living), [], [], PATIENCE)
            assert readable, f"no word for {PATIENCE} s: {logs(tmp_path)}"
            for pipe in readable:
                worker = living[pipe]
                try:
                    for line in worker.lines():
                        if line[0] == "acked":
                            del worker.open[int(line[1])]
                            acked += 1
                        else:
                            ledger.note(line)
                except EOFError:
                    code = worker.bury()
                    assert code in {0, -signal.SIGKILL}, logs(tmp_path)
                    if worker.open:
                        worker.start()
                if killed < len(moments) and acked >= moments[killed]:
                    victim = chance.choice([other for other in workers if not other.pipe.closed])
                    killed += victim.kill()
    finally:
        for worker in workers:
            worker.process.kill()

    # then every effect is there, once
    effects = database.effects()
    assert effects == sorted(map(str, events))
    assert database.marks() == ["torture"] * size.events

    waits = ledger.waits()
    print(f"\n{database.driver}: {len(deliveries)} deliveries, {killed} kills, {waits} waited for another's key")
    record_property("waits", waits)
    assert killed == size.kills
    assert waits > 0, "no delivery met a twin: this run has shown nothing"


class Ledger:
    """Who held a key when, and who asked for it when.

    At the moment when a handler is left, its transaction still holds the key (on SQLite the whole database). A delivery of the same event
    whose statement was on its way before that moment, and was answered after it, has waited for that transaction.
    """

    def __init__(self) -> None:
        self._held: dict[str, list[tuple[int, int]]] = defaultdict(list)
        self._asked: list[tuple[str, int, int]] = []

    def note(self, line: list[str]) -> None:
        kind, event_id, start, end = line
        if kind == "held":
            self._held[event_id].append((int(start), int(end)))
        else:
            self._asked.append((event_id, int(start), int(end)))

    def waits(self) -> int:
        return sum(
            any(sent < left < answered for _, left in self._held[event_id]) for event_id, sent, answered in self._asked
        )


def logs(folder: Path) -> str:
    return "\n".join(path.read_text()[-4000:] for path in folder.glob("*.log") if path.stat().st_size)


def test_the_ledger_counts_those_who_asked_while_another_held_the_key():
    ledger = Ledger()
    for line in (
        "held e 10 20",
        "asked e 5 10",  # the holder itself
        "asked e 12 21",  # waited
        "asked e 9 22",  # waited all the time
        "asked e 21 22",  # came later
        "asked f 12 21",  # another event
    ):
        ledger.note(line.split())

    assert ledger.waits() == 2
