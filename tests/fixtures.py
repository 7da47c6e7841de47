"""Databases with the publisher's tables, one test's own each, and the events that tests put into them."""

import hashlib
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, func, select
from sqlalchemy.engine import Engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from outbox_consumer import cli as consumer_cli
from outbox_publisher import Outbox, PublisherSettings, Relay
from outbox_publisher import cli as publisher_cli
from outbox_publisher.schema import create_tables, statements
from outbox_publisher.senders import MemorySender
from outbox_publisher.store import EventStore, store_for
from outbox_shared.database import make_engine
from outbox_shared.ddl import making
from outbox_shared.tables import TableNames
from tests.services.databases import mariadb_database, template_database

NAMES = TableNames()


@dataclass(frozen=True)
class OutboxDatabase:
    """A database with the outbox tables in it."""

    url: str
    engine: Engine
    store: EventStore

    def settings(self, **more: Any) -> PublisherSettings:
        return PublisherSettings(**{"database_url": self.url, "name": "test", "defaults": {"topic": "orders"}, **more})

    def publish(self, count: int = 1, event_type: str = "order-created", **options: Any) -> list[Any]:
        """`count` events in one committed transaction; returns their ids."""
        outbox = Outbox(self.settings())
        with Session(self.engine) as session, session.begin():
            return [
                outbox.publish(session, event_type, {"n": n}, **{"key": f"key-{n}", **options}).id for n in range(count)
            ]

    def relay(self, sender: MemorySender | None = None, **settings: Any) -> Relay:
        return Relay(self.settings(**settings), engine=self.engine, sender=sender or MemorySender())

    def events(self) -> list[Any]:
        """Every row of outbox_events, oldest first."""
        table = self.store.tables.events
        with self.engine.connect() as connection:
            return list(connection.execute(select(table).order_by(table.c.seq)).all())

    def dead_letters(self) -> list[Any]:
        table = self.store.tables.dead_letters
        with self.engine.connect() as connection:
            return list(connection.execute(select(table).order_by(table.c.id)).all())

    def claims(self) -> int:
        with self.engine.connect() as connection:
            return connection.execute(select(func.count()).select_from(self.store.tables.claims)).scalar_one()

    def statuses(self) -> dict[str, int]:
        table = self.store.tables.events
        with self.engine.connect() as connection:
            rows = connection.execute(select(table.c.status, func.count()).group_by(table.c.status)).all()
        return {row[0]: row[1] for row in rows}


RunCommand = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> RunCommand:
    """command("outbox-publisher", "init-db", OUTBOX_…="…") -> exit code, stdout, stderr; runs in an empty folder, in this process."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("OUTBOX_") and not name.startswith("OUTBOX_TEST_")]:
        monkeypatch.delenv(name)
    mains = {"outbox-publisher": publisher_cli.main, "outbox-consumer": consumer_cli.main}

    def run(program: str, *arguments: str, **environment: str) -> tuple[int, str, str]:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(sys, "argv", [program, *arguments])
        capfd.readouterr()
        try:
            mains[program]()
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        output, errors = capfd.readouterr()
        return code, output, errors

    return run


def _fill_template(url: str) -> None:
    engine = make_engine(url, "outbox-publisher")
    create_tables(engine, NAMES)
    engine.dispose()


def _template(server_url: str) -> str:
    """One template database per form of the tables: copying it is ten times as fast as creating them."""
    tables = store_for("postgresql", NAMES).tables
    dialect = make_engine(server_url, "outbox-publisher").dialect
    ddl = [str(statement.compile(dialect=dialect)) for table in tables for statement in making(table, dialect)]
    digest = hashlib.sha256("\n".join(ddl).encode()).hexdigest()[:12]
    return template_database(server_url, f"outbox_{digest}", _fill_template)


@pytest.fixture
def postgresql_outbox(fresh_postgresql: Callable[..., str], postgresql_server: str) -> Iterator[OutboxDatabase]:
    yield from _outbox(fresh_postgresql(_template(postgresql_server)))


@pytest.fixture
def sqlite_outbox(fresh_sqlite: Callable[[], str]) -> Iterator[OutboxDatabase]:
    url = fresh_sqlite()
    _fill_template(url)
    yield from _outbox(url)


@pytest.fixture
def mariadb_outbox(mariadb_server: str) -> Iterator[OutboxDatabase]:
    with mariadb_database(f"{mariadb_server}?{_UNENCRYPTED}") as url:
        _create_on_mariadb(url)
        yield from _outbox(url.removesuffix(f"?{_UNENCRYPTED}"), url)


_UNENCRYPTED = "ssl_disabled=true"
"""The driver reads the machine's certificates for every new connection: 50 of its 55 ms."""


def _create_on_mariadb(url: str) -> None:
    """The statements alone, on one connection: 25 ms instead of 110, which the looks into the catalogue take."""
    with create_engine(url, poolclass=NullPool).begin() as connection:
        for statement in statements("mysql", NAMES):
            connection.exec_driver_sql(statement)


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def outbox_database(request: pytest.FixtureRequest) -> OutboxDatabase:
    """The contract suites run once for each kind of database."""
    database: OutboxDatabase = request.getfixturevalue(f"{request.param}_outbox")
    return database


def _outbox(url: str, engine_url: str | None = None) -> Iterator[OutboxDatabase]:
    engine = make_engine(engine_url or url, "outbox-publisher")
    yield OutboxDatabase(url, engine, store_for(engine.dialect.name, NAMES))
    engine.dispose()
