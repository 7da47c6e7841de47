"""What the consumer's suites share: messages, a handler whose effect can be counted, and a database of each kind to count it in."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.engine import Engine
from sqlalchemy.orm import Session, sessionmaker

from outbox_consumer import ConsumerSettings, IdempotentConsumer
from outbox_shared.ids import new_event_id
from outbox_shared.sqlite import configure_sqlite


def a_message(event_id: UUID | None = None, event_type: str = "order-created") -> dict[str, str]:
    return {"outbox_event_id": str(event_id or new_event_id()), "outbox_event_type": event_type}


def book(session: Session, message: dict[str, str]) -> str:
    """The usual handler. Its table has no unique key, so an effect that happens twice is two rows."""
    session.execute(text("INSERT INTO effects VALUES (:id)"), {"id": message["outbox_event_id"]})
    return "booked"


@dataclass(frozen=True)
class ConsumingDatabase:
    """A database with a business table `effects`."""

    url: str
    engine: Engine

    @property
    def sessions(self) -> "sessionmaker[Session]":
        return sessionmaker(self.engine)

    def consumer(self, name: str = "billing", **settings: Any) -> IdempotentConsumer:
        return IdempotentConsumer(self.sessions, name=name, settings=ConsumerSettings(**settings))

    def effects(self) -> list[str]:
        return self._all("SELECT event_id FROM effects ORDER BY event_id")

    def marks(self) -> list[str]:
        """The names of the consumers that have marked an event, one for each mark."""
        return self._all("SELECT consumer FROM outbox_consumed_events ORDER BY consumer")

    def _all(self, query: str) -> list[str]:
        with self.engine.connect() as connection:
            return list(connection.execute(text(query)).scalars())


def open_database(url: str, **options: Any) -> Engine:
    engine = create_engine(url, **options)
    return configure_sqlite(engine) if engine.dialect.name == "sqlite" else engine


def _prepared(url: str) -> Iterator[ConsumingDatabase]:
    engine = open_database(url)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE effects (event_id varchar(36))"))
    yield ConsumingDatabase(url, engine)
    engine.dispose()


@pytest.fixture
def consuming_on_sqlite(fresh_sqlite: Callable[[], str]) -> Iterator[ConsumingDatabase]:
    yield from _prepared(fresh_sqlite())


@pytest.fixture
def consuming_on_postgresql(fresh_postgresql: Callable[[], str]) -> Iterator[ConsumingDatabase]:
    yield from _prepared(fresh_postgresql())


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest) -> ConsumingDatabase:
    """The contract suites run once for each kind of database."""
    prepared: ConsumingDatabase = request.getfixturevalue(f"consuming_on_{request.param}")
    return prepared


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
