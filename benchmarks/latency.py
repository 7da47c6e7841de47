"""From a commit to the broker's acknowledgement, beside the hand-written relay of `reference/latency.py`, which LISTENs as well.

Both serve a writer that commits 50 times a second at random, in a process of its own. Only the ratio carries over to another machine.
"""

import json
import multiprocessing
import os
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sqlalchemy.engine import make_url

from benchmarks.harness import Sample, Table, publish
from outbox_publisher import Event, Outbox, PublisherSettings, Relay
from outbox_publisher.schema import create_tables
from outbox_publisher.senders import sender_for
from outbox_shared.clock import SystemClock
from outbox_shared.database import make_engine
from outbox_shared.tables import TableNames
from tests.services.client import BenchClient
from tests.services.databases import postgresql_database
from tests.services.topics import Topics

EVENTS, RATE, ROUNDS, WARM_UP = 500, 50.0, 3, 20


class Timed:
    """A sender that notes when each event was acknowledged."""

    def __init__(self, sender: Any) -> None:
        self._sender = sender
        self.acknowledged: dict[str, float] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sender, name)

    def send(self, events: Sequence[Event], deadline: float) -> Any:
        flight = self._sender.send(events, deadline)
        return TimedFlight(flight, events, self.acknowledged)


class TimedFlight:
    """Notes the moment at which the relay can first know that everything has its answer."""

    def __init__(self, flight: Any, events: Sequence[Event], acknowledged: dict[str, float]) -> None:
        self._flight, self._events, self._acknowledged = flight, events, acknowledged

    def done(self) -> bool:
        done: bool = self._flight.done()
        return done and self._note()

    def wait(self, seconds: float) -> None:
        self._flight.wait(seconds)
        self.done()

    def results(self) -> Any:
        results = self._flight.results()
        self._note()
        return results

    def _note(self) -> bool:
        now = time.perf_counter()
        for event in self._events:
            self._acknowledged.setdefault(str(event.id), now)
        return True


def write(url: str, topic: str, committed: Any) -> None:
    engine, outbox, times = (
        make_engine(url, "outbox-publisher"),
        Outbox(PublisherSettings(defaults={"topic": topic})),
        {},
    )
    due = time.perf_counter() + 1
    for number in range(EVENTS + WARM_UP):
        due += random.expovariate(RATE)
        time.sleep(max(0.0, due - time.perf_counter()))
        with engine.begin() as connection:
            event = outbox.publish(connection, "order-created", {"n": number, "note": "x" * 470}, key=number)
        times[str(event.id)] = time.perf_counter()
    engine.dispose()
    committed.put(times)


def relay(url: str, kafka: str, topic: str, ready: Any, acknowledged: Any) -> None:
    sender = {"type": "kafka", "kafka": {"bootstrap-servers": kafka}}
    settings = PublisherSettings(database_url=url, defaults={"topic": topic}, sender=sender)
    timed = Timed(sender_for(settings, SystemClock()))
    with Relay(settings, sender=timed).background():
        ready.set()
        until = time.monotonic() + 120
        while len(timed.acknowledged) < EVENTS + WARM_UP:
            assert time.monotonic() < until, f"{len(timed.acknowledged)} events in two minutes"
            time.sleep(0.05)
    acknowledged.put(timed.acknowledged)


def ours(server: str, kafka: str) -> dict[str, float]:
    with postgresql_database(server) as url:
        engine = make_engine(url, "outbox-publisher")
        create_tables(engine, TableNames())
        engine.dispose()
        topic = Topics(kafka).create("latency", 4)
        context = multiprocessing.get_context("spawn")
        ready, committed, acknowledged = context.Event(), context.Queue(), context.Queue()
        relaying = context.Process(target=relay, args=(url, kafka, topic, ready, acknowledged))
        relaying.start()
        assert ready.wait(60)

        writing = context.Process(target=write, args=(url, topic, committed))
        writing.start()
        commits, acks = committed.get(), acknowledged.get()
        writing.join()
        relaying.join()
    took = sorted((acks[event] - commits[event]) * 1000 for event in list(commits)[WARM_UP:])
    assert len(took) == EVENTS
    return {f"p{p}": took[int(len(took) * p / 100)] for p in (50, 95, 99)}


def by_hand(server: str, kafka: str) -> dict[str, float]:
    with postgresql_database(server) as url:
        database = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
        topic = Topics(kafka).create("reference", 4)
        environment = {**os.environ, "REFERENCE_PG": database, "REFERENCE_KAFKA": kafka, "REFERENCE_TOPIC": topic}
        program = Path(__file__).parent / "reference/latency.py"
        command = [sys.executable, str(program), "--events", str(EVENTS), "--rate", str(RATE)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    told = json.loads(done.stdout)
    return {f"p{p}": told[f"p{p}_ms"] for p in (50, 95, 99)}


def measure(bench: BenchClient) -> None:
    server, kafka = bench.url("postgresql"), bench.url("kafka")
    variants = {"reference relay": by_hand, "outbox relay": ours}
    seen: dict[str, list[dict[str, float]]] = {name: [] for name in variants}
    for number in range(ROUNDS):
        for name, variant in variants.items():
            seen[name].append(variant(server, kafka))
            shown = "  ".join(f"{p} {value:.2f} ms" for p, value in seen[name][-1].items())
            print(f"    {number + 1}/{ROUNDS}  {name}: {shown}", flush=True)
    table = Table(f"Commit → acknowledgement of Kafka, {EVENTS} events, {RATE:.0f} a second", "ms")
    for percentile, bar in (("p50", "≤ 2"), ("p95", ""), ("p99", "≤ 4")):
        for name, runs in seen.items():
            base = None if name == "reference relay" else f"{percentile}, reference relay"
            sample = Sample(tuple(run[percentile] for run in runs))
            table.add(f"{percentile}, {name}", sample, base=base, bar=bar if base else "")
    publish("latency", table)
