"""What an event costs the transaction that publishes it, beside a hand-written INSERT of the same row with SQLAlchemy Core.

`one` is a transaction that writes a business row and an event; `batch` is 1,000 events in one transaction. The hand-written side makes
its ids and JSON itself, as a person would; for the batch it is also shown what Core needs when its rows were ready before the clock
started.
"""

import asyncio
import gc
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from sqlalchemy import Column, Integer, MetaData, Table, Text, func, insert, select
from sqlalchemy.engine import Engine
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from benchmarks import harness
from outbox_publisher import AsyncOutbox, Outbox, PublisherSettings
from outbox_publisher.schema import create_tables
from outbox_publisher.store import store_for
from outbox_shared.database import make_engine
from outbox_shared.ids import lane_of, new_event_id
from outbox_shared.tables import TableNames
from tests.services.client import BenchClient
from tests.services.databases import mariadb_database, postgresql_database

ROUNDS, TRANSACTIONS = 120, 10  # many short turns: whatever else the machine does meets all variants alike
BATCHES, BATCH = 40, 1000
WARM_UP = 5
ORDERS = Table("orders", MetaData(), Column("id", Integer, primary_key=True, autoincrement=False), Column("note", Text))
SETTINGS = PublisherSettings(defaults={"topic": "orders"})
OUTBOX = Outbox(SETTINGS)

Variant = Callable[[], float]
"""Runs once and returns the seconds that it took."""


def payload(n: int) -> dict[str, Any]:
    return {"order_id": n, "customer": f"customer-{n}", "note": "x" * 420, "lines": [1, 2, 3]}


def row(n: int) -> dict[str, Any]:
    """What a hand-written outbox stores."""
    event_id, key = new_event_id(), str(n)
    return {
        "id": event_id,
        "lane": lane_of(key, event_id),
        "event_type": "order-created",
        "topic": "orders",
        "key": key,
        "content_type": "application/json",
        "payload": json.dumps(payload(n)).encode(),
    }


class Database:
    """One database with the tables, and the statements of the hand-written side."""

    def __init__(self, url: str) -> None:
        self.engine: Engine = make_engine(url, "outbox-publisher")
        create_tables(self.engine, TableNames())
        self.events = store_for(self.engine.dialect.name, TableNames()).tables.events
        self.by_hand, self.order = insert(self.events), insert(ORDERS)
        ORDERS.create(self.engine)
        self.orders = self.stored = 0

    def transactions(self, store: Callable[[Any, int], object]) -> float:
        """Orders with their events, each in a transaction of its own."""
        started = time.perf_counter()
        for _ in range(TRANSACTIONS):
            self.orders += 1
            with self.engine.begin() as connection:
                connection.execute(self.order, {"id": self.orders, "note": "x"})
                store(connection, self.orders)
        self.stored += TRANSACTIONS
        return (time.perf_counter() - started) / TRANSACTIONS

    def batch(self, store: Callable[[Any], object]) -> float:
        """Events alone, all in one transaction that is already open."""
        with self.engine.begin() as connection:
            connection.execute(select(1))
            started = time.perf_counter()
            store(connection)
            took = time.perf_counter() - started
        self.stored += BATCH
        return took

    def check(self) -> None:
        """Every round stored what it said."""
        with self.engine.connect() as connection:
            found = connection.execute(select(func.count()).select_from(self.events)).scalar_one()
        assert found == self.stored, f"{found} events, not {self.stored}"


def one(database: Database) -> dict[str, Variant]:
    return {
        "by hand": lambda: database.transactions(lambda connection, n: connection.execute(database.by_hand, row(n))),
        "publish()": lambda: database.transactions(
            lambda connection, n: OUTBOX.publish(connection, "order-created", payload(n), key=n)
        ),
    }


def batch(database: Database) -> dict[str, Variant]:
    def ready() -> float:
        rows = [row(n) for n in range(BATCH)]
        return database.batch(lambda connection: connection.execute(database.by_hand, rows))

    def ours() -> float:
        payloads = [payload(n) for n in range(BATCH)]
        return database.batch(
            lambda connection: OUTBOX.publish_batch(connection, "order-created", payloads, key=lambda p: p["order_id"])
        )

    return {
        "by hand": lambda: database.batch(lambda c: c.execute(database.by_hand, [row(n) for n in range(BATCH)])),
        "rows ready": ready,
        "publish_batch()": ours,
    }


class AsyncDatabase(Database):
    """The same through an async driver, each measurement on the loop that owns the connections."""

    def __init__(self, url: str, drivername: str) -> None:
        super().__init__(url)
        self.runner = asyncio.Runner()
        self.async_engine: AsyncEngine = create_async_engine(self.engine.url.set(drivername=drivername))
        self.outbox = AsyncOutbox(SETTINGS)

    async def async_transactions(self, by_hand: bool) -> float:
        started = time.perf_counter()
        for _ in range(TRANSACTIONS):
            self.orders += 1
            async with self.async_engine.begin() as connection:
                await connection.execute(self.order, {"id": self.orders, "note": "x"})
                if by_hand:
                    await connection.execute(self.by_hand, row(self.orders))
                else:
                    await self.outbox.publish(connection, "order-created", payload(self.orders), key=self.orders)
        self.stored += TRANSACTIONS
        return (time.perf_counter() - started) / TRANSACTIONS

    def variants(self) -> dict[str, Variant]:
        return {
            "by hand": lambda: self.runner.run(self.async_transactions(by_hand=True)),
            "publish()": lambda: self.runner.run(self.async_transactions(by_hand=False)),
        }

    def close(self) -> None:
        self.runner.run(self.async_engine.dispose())
        self.runner.close()


def interleaved(variants: dict[str, Variant], rounds: int) -> dict[str, list[float]]:
    seen: dict[str, list[float]] = {name: [] for name in variants}
    gc.collect()
    gc.freeze()  # what was there before is nobody's garbage
    for number in range(rounds + WARM_UP):
        order = list(variants.items())
        for name, variant in order if number % 2 else reversed(order):  # nobody always comes second
            seen[name].append(variant())
    return {name: sorted(times[WARM_UP:]) for name, times in seen.items()}


def table_of(title: str, seen: dict[str, list[float]], per: int) -> harness.Table:
    found = harness.Table(title, "µs")
    for name, times in seen.items():
        sample = harness.Sample(tuple(seconds / per * 1e6 for seconds in times))
        found.add(name, sample, base=None if name == "by hand" else "by hand")
    return found


@contextmanager
def databases(bench: BenchClient) -> Iterator[dict[str, str]]:
    with ExitStack() as made:
        folder = made.enter_context(tempfile.TemporaryDirectory())
        yield {
            "PostgreSQL": made.enter_context(postgresql_database(bench.url("postgresql"))),
            "MariaDB": made.enter_context(mariadb_database(bench.url("mariadb"))),
            "SQLite": f"sqlite:///{folder}/bench.db",
        }


def measure(bench: BenchClient) -> None:
    tables = []
    with databases(bench) as urls:
        for name, url in urls.items():
            database = Database(url)
            title = f"{name}: a transaction with one business row and one event"
            tables.append(table_of(title, interleaved(one(database), ROUNDS), 1))
            title = f"{name}: {BATCH:,} events at once, per event"
            tables.append(table_of(title, interleaved(batch(database), BATCHES), BATCH))
            database.check()
            database.engine.dispose()
    with postgresql_database(bench.url("postgresql")) as url:
        awaited = AsyncDatabase(url, "postgresql+asyncpg")
        title = "PostgreSQL, asyncpg: the same transaction"
        tables.append(table_of(title, interleaved(awaited.variants(), ROUNDS), 1))
        awaited.check()
        awaited.close()
        awaited.engine.dispose()
    harness.publish("publish", *tables)
