"""What a long backlog costs towards its end, with and without a snapshot that keeps vacuum away; what cleanup costs meanwhile; memory."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import pairwise
from pathlib import Path

import psycopg

from benchmarks.backlog import Backlog, assert_arrived
from benchmarks.harness import Sample, Table, publish
from benchmarks.relay import EVENTS, kafka_sender, settings
from outbox_publisher.demo.embedded_kafka import read_topic
from tests.services.client import BenchClient
from tests.services.databases import postgresql_database
from tests.services.topics import Topics

PART = EVENTS
LONG, LONGEST = 5 * PART, 10 * PART
ROUNDS = 3


@contextmanager
def old_snapshot(backlog: Backlog) -> Iterator[None]:
    """Somebody's report that takes all day: no dead row can be removed while it is open."""
    with psycopg.connect(backlog.dsn) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute("SELECT count(*) FROM outbox_claims")
        yield
        connection.rollback()


def parts(backlog: Backlog) -> list[float]:
    """Events a second of each part of the backlog, in the order in which it was settled."""
    ranked = "SELECT processed_at, row_number() OVER (ORDER BY processed_at) AS n FROM outbox_events"
    found = f"SELECT n, extract(epoch FROM processed_at) FROM ({ranked}) AS r WHERE n % {PART} = 0 OR n = 1 ORDER BY n"
    with psycopg.connect(backlog.dsn) as connection:
        times = [float(row[1]) for row in connection.execute(found.encode())]
    return [PART / (later - earlier) for earlier, later in pairwise(times)]


class Runs:
    def __init__(self, server: str, kafka: str) -> None:
        self._server, self._kafka = server, kafka

    def decay(self, *, snapshot: bool) -> tuple[float, float]:
        """The first and the last part."""
        topic = Topics(self._kafka).create("long", 4)
        with postgresql_database(self._server) as url, Backlog.at(url, LONG, topic) as backlog:
            with old_snapshot(backlog) if snapshot else nullcontext():
                backlog.drain(settings(backlog, kafka_sender(self._kafka), topic))
            backlog.assert_settled(LONG, kept=True)
            found = parts(backlog)
            assert_arrived(read_topic(self._kafka, topic), LONG)
        print("    " + "  ".join(f"{rate:,.0f}" for rate in found), flush=True)
        return found[0], found[-1]

    def with_cleanup(self, ttl: str) -> tuple[float, int]:
        """Events a second, and how many rows were left when the last was settled."""
        topic = Topics(self._kafka).create("cleaned", 4)
        with postgresql_database(self._server) as url, Backlog.at(url, 3 * PART, topic) as backlog:
            given = settings(backlog, kafka_sender(self._kafka), topic).replace(
                "ttl: 1h", f"ttl: {ttl}, fixed-delay: 500ms"
            )
            seconds = backlog.drain(given)
            with psycopg.connect(backlog.dsn) as connection:
                (left,) = connection.execute("SELECT count(*) FROM outbox_events").fetchone() or (0,)
            assert_arrived(read_topic(self._kafka, topic), 3 * PART)
        return 3 * PART / seconds, left

    def memory(self) -> float:
        """The most that the relay's process had resident, in MB."""
        topic, peaks = Topics(self._kafka).create("longest", 4), [0.0]

        def look() -> None:
            for status in Path("/proc").glob("[0-9]*/status"):
                try:
                    if b"outbox_publisher\0run" in (status.parent / "cmdline").read_bytes():
                        lines = status.read_text().splitlines()
                        peaks.append(int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024)
                except (OSError, StopIteration):
                    continue

        with postgresql_database(self._server) as url, Backlog.at(url, LONGEST, topic) as backlog:
            backlog.drain(settings(backlog, kafka_sender(self._kafka), topic), watch=look)
            backlog.assert_settled(LONGEST, kept=True)
        return max(peaks)


def measure(bench: BenchClient) -> None:
    runs = Runs(bench.url("postgresql"), bench.url("kafka"))
    plain, held, cleaned, kept, left = [], [], [], [], []
    for _ in range(ROUNDS):
        plain.append(runs.decay(snapshot=False))
        held.append(runs.decay(snapshot=True))
        kept.append(runs.with_cleanup("1h")[0])
        rate, rows = runs.with_cleanup("1s")
        cleaned.append(rate)
        left.append(rows)
    memory = [runs.memory()]
    decay = Table(f"PostgreSQL → Kafka, {LONG:,} events: the first and the last {PART:,}", "events/s")
    for name, found in (("", plain), (", old snapshot held open", held)):
        decay.add(f"first{name}", Sample(tuple(first for first, _ in found)))
        decay.add(f"last{name}", Sample(tuple(last for _, last in found)), base=f"first{name}", bar="≥ 0.85")
    cleanup = Table(f"Cleanup while the relay drains {3 * PART:,} events", "events/s")
    cleanup.add("nothing is due for cleanup", Sample(tuple(kept)))
    cleanup.add("rows go after 1 s", Sample(tuple(cleaned)), base="nothing is due for cleanup", bar="≥ 0.9")
    space = Table(f"Memory of the relay's process, backlog of {LONGEST:,}", "MB")
    space.add("most resident (≤ 150)", Sample(tuple(memory)))
    notes = {"rows left when the last event was settled (ttl 1 s)": left, "cores": os.cpu_count()}
    publish("endurance", decay, cleanup, space, notes=notes)
