"""How fast the relay drains a backlog into Kafka, beside the bare loop of `reference/relay_rows.py` and beside two other relays.

100,000 events of 500 bytes with keys, batches of 500; `outbox-publisher run` as a child process, at its defaults except batch, window and
ttl. Every run asserts its effects: each event in the topic once with its headers, each row settled, positions where rows are kept.
"""

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks import peers
from benchmarks.backlog import RELAY, Backlog, assert_arrived
from benchmarks.harness import Sample, Table, publish, take_turns
from outbox_publisher.demo.embedded_kafka import read_topic
from tests.services.client import BenchClient
from tests.services.databases import mariadb_database, postgresql_database
from tests.services.topics import Topics

EVENTS, BATCH = int(os.environ.get("OUTBOX_BENCH_EVENTS", "100000")), 500
SLOW_ACKS = 0.005
"""Seconds that everything is late in each direction, so that an acknowledgement takes 10 ms."""


def kafka_sender(kafka: str) -> str:
    return f'{{type: kafka, kafka: {{bootstrap-servers: "{kafka}"}}}}'


def settings(
    backlog: Backlog, sender: str, topic: str, *, window: int = 4, keep: bool = True, batch: int = BATCH
) -> str:
    given = {"window": window, "ttl": "1h" if keep else "0s", "batch": batch}
    return RELAY.format(url=backlog.url, sender=sender, topic=topic, **given)


class Runs:
    def __init__(self, server: str, kafka: str) -> None:
        self._server, self._kafka = server, kafka
        self._told: dict[str, list[dict[str, Any]]] = {}

    def reference(self, window: int, settle: str) -> float:
        with postgresql_database(self._server) as url:
            dsn = Backlog(url, None, None).dsn  # type: ignore[arg-type]  # only its address is needed
            topic = Topics(self._kafka).create("reference", 4)
            environment = {**os.environ, "REFERENCE_PG": dsn, "REFERENCE_KAFKA": self._kafka, "REFERENCE_TOPIC": topic}
            program = str(Path(__file__).parent / "reference/relay_rows.py")
            options = ["--events", EVENTS, "--batch", BATCH, "--window", window, "--settle", settle]
            command = [sys.executable, program, *map(str, options)]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        told = json.loads(done.stdout)
        self._told.setdefault(f"{window} {settle}", []).append(told)
        return float(told["relay_per_s"])

    def serial_bound(self, window: int, settle: str) -> Sample:
        """What a database and a producer that take turns could do: 1 / (1 / database + 1 / produce)."""
        told = self._told[f"{window} {settle}"]
        return Sample(tuple(1 / (1 / one["database_only_per_s"] + 1 / one["produce_only_per_s"]) for one in told))

    def relay(self, window: int = 4, *, keep: bool = True, processes: int = 1, events: int = EVENTS) -> float:
        topic = Topics(self._kafka).create("relay", 4)
        with postgresql_database(self._server) as url, Backlog.at(url, events, topic) as backlog:
            given = settings(backlog, kafka_sender(self._kafka), topic, window=window, keep=keep)
            seconds = backlog.drain(given, processes=processes)
            backlog.assert_settled(events, kept=keep)
            assert_arrived(read_topic(self._kafka, topic), events)
        return events / seconds

    def peer(self, name: str, events: int) -> float:
        with postgresql_database(self._server) as url:
            topic = Topics(self._kafka).create("peer", 4)
            return float(peers.report(name, Backlog(url, None, None).dsn, self._kafka, topic, events)["events_per_s"])  # type: ignore[arg-type]


def measure(bench: BenchClient) -> None:
    runs = Runs(bench.url("postgresql"), bench.url("kafka"))
    variants = {
        "reference, kept": partial(runs.reference, 4, "keep"),
        "relay, kept": runs.relay,
        "reference, removed": partial(runs.reference, 4, "delete"),
        "relay, removed (ttl 0)": partial(runs.relay, keep=False),
        "reference, one in flight": partial(runs.reference, 1, "keep"),
        "relay, one in flight": partial(runs.relay, 1),
        "two relay processes": partial(runs.relay, processes=2),
        "txoutbox, best settings": partial(runs.peer, "txoutbox", EVENTS),
        "faststream-outbox, defaults": partial(runs.peer, "faststream-outbox", 5_000),
    }
    seen = take_turns(variants)
    table = Table(f"PostgreSQL → Kafka, {EVENTS:,} events, batch {BATCH}", "events/s")
    table.add("reference, kept", seen["reference, kept"])
    table.add("relay, kept", seen["relay, kept"], base="reference, kept", bar="≥ 0.7")
    table.add("reference, removed", seen["reference, removed"])
    table.add("relay, removed (ttl 0)", seen["relay, removed (ttl 0)"], base="reference, removed", bar="≥ 0.7")
    table.add("reference, one in flight", seen["reference, one in flight"])
    table.add("relay, one in flight", seen["relay, one in flight"], base="reference, one in flight", bar="≥ 0.7")
    bounds = Table("The same, against a database and a producer that take turns", "events/s")
    for how, settle in (("kept", "keep"), ("removed", "delete")):
        bounds.add(f"serial bound, {how}", runs.serial_bound(4, settle))
        name = "relay, kept" if settle == "keep" else "relay, removed (ttl 0)"
        bounds.add(f"relay, {how}", seen[name], base=f"serial bound, {how}", bar="≥ 0.6")
    others = Table("The same, against other relays and beside another process", "events/s")
    others.add("txoutbox, best settings", seen["txoutbox, best settings"])
    others.add("relay, removed (ttl 0)", seen["relay, removed (ttl 0)"], base="txoutbox, best settings", bar="≥ 1.8")
    others.add("faststream-outbox, defaults", seen["faststream-outbox, defaults"])
    others.add("relay, kept", seen["relay, kept"], base="faststream-outbox, defaults", bar="≥ 25")
    others.add("two relay processes", seen["two relay processes"], base="relay, kept", bar="≥ 1.3")
    publish("relay", table, bounds, others)


def measure_slow_acks(bench: BenchClient) -> None:
    """Kafka behind a network that takes 10 ms for an acknowledgement."""
    events = EVENTS // 2
    own = bench.own("kafka", behind_proxy=True)
    try:
        runs = Runs(bench.url("postgresql"), own.url)
        own.proxy.latency(SLOW_ACKS)
        seen = take_turns(
            {
                "one batch in flight": partial(runs.relay, 1, events=events),
                "four batches in flight": partial(runs.relay, 4, events=events),
            }
        )
    finally:
        own.release()
    table = Table(f"PostgreSQL → Kafka, acknowledgements take 10 ms, {events:,} events", "events/s")
    table.add("one batch in flight", seen["one batch in flight"])
    table.add("four batches in flight", seen["four batches in flight"], base="one batch in flight", bar="≥ 1.5")
    publish("slow_acks", table)


def measure_databases(bench: BenchClient) -> None:
    """The other databases, without a bar."""
    kafka, server, mariadb = bench.url("kafka"), bench.url("postgresql"), bench.url("mariadb")
    events = EVENTS // 5

    def on(url: str) -> float:
        topic = Topics(kafka).create("relay", 4)
        with Backlog.at(url, events, topic) as backlog:
            seconds = backlog.drain(settings(backlog, kafka_sender(kafka), topic))
            backlog.assert_settled(events, kept=True)
            assert_arrived(read_topic(kafka, topic), events)
        return events / seconds

    def on_postgresql() -> float:
        with postgresql_database(server) as url:
            return on(url)

    def on_mariadb() -> float:
        with mariadb_database(mariadb) as url:
            return on(url)

    def on_sqlite() -> float:
        with TemporaryDirectory() as folder:
            return on(f"sqlite:///{folder}/outbox.sqlite")

    seen = take_turns({"PostgreSQL": on_postgresql, "MariaDB": on_mariadb, "SQLite": on_sqlite})
    table = Table(f"Databases → Kafka, {events:,} events, batch {BATCH}, rows kept", "events/s")
    table.add("PostgreSQL", seen["PostgreSQL"])
    for name in ("MariaDB", "SQLite"):
        table.add(name, seen[name], base="PostgreSQL")
    publish("databases", table)


__all__ = ["measure", "measure_databases", "measure_slow_acks"]
