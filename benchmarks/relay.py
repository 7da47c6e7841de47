"""How fast the relay drains a backlog, beside the bare loop of `reference/relay_rows.py`.

Variants are interleaved and repeated, and every run asserts its effects: each event in the topic exactly once, each row settled. What
is printed is the median with its spread; only the ratio carries over to another machine.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from sqlalchemy import func, insert, select
from sqlalchemy.engine import Engine, make_url

from benchmarks.reference import common
from outbox_publisher.demo.embedded_kafka import read_topic
from outbox_publisher.demo.relay_process import RelayProcess
from outbox_publisher.schema import create_tables
from outbox_publisher.store import EventStore, store_for
from outbox_shared.database import make_engine
from outbox_shared.ids import lane_of, new_event_id
from outbox_shared.tables import TableNames
from tests.services.client import BenchClient
from tests.services.databases import postgresql_database
from tests.services.topics import Topics

EVENTS, BATCH, ROUNDS = 20_000, 500, 3
SETTINGS = """
outbox:
  database-url: {url}
  publisher:
    sender: {{type: kafka, kafka: {{bootstrap-servers: "{kafka}"}}}}
    defaults: {{topic: {topic}, batch-size: {batch}}}
"""


def reference(server: str, kafka: str) -> float:
    """The hand-written loop, one batch in flight, rows kept."""
    with postgresql_database(server) as url:
        database = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
        environment = {
            **os.environ,
            "REFERENCE_PG": database,
            "REFERENCE_KAFKA": kafka,
            "REFERENCE_TOPIC": Topics(kafka).create("reference", 4),
        }
        program = Path(__file__).parent / "reference/relay_rows.py"
        command = [
            sys.executable,
            str(program),
            "--events",
            str(EVENTS),
            "--batch",
            str(BATCH),
            "--window",
            "1",
            "--settle",
            "keep",
        ]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout)["relay_per_s"])


def relay(server: str, kafka: str) -> float:
    """`outbox-publisher run` as a process, timed from its first settled row to its last."""
    topic = Topics(kafka).create("relay", 4)
    with postgresql_database(server) as url, tempfile.TemporaryDirectory() as folder:
        engine, store = make_engine(url, "outbox-publisher"), store_for("postgresql", TableNames())
        create_tables(engine, TableNames())
        fill(engine, store, topic)
        process = RelayProcess(Path(folder), SETTINGS.format(url=url, kafka=kafka, topic=topic, batch=BATCH))
        process.start()
        try:
            first, began = wait_for(engine, store, 1)
            last, ended = wait_for(engine, store, EVENTS)
        finally:
            process.stop()
        arrived = [dict(message.headers() or [])["outbox_event_id"] for message in read_topic(kafka, topic)]
        assert len(arrived) == len(set(arrived)) == EVENTS
        engine.dispose()
    return (last - first) / (ended - began)


def fill(engine: Engine, store: EventStore, topic: str) -> None:
    rows = []
    for n in range(EVENTS):
        event_id, key = new_event_id(), f"k{n % common.KEYS}"
        rows.append(
            {"id": event_id, "lane": lane_of(key, event_id), "event_type": "order-created", "topic": topic, "key": key,
             "content_type": "application/json", "aggregate_type": "Order", "aggregate_id": str(n), "payload": common.payload(n % 1000)}
        )  # fmt: skip
    with engine.begin() as connection:
        connection.execute(insert(store.tables.events), rows)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("VACUUM ANALYZE outbox_events")
        connection.exec_driver_sql("CHECKPOINT")


def wait_for(engine: Engine, store: EventStore, wanted: int) -> tuple[int, float]:
    events = store.tables.events
    done = select(func.count()).where(events.c.processed_at.is_not(None))
    until = time.monotonic() + 120
    while True:
        with engine.connect() as connection:
            count = connection.execute(done).scalar_one()
        if count >= wanted:
            return count, time.perf_counter()
        assert time.monotonic() < until, f"{count} of {wanted} events in two minutes"
        time.sleep(0.01)


def measure(bench: BenchClient) -> None:
    variants = {"reference loop": reference, "outbox-publisher run": relay}
    seen: dict[str, list[float]] = {name: [] for name in variants}
    server, kafka = bench.url("postgresql"), bench.url("kafka")
    for _ in range(ROUNDS):
        for name, variant in variants.items():
            seen[name].append(variant(server, kafka))
    base = statistics.median(seen["reference loop"])
    print(
        f"\nPostgreSQL → Kafka, {EVENTS:,} events, batch {BATCH}, one batch in flight, rows kept; medians of {ROUNDS}\n"
    )
    for name, rates in seen.items():
        middle = statistics.median(rates)
        print(f"  {name:<22}{middle:>9,.0f} events/s   {middle / base:.2f}   ({min(rates):,.0f} … {max(rates):,.0f})")
