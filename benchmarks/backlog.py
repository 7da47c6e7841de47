"""A long backlog, made as fast as each server takes it, and an `outbox-publisher run` that is timed while it drains it."""

import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import psycopg
from sqlalchemy import func, insert, select
from sqlalchemy.engine import Engine, make_url

from benchmarks.reference import common
from outbox_publisher.demo.relay_process import RelayProcess
from outbox_publisher.operations import Operations
from outbox_publisher.schema import create_tables
from outbox_publisher.settings import PublisherSettings
from outbox_publisher.store import EventStore, channel_for, notification, store_for
from outbox_shared.database import make_engine
from outbox_shared.state import RELAY as HEARTBEAT
from outbox_shared.tables import TableNames

EVENT_TYPE = "order-created"
COLUMNS = ("id", "lane", "event_type", "topic", "key", "content_type", "aggregate_type", "aggregate_id", "payload")
PATIENCE = 300.0

RELAY = """
outbox:
  database-url: {url}
  publisher:
    window: {window}
    sender: {sender}
    clean-up: {{ttl: {ttl}}}
    defaults: {{topic: {topic}, batch-size: {batch}}}
"""


def event_id(number: int) -> uuid.UUID:
    return uuid.UUID(int=(0x0190F0F0 << 96) | (7 << 76) | (2 << 62) | number)


def row(number: int, topic: str) -> tuple[Any, ...]:
    """The same events as those of the reference loops."""
    key = f"k{number % common.KEYS}"
    return (
        event_id(number), number % 1024, EVENT_TYPE, topic, key, "application/json", "Order", str(number), common.payload(number % 1000)
    )  # fmt: skip


def without_aggregate(one: tuple[Any, ...]) -> tuple[Any, ...]:
    """As in `reference/publish_rabbitmq.py`, whose messages carry id and type."""
    return (*one[:6], None, None, one[8])


@dataclass(frozen=True, slots=True)
class Backlog:
    """Events in a database of their own."""

    url: str
    engine: Engine
    store: EventStore

    @classmethod
    @contextmanager
    def at(cls, url: str, events: int, topic: str, *, aggregates: bool = True) -> Iterator["Backlog"]:
        engine = make_engine(url, "outbox-publisher")
        create_tables(engine, TableNames())
        backlog = cls(url, engine, store_for(engine.dialect.name, TableNames()))
        backlog.fill(events, topic, aggregates=aggregates)
        try:
            yield backlog
        finally:
            engine.dispose()

    @property
    def dsn(self) -> str:
        """For libpq."""
        return make_url(self.url).set(drivername="postgresql").render_as_string(hide_password=False)

    def fill(self, events: int, topic: str, *, aggregates: bool = True) -> None:
        rows = (row(number, topic) if aggregates else without_aggregate(row(number, topic)) for number in range(events))
        if self.engine.dialect.name != "postgresql":
            while some := [dict(zip(COLUMNS, one, strict=True)) for one in islice(rows, 5000)]:
                with self.engine.begin() as connection:
                    connection.execute(insert(self.store.tables.events), some)
            return
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            with connection.cursor().copy(f"COPY outbox_events ({', '.join(COLUMNS)}) FROM STDIN".encode()) as copy:
                for one in rows:
                    copy.write_row(one)
            connection.execute("VACUUM ANALYZE outbox_events")
            connection.execute("CHECKPOINT")

    def _living(self) -> int:
        with self.engine.connect() as connection:
            return len(self.store.state.rows(connection, HEARTBEAT))

    def _wake(self) -> None:
        channel = channel_for(self.engine.dialect.name, TableNames())
        if channel is not None:
            with self.engine.begin() as connection:
                connection.exec_driver_sql(notification(channel))

    def open_rows(self) -> int:
        events = self.store.tables.events
        with self.engine.connect() as connection:
            return connection.execute(select(func.count()).where(self.store._is_open(events))).scalar_one()

    def now(self) -> Any:
        with self.engine.connect() as connection:
            return self.store.state.now(connection)

    def began(self) -> Any:
        """When the first claim was made; None before."""
        with self.engine.connect() as connection:
            return connection.execute(select(func.min(self.store.tables.claims.c.claimed_at))).scalar()

    @contextmanager
    def watching(self) -> Iterator[Callable[[], bool]]:
        """Whether the last row is still open, which is the last to go: looked for from the far end of the due index it costs next to
        nothing, however long the backlog is. On a connection of its own, since whoever watches takes time from those that are watched.
        """
        events = self.store.tables.events
        last = select(events.c.id).where(events.c.event_type == EVENT_TYPE, self.store._is_open(events))
        last = last.order_by(events.c.next_retry_at.desc(), events.c.seq.desc()).limit(1)
        compiled = last.compile(self.engine, compile_kwargs={"literal_binds": True})
        with self.engine.connect() as connection:
            cursor = connection.execution_options(isolation_level="AUTOCOMMIT").connection.cursor()

            def has_any() -> bool:
                cursor.execute(str(compiled))
                return cursor.fetchone() is not None

            yield has_any

    def drain(
        self, settings: str, *options: str, processes: int = 1, watch: Callable[[], None] = lambda: None
    ) -> float:
        """Seconds from the first claim until nothing is left, by the database's clock. The relays are as a user starts them, and begin
        together: everything is paused until all of them live.
        """
        operations = Operations(PublisherSettings(database_url=self.url), engine=self.engine)
        operations.pause()
        with tempfile.TemporaryDirectory() as folder:
            relays = []
            for number in range(processes):
                (own := Path(folder) / str(number)).mkdir()
                relays.append(RelayProcess(own, settings))
            try:
                for relay in relays:
                    relay.start(*options)
                self._wait(lambda: self._living() >= processes, 0.1, relays)
                time.sleep(1)  # until they rest
                operations.resume()
                self._wake()
                began = self._wait(self.began, 0.002, relays)
                with self.watching() as has_any:
                    while True:
                        self._wait(lambda: not has_any(), 0.02, relays, watch)
                        ended = self.now()
                        if self.open_rows() == 0:  # another process may be behind the one that had the last row
                            return float((ended - began).total_seconds())
            finally:
                for relay in relays:
                    relay.stop()

    @staticmethod
    def _wait(
        condition: Callable[[], Any], pause: float, relays: list[RelayProcess], watch: Callable[[], None] = lambda: None
    ) -> Any:
        until = time.monotonic() + PATIENCE
        while not (found := condition()):
            assert all(relay.running() for relay in relays), relays[0].log_tail()
            assert time.monotonic() < until, relays[0].log_tail()
            watch()
            time.sleep(pause)
        return found

    def assert_settled(self, events: int, *, kept: bool, positions: bool = True) -> None:
        table = self.store.tables.events
        with self.engine.connect() as connection:
            rows = connection.execute(select(func.count()).select_from(table)).scalar_one()
            done = connection.execute(select(func.count()).where(table.c.status == "PROCESSED")).scalar_one()
            placed = connection.execute(select(func.count()).where(table.c.broker_offset >= 0)).scalar_one()
            claims = connection.execute(select(func.count()).select_from(self.store.tables.claims)).scalar_one()
        assert (rows, done, claims) == ((events, events, 0) if kept else (0, 0, 0)), (rows, done, claims)
        assert placed == (events if kept and positions else 0), placed


def assert_arrived(messages: list[Any], events: int) -> None:
    """Each event once, with its headers, its key and its payload."""
    counts: Counter[str] = Counter()
    for message in messages:
        headers = dict(message.headers())
        counts[headers["outbox_event_id"].decode()] += 1
        number = int(headers["outbox_aggregate_id"])
        assert headers["outbox_event_type"] == EVENT_TYPE.encode()
        assert (headers["content-type"], headers["outbox_aggregate_type"]) == (b"application/json", b"Order")
        assert headers["outbox_event_id"].decode() == str(event_id(number))
        assert message.key() == f"k{number % common.KEYS}".encode()
        assert message.value() == common.payload(number % 1000)
    assert len(counts) == events, len(counts)
    assert set(counts.values()) == {1}
