"""A shop that takes orders and publishes events, through every driver: the same sync-looking calls, whatever is behind them.

`shop` is a fixture with one parameter per driver. Async ones run each call to its end on an event loop of their own, so that a test
is written once. Beside the outbox there is a business table, `orders`, to see whether the two always agree.
"""

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from typing import Any
from uuid import uuid4

import django
import psycopg
import pytest
from django.conf import settings as django_settings
from django.db import connections, transaction
from sqlalchemy import Column, Integer, MetaData, Table, create_engine, event, func, insert, select
from sqlalchemy.engine import Engine, make_url
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from outbox_publisher import AsyncOutbox, Outbox, PublisherSettings, configure_sqlite, from_django, from_psycopg
from tests.fixtures import OutboxDatabase

ORDERS = Table("orders", MetaData(), Column("id", Integer, primary_key=True, autoincrement=False))
INSERT_ORDER = "INSERT INTO orders (id) VALUES (%s)"

DRIVERS = {
    "sqlite": "sqlite",
    "postgresql": "postgresql+psycopg",
    "mariadb": "mysql+pymysql",
    "aiosqlite": "sqlite+aiosqlite",
    "psycopg-async": "postgresql+psycopg",
    "asyncpg": "postgresql+asyncpg",
    "asyncmy": "mysql+asyncmy",
    "raw-psycopg": "postgresql",
    "raw-psycopg-async": "postgresql",
    "django-postgresql": "postgresql",
    "django-sqlite": "sqlite",
}


def database_behind(driver: str) -> str:
    """Which of our databases a driver talks to."""
    scheme = DRIVERS[driver].partition("+")[0]
    return {"mysql": "mariadb"}.get(scheme, scheme)


class Shop:
    """A service with an outbox. `begin()` opens a transaction; what is called on the shop inside happens in it."""

    def __init__(self, database: OutboxDatabase, **settings: Any) -> None:
        self.database = database
        self.sent: list[str] = []
        self.settings: PublisherSettings = database.settings(**settings)
        with database.engine.begin() as connection:
            ORDERS.create(connection, checkfirst=True)

    # What a driver does its own way.

    @contextmanager
    def begin(self) -> Iterator[None]:
        """Commits at the end, rolls back when the block raises."""
        raise NotImplementedError

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """Released at the end, rolled back when the block raises."""
        raise NotImplementedError

    def order(self, number: int) -> None:
        """The business change alone."""
        raise NotImplementedError

    def publish(self, *arguments: Any, **options: Any) -> Any:
        raise NotImplementedError

    def publish_batch(self, *arguments: Any, **options: Any) -> Any:
        raise NotImplementedError

    def cancel(self, event_id: Any) -> bool:
        raise NotImplementedError

    def close(self) -> None: ...

    # What tests look at.

    def take(self, number: int, **options: Any) -> Any:
        """An order and its event."""
        self.order(number)
        return self.publish("order-created", {"id": number}, key=number, **options)

    def counts(self) -> tuple[int, int]:
        with self.database.engine.connect() as connection:
            orders = connection.execute(select(func.count()).select_from(ORDERS)).scalar_one()
        return orders, len(self.database.events())


class SyncShop(Shop):
    """SQLAlchemy's Session."""

    def __init__(self, database: OutboxDatabase, engine: Engine, **settings: Any) -> None:
        super().__init__(database, **settings)
        self.engine, self.outbox = engine, Outbox(self.settings)
        self.session = Session(engine)

    @contextmanager
    def begin(self) -> Iterator[None]:
        with self.session.begin():
            yield

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        with self.session.begin_nested():
            yield

    def order(self, number: int) -> None:
        self.session.execute(insert(ORDERS).values(id=number))

    def publish(self, *arguments: Any, **options: Any) -> Any:
        return self.outbox.publish(self.session, *arguments, **options)

    def publish_batch(self, *arguments: Any, **options: Any) -> Any:
        return self.outbox.publish_batch(self.session, *arguments, **options)

    def cancel(self, event_id: Any) -> bool:
        return self.outbox.cancel(self.session, event_id)

    def close(self) -> None:
        self.session.close()
        self.engine.dispose()


class AsyncShop(Shop):
    """SQLAlchemy's AsyncSession."""

    def __init__(self, database: OutboxDatabase, engine: Any, **settings: Any) -> None:
        super().__init__(database, **settings)
        self._runner = asyncio.Runner()
        self.engine, self.outbox = engine, AsyncOutbox(self.settings)
        self.session = self.run(self._new_session())

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self._runner.run(work, context=copy_context())  # as an await would: the runner has its own otherwise

    async def _new_session(self) -> AsyncSession:
        return AsyncSession(self.engine)

    @contextmanager
    def begin(self) -> Iterator[None]:
        with self._block(self.session.begin()):
            yield

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        with self._block(self.session.begin_nested()):
            yield

    @contextmanager
    def _block(self, block: Any) -> Iterator[None]:
        self.run(block.__aenter__())
        try:
            yield
        except BaseException as error:
            self.run(block.__aexit__(type(error), error, error.__traceback__))
            raise
        self.run(block.__aexit__(None, None, None))

    def order(self, number: int) -> None:
        self.run(self.session.execute(insert(ORDERS).values(id=number)))

    def publish(self, *arguments: Any, **options: Any) -> Any:
        return self.run(self.outbox.publish(self.session, *arguments, **options))

    def publish_batch(self, *arguments: Any, **options: Any) -> Any:
        return self.run(self.outbox.publish_batch(self.session, *arguments, **options))

    def cancel(self, event_id: Any) -> bool:
        return bool(self.run(self.outbox.cancel(self.session, event_id)))

    def close(self) -> None:
        self.run(self.session.close())
        self.run(self.engine.dispose())
        self._runner.close()


class PsycopgShop(Shop):
    """A raw psycopg connection."""

    def __init__(self, database: OutboxDatabase, **settings: Any) -> None:
        super().__init__(database, **settings)
        self.outbox = Outbox(self.settings)
        self.connection = psycopg.connect(_plain_url(database.url))

    @contextmanager
    def begin(self) -> Iterator[None]:
        with self.connection.transaction():
            yield

    savepoint = begin

    def order(self, number: int) -> None:
        self.connection.execute(INSERT_ORDER, (number,))

    def publish(self, *arguments: Any, **options: Any) -> Any:
        return self.outbox.publish(from_psycopg(self.connection), *arguments, **options)

    def publish_batch(self, *arguments: Any, **options: Any) -> Any:
        return self.outbox.publish_batch(from_psycopg(self.connection), *arguments, **options)

    def cancel(self, event_id: Any) -> bool:
        return self.outbox.cancel(from_psycopg(self.connection), event_id)

    def close(self) -> None:
        self.connection.close()


class AsyncPsycopgShop(AsyncShop):
    """A raw psycopg AsyncConnection."""

    def __init__(self, database: OutboxDatabase, **settings: Any) -> None:
        super().__init__(database, None, **settings)

    async def _new_session(self) -> Any:
        self.connection = await psycopg.AsyncConnection.connect(_plain_url(self.database.url))
        return from_psycopg(self.connection)

    @contextmanager
    def begin(self) -> Iterator[None]:
        with self._block(self.connection.transaction()):
            yield

    savepoint = begin

    def order(self, number: int) -> None:
        self.run(self.connection.execute(INSERT_ORDER, (number,)))

    def close(self) -> None:
        self.run(self.connection.close())
        self._runner.close()


class DjangoShop(Shop):
    """Django's connection, under an alias of its own."""

    def __init__(self, database: OutboxDatabase, **settings: Any) -> None:
        super().__init__(database, **settings)
        if not django_settings.configured:
            django_settings.configure(
                DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
            )
            django.setup()
        url = make_url(database.url)
        engine = {"sqlite": "sqlite3"}.get(url.get_backend_name(), url.get_backend_name())
        where = {
            "ENGINE": f"django.db.backends.{engine}",
            "NAME": url.database,
            "USER": url.username,
            "PASSWORD": url.password,
        }
        where |= {"HOST": url.host or url.query.get("host", ""), "PORT": str(url.port or url.query.get("port", ""))}
        self.alias = f"shop_{uuid4().hex}"
        connections.settings[self.alias] = connections.configure_settings({"default": where})["default"]
        self.connection = connections[self.alias]
        self.outbox = Outbox(self.settings)

    @contextmanager
    def begin(self) -> Iterator[None]:
        with transaction.atomic(using=self.alias):
            yield

    savepoint = begin

    def order(self, number: int) -> None:
        with self.connection.cursor() as cursor:
            cursor.execute(INSERT_ORDER, [number])

    def publish(self, *arguments: Any, **options: Any) -> Any:
        return self.outbox.publish(from_django(self.alias), *arguments, **options)

    def publish_batch(self, *arguments: Any, **options: Any) -> Any:
        return self.outbox.publish_batch(from_django(self.alias), *arguments, **options)

    def cancel(self, event_id: Any) -> bool:
        return self.outbox.cancel(from_django(self.connection), event_id)

    def close(self) -> None:
        self.connection.close()
        del connections[self.alias], connections.settings[self.alias]


def open_shop(driver: str, database: OutboxDatabase, **settings: Any) -> Shop:
    """A shop on `database` that works through `driver`."""
    match driver:
        case "raw-psycopg":
            return PsycopgShop(database, **settings)
        case "raw-psycopg-async":
            return AsyncPsycopgShop(database, **settings)
        case "django-postgresql" | "django-sqlite":
            return DjangoShop(database, **settings)
    url = make_url(database.url).set(drivername=DRIVERS[driver])
    if driver in {"aiosqlite", "psycopg-async", "asyncpg", "asyncmy"}:
        engine = create_async_engine(url)
        if driver == "aiosqlite":
            configure_sqlite(engine.sync_engine)
        return AsyncShop(database, engine, **settings)
    sync = create_engine(url)
    return SyncShop(database, configure_sqlite(sync) if driver == "sqlite" else sync, **settings)


@pytest.fixture(params=list(DRIVERS))
def shop(request: pytest.FixtureRequest) -> Iterator[Shop]:
    """A shop for each driver, on a database of this test's own."""
    opened = open_shop(request.param, request.getfixturevalue(f"{database_behind(request.param)}_outbox"))
    yield opened
    opened.close()


@pytest.fixture(params=["sqlite", "postgresql", "mariadb", "aiosqlite", "psycopg-async", "asyncpg", "asyncmy"])
def listened_shop(request: pytest.FixtureRequest) -> Iterator["SyncShop | AsyncShop"]:
    """Those that go through SQLAlchemy, whose engine tells which statements it sends: `sent` holds them."""
    opened = open_shop(request.param, request.getfixturevalue(f"{database_behind(request.param)}_outbox"))
    assert isinstance(opened, SyncShop | AsyncShop)
    engine = opened.engine.sync_engine if isinstance(opened, AsyncShop) else opened.engine

    @event.listens_for(engine, "before_cursor_execute")
    def _listen(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if not statement.startswith("BEGIN"):
            opened.sent.append(statement)

    yield opened
    opened.close()


@pytest.fixture
def sqlite_shop(sqlite_outbox: OutboxDatabase) -> Iterator[Shop]:
    """One shop, for what has nothing to do with drivers."""
    opened = open_shop("sqlite", sqlite_outbox)
    yield opened
    opened.close()


def _plain_url(url: str) -> str:
    return make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
