"""How fast the relay drains a backlog into RabbitMQ, beside the bare publisher of `reference/publish_rabbitmq.py`, which has no database.

Every run asserts its effects: each event in the queue once with its headers, each row settled.
"""

import json
import os
import subprocess
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from uuid import uuid4

import pika

from benchmarks.backlog import EVENT_TYPE, Backlog, event_id
from benchmarks.harness import Table, publish, take_turns
from benchmarks.relay import BATCH, settings
from tests.services.client import BenchClient
from tests.services.databases import postgresql_database

EVENTS = int(os.environ.get("OUTBOX_BENCH_EVENTS", "100000")) // 2


class Runs:
    def __init__(self, server: str, rabbitmq: str) -> None:
        self._server, self._rabbitmq = server, rabbitmq

    def reference(self, queue_type: str) -> float:
        program = str(Path(__file__).parent / "reference/publish_rabbitmq.py")
        options = ["--events", str(EVENTS), "--batch", str(BATCH), "--queue-type", queue_type]
        environment = {**os.environ, "REFERENCE_RABBITMQ": self._rabbitmq}
        done = subprocess.run(
            [sys.executable, program, *options], env=environment, capture_output=True, text=True, check=True
        )
        return float(json.loads(done.stdout)["confirmed_per_s"])

    def relay(self, queue_type: str) -> float:
        name = f"bench-{uuid4().hex[:8]}"
        connection = pika.BlockingConnection(pika.URLParameters(self._rabbitmq))
        channel = connection.channel()
        channel.exchange_declare(name, "direct", durable=True)
        channel.queue_declare(name, durable=True, arguments={"x-queue-type": queue_type})
        channel.queue_bind(name, name, EVENT_TYPE)
        connection.close()
        sender = f'{{type: rabbitmq, rabbitmq: {{url: "{self._rabbitmq}"}}}}'
        with postgresql_database(self._server) as url, Backlog.at(url, EVENTS, name, aggregates=False) as backlog:
            seconds = backlog.drain(settings(backlog, sender, name))
            backlog.assert_settled(EVENTS, kept=True, positions=False)
        self._assert_arrived_and_remove(name)
        return EVENTS / seconds

    def _assert_arrived_and_remove(self, name: str) -> None:
        connection = pika.BlockingConnection(pika.URLParameters(self._rabbitmq))
        channel = connection.channel()
        channel.basic_qos(prefetch_count=5000)
        counts: Counter[str] = Counter()
        for method, properties, _ in channel.consume(name, inactivity_timeout=2):
            if method is None:
                break
            assert properties.headers["outbox_event_id"] == properties.message_id
            assert properties.headers["outbox_event_type"] == properties.type == EVENT_TYPE
            assert properties.content_type == "application/json"
            counts[properties.message_id] += 1
            if len(counts) % 5000 == 0 or len(counts) == EVENTS:
                channel.basic_ack(method.delivery_tag, multiple=True)
            if len(counts) == EVENTS:
                break
        assert counts == Counter(str(event_id(number)) for number in range(EVENTS)), len(counts)
        channel.cancel()
        channel.queue_delete(name)
        channel.exchange_delete(name)
        connection.close()


def measure(bench: BenchClient) -> None:
    runs = Runs(bench.url("postgresql"), bench.url("rabbitmq"))
    variants = {
        f"{who}, {kind} queue": partial(run, kind)
        for kind in ("classic", "quorum")
        for who, run in (("bare publisher", runs.reference), ("relay", runs.relay))
    }
    seen = take_turns(variants)
    table = Table(f"PostgreSQL → RabbitMQ, {EVENTS:,} events, batch {BATCH}, rows kept", "events/s")
    for kind in ("classic", "quorum"):
        table.add(f"bare publisher, {kind} queue", seen[f"bare publisher, {kind} queue"])
        table.add(
            f"relay, {kind} queue", seen[f"relay, {kind} queue"], base=f"bare publisher, {kind} queue", bar="≥ 0.7"
        )
    publish("rabbitmq", table)
