"""What a cache is worth to a consumer on PostgreSQL, beside the table that decides: when every message is a duplicate, and when none is.

A duplicate costs the database a transaction with an INSERT that finds its row; for a batch that is one statement for all its ids, on the
driver itself. A message that is new is asked about in the cache in vain, and told to it after the commit.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import psycopg
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.engine import Engine
from sqlalchemy.orm import Session, sessionmaker

from benchmarks.harness import Table, publish, take_turns
from outbox_consumer import IdempotentConsumer, identify
from outbox_consumer.cache import Cache, ConsumerCache, Epoch, InProcessCache, RedisCache
from outbox_shared.ids import new_event_id
from tests.services.client import BenchClient
from tests.services.databases import postgresql_database

MESSAGES = 2_000
BATCH = 100
NAME = "billing"

Message = dict[str, str]

BY_HAND = """
INSERT INTO outbox_consumed_events (consumer, event_id) SELECT %s, unnest(%s::uuid[]) ON CONFLICT DO NOTHING RETURNING event_id"""


def some_messages() -> list[Message]:
    return [{"outbox_event_id": str(new_event_id()), "outbox_event_type": "order-created"} for _ in range(MESSAGES)]


def book(session: Session, message: Message) -> None:
    session.execute(text("INSERT INTO effects VALUES (:id)"), {"id": message["outbox_event_id"]})


class Consumer:
    """A consumer as it uses a cache, or without one."""

    def __init__(self, engine: Engine, cache: Cache | None) -> None:
        self.consumer = IdempotentConsumer(sessionmaker(engine), name=NAME)
        self.cache = ConsumerCache(cache, NAME, Epoch(lambda: engine))

    def consume(self, message: Message) -> bool:
        """Whether it was new."""
        event_id = identify(message).event_id
        look = self.cache.look((event_id,))
        if event_id in look.known:
            return False
        is_new = bool(self.consumer.consume(message, book))
        self.cache.remember(look, (event_id,))
        return is_new

    def new(self) -> float:
        messages = some_messages()
        return per_second(lambda: all(self.consume(message) for message in messages))

    def duplicates(self, messages: list[Message]) -> float:
        return per_second(lambda: not any(self.consume(message) for message in messages))

    def batches(self, ids: list[UUID]) -> float:
        """Of duplicates, each asked about at once."""
        return per_second(lambda: all(set(self.cache.look(batch).known) == set(batch) for batch in batches_of(ids)))


def batches_of(ids: list[UUID]) -> Iterator[list[UUID]]:
    return (ids[first : first + BATCH] for first in range(0, len(ids), BATCH))


def batches_by_hand(dsn: str, ids: list[UUID]) -> float:
    with psycopg.connect(dsn, autocommit=True) as connection:

        def are_marked(batch: list[UUID]) -> bool:
            return not connection.execute(BY_HAND, (NAME, batch), binary=True, prepare=True).fetchall()

        return per_second(lambda: all(are_marked(batch) for batch in batches_of(ids)))


def per_second(work: Callable[[], bool]) -> float:
    """Messages a second; every run asserts what it found out about them."""
    started = time.perf_counter()
    right = work()
    took = time.perf_counter() - started
    assert right, "a message was not told from the others"
    return MESSAGES / took


@contextmanager
def prepared(bench: BenchClient) -> Iterator[tuple[Engine, str]]:
    with postgresql_database(bench.url("postgresql")) as url:
        engine = create_engine(url)
        with engine.begin() as connection:
            connection.execute(text("CREATE TABLE effects (event_id varchar(36))"))
        yield engine, make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
        engine.dispose()


def measure(bench: BenchClient) -> None:
    with prepared(bench) as (engine, dsn):
        caches: dict[str, Cache | None] = {
            "database": None,
            "in process": InProcessCache(),
            "Redis": RedisCache(bench.url("redis")),
        }
        consumers = {name: Consumer(engine, cache) for name, cache in caches.items()}
        seen = some_messages()
        ids = [UUID(message["outbox_event_id"]) for message in seen]
        for message in seen:
            assert consumers["database"].consume(message)
        for consumer in consumers.values():
            consumer.duplicates(seen)  # which the caches are told of now

        new = take_turns({name: consumer.new for name, consumer in consumers.items()})
        one = take_turns({name: lambda it=consumer: it.duplicates(seen) for name, consumer in consumers.items()})  # type: ignore[misc]
        at_once: dict[str, Callable[[], float]] = {"database": lambda: batches_by_hand(dsn, ids)}
        at_once |= {
            name: lambda it=consumer: it.batches(ids) for name, consumer in consumers.items() if name != "database"
        }  # type: ignore[misc]
        many = take_turns(at_once)
        check_effects(engine, expected=MESSAGES * (1 + 3 * len(consumers)))
        publish(
            "cache",
            table("A duplicate, one message at a time", one, bars={"in process": "≥ 20", "Redis": "≥ 2"}),
            table(f"Duplicates in batches of {BATCH}; the database is asked by hand, on its driver", many),
            table("New messages, with a handler that writes one row: what a cache costs where it is of no use", new),
        )


def table(title: str, samples: dict[str, Any], bars: dict[str, str] | None = None) -> Table:
    made = Table(title, "messages/s")
    for name, sample in samples.items():
        made.add(name, sample, base=None if name == "database" else "database", bar=(bars or {}).get(name, ""))
    return made


def check_effects(engine: Engine, expected: int) -> None:
    with engine.connect() as connection:
        found = connection.execute(text("SELECT count(*), count(DISTINCT event_id) FROM effects")).one()
    assert tuple(found) == (expected, expected), f"{found} effects, not {expected}"
