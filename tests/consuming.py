"""What the consumer's suites share: messages, a handler whose effect can be counted, and a database of each kind to count it in.

`database` runs a test once for each driver. Tests and their handlers are written once, in their sync form: an async consumer gets each
handler through `session.run_sync`, and each call runs to its end on an event loop of the calling thread's own.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import create_engine, inspect, text
from sqlalchemy.engine import Engine, make_url
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

from outbox_consumer import AsyncIdempotentConsumer, Cache, ConsumerSettings, IdempotentConsumer
from outbox_consumer.handlers import SYNC, SYNC_BATCH, Kind, arguments_wanted
from outbox_shared.ids import new_event_id
from outbox_shared.sqlite import configure_sqlite

ASYNC_DRIVERS = {
    "aiosqlite": "sqlite+aiosqlite",
    "psycopg-async": "postgresql+psycopg",
    "asyncpg": "postgresql+asyncpg",
    "asyncmy": "mysql+asyncmy",
}
DATABASES = {"aiosqlite": "sqlite", "psycopg-async": "postgresql", "asyncpg": "postgresql", "asyncmy": "mariadb"}
SYNC_DRIVERS = ["sqlite", "postgresql", "mariadb"]
DRIVERS = [*SYNC_DRIVERS, *ASYNC_DRIVERS]
ON_SERVERS = ["postgresql", "mariadb", "psycopg-async", "asyncpg", "asyncmy"]


def a_message(event_id: UUID | None = None, event_type: str = "order-created") -> dict[str, str]:
    return {"outbox_event_id": str(event_id or new_event_id()), "outbox_event_type": event_type}


def book(session: Session, message: dict[str, str]) -> str:
    """The usual handler. Its table has no unique key, so an effect that happens twice is two rows."""
    session.execute(text("INSERT INTO effects VALUES (:id)"), {"id": message["outbox_event_id"]})
    return "booked"


def book_all(session: Session, messages: Sequence[dict[str, str]]) -> int:
    """The usual handler of a batch."""
    for message in messages:
        book(session, message)
    return len(messages)


async def book_async(session: AsyncSession, message: dict[str, str]) -> str:
    await session.execute(text("INSERT INTO effects VALUES (:id)"), {"id": message["outbox_event_id"]})
    return "booked"


@dataclass(frozen=True)
class ConsumingDatabase:
    """A database with a business table `effects`, and the driver through which it is consumed."""

    url: str
    engine: Engine
    """For the test's own looks."""
    driver: str = ""
    opened: list[Any] = field(default_factory=list)
    """Async services and engines of tests' own, closed with the database."""

    @property
    def sessions(self) -> "sessionmaker[Session]":
        return sessionmaker(self.engine)

    @property
    def is_async(self) -> bool:
        return self.driver in ASYNC_DRIVERS

    def consumer(
        self,
        name: str = "billing",
        *,
        cache: Cache | None = None,
        engine_options: dict[str, Any] | None = None,
        from_engine: bool = False,
        id_from: Any = None,
        cached: dict[str, Any] | None = None,
        **settings: Any,
    ) -> Any:
        """A consumer through this driver. With options it gets an engine of its own, and with `from_engine` no sessionmaker.

        It does not clean up unless it is told to: connections and statements of its own would be counted too.
        """
        settings.setdefault("clean_up", {"enabled": False})
        told = ConsumerSettings(**settings, **({} if cached is None else {"cache": cached}))
        if self.is_async:
            service = Service(self, name, cache, told, engine_options or {}, from_engine, id_from)
            self.opened.append(service)
            return service
        engine = self.engine if engine_options is None else self.open_engine(**engine_options)
        source = engine if from_engine else sessionmaker(engine)
        return IdempotentConsumer(source, name, cache=cache, settings=told, id_from=id_from)

    def open_engine(self, **options: Any) -> Engine:
        engine = open_database(self.url, **options)
        self.opened.append(engine)
        return engine

    def checked_out(self) -> int:
        """How many connections of this thread's consumers are in somebody's hands."""
        if self.is_async:
            pools = [service.engine.pool for service in self.opened]
            # SQLAlchemy 2.0 gives aiosqlite a pool that keeps nothing and counts nothing
            return sum(pool.checkedout() for pool in pools if hasattr(pool, "checkedout"))
        return self.engine.pool.checkedout()  # type: ignore[attr-defined]

    def effects(self) -> list[str]:
        return self._all("SELECT event_id FROM effects ORDER BY event_id")

    def marks(self) -> list[str]:
        """The names of the consumers that have marked an event, one for each mark."""
        if not inspect(self.engine).has_table("outbox_consumed_events"):
            return []
        return self._all("SELECT consumer FROM outbox_consumed_events ORDER BY consumer")

    def _all(self, query: str) -> list[str]:
        with self.engine.connect() as connection:
            return list(connection.execute(text(query)).scalars())


class Service:
    """An async consumer behind sync calls. Each thread has an event loop, and therefore an engine and a consumer, of its own."""

    def __init__(
        self,
        database: ConsumingDatabase,
        name: str,
        cache: Cache | None,
        settings: ConsumerSettings,
        engine_options: dict[str, Any],
        from_engine: bool,
        id_from: Any,
    ) -> None:
        self.name, self.settings, self._cache, self._id_from = name, settings, cache, id_from
        self._database, self._options, self._from_engine = database, engine_options, from_engine
        self._here = threading.local()
        self._all: list[tuple[asyncio.Runner, Any]] = []
        self._open()  # a mistake is raised where the consumer is built

    @property
    def engine(self) -> Any:
        self._open()
        return self._here.engine

    @property
    def consumer(self) -> AsyncIdempotentConsumer:
        self._open()
        consumer: AsyncIdempotentConsumer = self._here.consumer
        return consumer

    def consume(self, message: Any, handler: Callable[..., Any]) -> Any:
        return self.run(lambda: self.consumer.consume(message, _awaited(handler, SYNC)))

    def consume_batch(self, messages: Any, handler: Callable[..., Any], **options: Any) -> Any:
        return self.run(lambda: self.consumer.consume_batch(messages, _awaited(handler, SYNC_BATCH), **options))

    def run(self, call: Callable[[], Any]) -> Any:
        self._open()

        async def main() -> Any:
            return await call()

        return self._here.runner.run(main(), context=copy_context())

    def _open(self) -> None:
        if hasattr(self._here, "runner"):
            return
        url = make_url(self._database.url).set(drivername=ASYNC_DRIVERS[self._database.driver], query={})
        engine = create_async_engine(url, **self._options)
        if self._database.driver == "aiosqlite":
            configure_sqlite(engine.sync_engine)
        source: Any = engine if self._from_engine else async_sessionmaker(engine)
        self._here.consumer = AsyncIdempotentConsumer(
            source, self.name, cache=self._cache, settings=self.settings, id_from=self._id_from
        )
        self._here.engine, self._here.runner = engine, asyncio.Runner()
        self._all.append((self._here.runner, engine))

    def close(self) -> None:
        for runner, engine in self._all:
            runner.run(engine.dispose())
            runner.close()


def _awaited(handler: Callable[..., Any], kind: Kind) -> Callable[..., Any]:
    """The handler as an async consumer takes it, with the same parameters."""
    wanted = arguments_wanted(handler, kind)

    async def nothing() -> Any:
        return handler()

    async def alone(session: AsyncSession) -> Any:
        return await session.run_sync(handler)

    async def both(session: AsyncSession, message: Any) -> Any:
        return await session.run_sync(handler, message)

    return (nothing, alone, both)[wanted]


def open_database(url: str, **options: Any) -> Engine:
    engine = create_engine(url, **options)
    return configure_sqlite(engine) if engine.dialect.name == "sqlite" else engine


def _prepared(url: str, driver: str) -> Iterator[ConsumingDatabase]:
    engine = open_database(url)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE effects (event_id varchar(36))"))
    database = ConsumingDatabase(url, engine, driver)
    yield database
    for one in database.opened:
        one.close() if isinstance(one, Service) else one.dispose()
    engine.dispose()


@pytest.fixture
def consuming_on_sqlite(fresh_sqlite: Callable[[], str]) -> Iterator[ConsumingDatabase]:
    yield from _prepared(fresh_sqlite(), "sqlite")


@pytest.fixture
def consuming_on_postgresql(fresh_postgresql: Callable[[], str]) -> Iterator[ConsumingDatabase]:
    yield from _prepared(fresh_postgresql(), "postgresql")


@pytest.fixture
def consuming_on_mariadb(fresh_mariadb: Callable[[], str]) -> Iterator[ConsumingDatabase]:
    # the driver reads the machine's certificates for every new connection otherwise, which takes most of its time
    yield from _prepared(f"{fresh_mariadb()}?ssl_disabled=true", "mariadb")


def _through(driver: str, request: pytest.FixtureRequest) -> ConsumingDatabase:
    prepared: ConsumingDatabase = request.getfixturevalue(f"consuming_on_{DATABASES.get(driver, driver)}")
    # one list of what was opened: the database's own fixture closes it
    return ConsumingDatabase(prepared.url, prepared.engine, driver, prepared.opened)


@pytest.fixture(params=DRIVERS)
def database(request: pytest.FixtureRequest) -> ConsumingDatabase:
    """The contract suites run once for each driver."""
    return _through(request.param, request)


@pytest.fixture(params=SYNC_DRIVERS)
def sync_database(request: pytest.FixtureRequest) -> ConsumingDatabase:
    """For what is a matter of sync sessions."""
    return _through(request.param, request)


@pytest.fixture(params=list(ASYNC_DRIVERS))
def async_database(request: pytest.FixtureRequest) -> ConsumingDatabase:
    """For what is a matter of async sessions."""
    return _through(request.param, request)


@pytest.fixture(params=ON_SERVERS)
def on_a_server(request: pytest.FixtureRequest) -> ConsumingDatabase:
    """Where a twin waits for a key, and not for the whole database."""
    return _through(request.param, request)


@pytest.fixture(params=["postgresql", "psycopg-async", "asyncpg"])
def on_postgresql(request: pytest.FixtureRequest) -> ConsumingDatabase:
    return _through(request.param, request)


@pytest.fixture(params=["mariadb", "asyncmy"])
def on_mariadb(request: pytest.FixtureRequest) -> ConsumingDatabase:
    return _through(request.param, request)


class FakeCache:
    """Remembers in a set, and writes down what it is asked and when."""

    def __init__(self) -> None:
        self.ids: set[tuple[str, UUID]] = set()
        self.calls: list[tuple[str, int]] = []
        self.before_remembering: Callable[[], None] = lambda: None

    def known(self, consumer: str, ids: Any) -> set[UUID]:
        self.calls.append(("known", len(ids)))
        return {event_id for event_id in ids if (consumer, event_id) in self.ids}

    def remember(self, consumer: str, ids: Any) -> None:
        self.before_remembering()
        self.calls.append(("remember", len(ids)))
        self.ids |= {(consumer, event_id) for event_id in ids}

    def forget(self, consumer: str, ids: Any) -> None:
        self.ids -= {(consumer, event_id) for event_id in ids}

    def close(self) -> None:
        self.calls.append(("close", 0))


def eventually(condition: Callable[[], bool], within: float = 20.0) -> None:
    """Wait for something that another thread or process does."""
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)


_LOCK_WAITS = {
    "postgresql": "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'",
    "mysql": "SELECT count(*) FROM information_schema.innodb_trx JOIN information_schema.processlist ON id = trx_mysql_thread_id "
    "WHERE trx_state = 'LOCK WAIT' AND db = database()",
}


def lock_waits(engine: Engine) -> int:
    """How many sessions of this database stand waiting for another's lock."""
    if engine.dialect.name == "mysql":
        time.sleep(0.15)  # what it shows is a copy, which the server renews only when nobody has looked for 0.1 s
    with engine.connect() as connection:
        return connection.execute(text(_LOCK_WAITS[engine.dialect.name])).scalar_one()
