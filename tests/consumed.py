"""Databases with the consumer's tables, and rows in them that were consumed, or failed, at some time."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import create_engine, func, insert, select
from sqlalchemy.engine import Engine
from sqlalchemy.pool import NullPool

from outbox_consumer import ConsumerSettings
from outbox_consumer.schema import create_tables, statements
from outbox_consumer.store.upkeep import Upkeep, upkeep_for
from outbox_shared.database import make_engine
from outbox_shared.ids import new_event_id
from outbox_shared.sqltypes import wall_time_plus
from outbox_shared.state import LEASE
from outbox_shared.tables import TableNames
from tests.services.databases import mariadb_database

DAY = 86_400.0
_UNENCRYPTED = "ssl_disabled=true"


@dataclass(frozen=True)
class ConsumedDatabase:
    url: str
    engine: Engine
    upkeep: Upkeep

    def settings(self, **more: Any) -> ConsumerSettings:
        return ConsumerSettings(**{"database_url": self.url, "name": "billing", **more})

    def consumed(self, count: int, days: float, consumer: str = "billing") -> list[UUID]:
        """`count` events that were consumed so many days ago."""
        return self._put(self.upkeep.consumed, count, consumed_at=wall_time_plus(-days * DAY), consumer=consumer)

    def failed(self, count: int, days: float) -> list[UUID]:
        """`count` messages whose handler failed last so many days ago."""
        at = wall_time_plus(-days * DAY)
        return self._put(self.upkeep.attempts, count, updated_at=at, attempts=1, consumer="billing")

    def rows(self, table: str = "consumed") -> int:
        with self.engine.connect() as connection:
            return connection.execute(select(func.count()).select_from(getattr(self.upkeep, table))).scalar_one()

    def ids(self, consumer: str = "billing") -> set[UUID]:
        columns = self.upkeep.consumed.c
        with self.engine.connect() as connection:
            return set(connection.execute(select(columns.event_id).where(columns.consumer == consumer)).scalars())

    def hold_lease(self, holder: str = "another", seconds: float = 30.0) -> None:
        with self.engine.begin() as connection:
            assert self.upkeep.state.take_lease(connection, "consumed-cleanup", holder, seconds)

    def leases(self) -> list[str]:
        with self.engine.connect() as connection:
            return [row.holder for row in self.upkeep.state.rows(connection, LEASE)]

    def another_engine(self, **options: Any) -> Engine:
        """As another process would have it, or another part of this one."""
        engine = make_engine(self.url, "outbox-consumer")
        return engine.execution_options(**options) if options else engine

    def _put(self, table: Any, count: int, **values: Any) -> list[UUID]:
        ids = [new_event_id() for _ in range(count)]
        with self.engine.begin() as connection:
            for one in ids:
                connection.execute(insert(table).values(event_id=one, **values))
        return ids


def _opened(url: str, engine_url: str | None = None) -> Iterator[ConsumedDatabase]:
    engine = make_engine(engine_url or url, "outbox-consumer")
    yield ConsumedDatabase(url, engine, upkeep_for(engine.dialect.name, TableNames()))
    engine.dispose()


@pytest.fixture
def consumed_on_sqlite(fresh_sqlite: Callable[[], str]) -> Iterator[ConsumedDatabase]:
    url = fresh_sqlite()
    engine = make_engine(url, "outbox-consumer")
    create_tables(engine)
    engine.dispose()
    yield from _opened(url)


@pytest.fixture
def consumed_on_postgresql(fresh_postgresql: Callable[[], str]) -> Iterator[ConsumedDatabase]:
    url = fresh_postgresql()
    engine = make_engine(url, "outbox-consumer")
    create_tables(engine)
    engine.dispose()
    yield from _opened(url)


@pytest.fixture
def consumed_on_mariadb(mariadb_server: str) -> Iterator[ConsumedDatabase]:
    with mariadb_database(f"{mariadb_server}?{_UNENCRYPTED}") as url:
        with create_engine(url, poolclass=NullPool).begin() as connection:
            for statement in statements("mysql"):
                connection.exec_driver_sql(statement)
        yield from _opened(url.removesuffix(f"?{_UNENCRYPTED}"), url)


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def consumed_database(request: pytest.FixtureRequest) -> ConsumedDatabase:
    """The contract suites run once for each kind of database."""
    database: ConsumedDatabase = request.getfixturevalue(f"consumed_on_{request.param}")
    return database
