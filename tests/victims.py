"""Relay processes in a test's hands, and what the database tells about the rows that they hold."""

import multiprocessing
import os
import signal
import sqlite3
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any, Self
from uuid import UUID, uuid4

from sqlalchemy import ColumnElement, Table, func, select, update
from sqlalchemy.engine import Row

from outbox_shared.database import reading
from outbox_shared.sqltypes import wall_time_plus
from outbox_shared.state import RELAY
from tests.consuming import eventually
from tests.failure.victim import Order, work
from tests.fixtures import OutboxDatabase
from tests.outages import Places

PATIENCE = 60.0
LEASE, RECOVERY = 5.0, 0.5
"""Seconds: a lease that a test can wait for and a busy machine still keeps, and the pause between two recoveries."""

_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(["tests.failure.victim"])
"""Its imports are paid for once: a new victim is there in some hundredths of a second."""


def hurried(places: Places, batch: int, window: int = 4) -> dict[str, Any]:
    """Settings for a relay whose death is soon noticed."""
    return {
        "window": window,
        "sender": places.settings(publish_timeout="2s"),
        "lease": f"{LEASE:g}s",
        "stuck_recovery": {"fixed_delay": f"{RECOVERY:g}s"},
        "defaults": {"topic": "orders", "batch_size": batch, "fixed_delay": "20ms"},
    }


class Victim:
    """A relay process; see failure/victim.py. Whatever is left of it at the end of the block is killed."""

    def __init__(self, database: OutboxDatabase, folder: Path, settings: dict[str, Any], **order: Any) -> None:
        self._log = folder / f"victim-{uuid4().hex[:8]}.log"
        self._pipe, theirs = _PROCESSES.Pipe()
        whole = {"database_url": database.url, "name": "victim", **settings}
        self._process = _PROCESSES.Process(target=work, args=(Order(whole, str(self._log), **order), theirs))
        self._process.start()
        theirs.close()
        try:
            self.relay = str(self._hear())
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._pipe.close()

    def stands(self, border: str) -> set[UUID]:
        """Wait until it does; returns the events of the batch that stands there."""
        said, batch = self._hear()
        assert said == border
        return set(batch)

    def go_on(self) -> None:
        self._pipe.send("go on")

    def pause(self) -> None:
        """SIGSTOP, and wait until every thread of it stands still."""
        os.kill(self._pid, signal.SIGSTOP)
        threads = Path(f"/proc/{self._pid}/task")
        eventually(lambda: all(_state(thread) == "T" for thread in threads.iterdir()))

    def resume(self) -> None:
        os.kill(self._pid, signal.SIGCONT)

    def kill(self) -> None:
        """kill -9."""
        self._process.kill()
        self._process.join(PATIENCE)

    def stop(self) -> int | None:
        """SIGTERM; returns the exit code."""
        self._process.terminate()
        self._process.join(PATIENCE)
        return self.exit_code

    @property
    def exit_code(self) -> int | None:
        """None while it lives."""
        return self._process.exitcode

    def log(self) -> str:
        return self._log.read_text()

    @property
    def _pid(self) -> int:
        pid = self._process.pid
        assert pid is not None
        return pid

    def _hear(self) -> Any:
        assert self._pipe.poll(PATIENCE), f"no word for {PATIENCE} s: {self.log()}"
        try:
            return self._pipe.recv()
        except EOFError:
            raise AssertionError(f"the victim failed: {self.log()}") from None


def _state(thread: Path) -> str:
    return (thread / "stat").read_text().rpartition(")")[2].split()[0]


# What the database tells.


def held_by(database: OutboxDatabase, relay: str) -> list[Row[Any]]:
    """The rows that are IN_PROCESS under a claim of this relay, whole."""
    events, claims = database.store.tables.events, database.store.tables.claims
    held = select(events).join(claims, claims.c.token == events.c.claim_token)
    held = held.where(claims.c.relay == relay, events.c.status == "IN_PROCESS").order_by(events.c.seq)
    with reading(database.engine) as connection:
        return list(connection.execute(held).all())


def everything(database: OutboxDatabase) -> dict[str, list[Row[Any]]]:
    """Whole rows of whatever a settle may write."""
    tables = database.store.tables
    written = (tables.events, tables.claims, tables.dead_letters)
    with reading(database.engine) as connection:
        return {
            table.name: list(connection.execute(select(table).order_by(*table.primary_key)).all()) for table in written
        }


def leases_of(database: OutboxDatabase, relay: str) -> list[datetime]:
    """Until when the relay's claims are its own, the earliest first."""
    claims = database.store.tables.claims
    with reading(database.engine) as connection:
        found = select(claims.c.lease_until).where(claims.c.relay == relay).order_by(claims.c.lease_until)
        return list(connection.execute(found).scalars())


def rows_under(database: OutboxDatabase, tokens: set[UUID]) -> int:
    events = database.store.tables.events
    with reading(database.engine) as connection:
        found = select(func.count()).select_from(events).where(events.c.claim_token.in_(tokens))
        return connection.execute(found).scalar_one()


def is_being_settled(database: OutboxDatabase, relay: str) -> bool:
    """Whether an open transaction has a claim of the relay in its hands; on SQLite, whether anybody writes."""
    claims = database.store.tables.claims
    return _is_locked(database, claims, claims.c.relay == relay)


def is_in_a_transaction(database: OutboxDatabase, relay: str) -> bool:
    """Whether an open transaction has the relay's claim or its heartbeat in its hands; on SQLite, whether anybody writes."""
    state = database.store.tables.state
    beats = _is_locked(database, state, state.c.kind == RELAY, state.c.name == relay)
    return beats or is_being_settled(database, relay)


def _is_locked(database: OutboxDatabase, table: Table, *which: ColumnElement[bool]) -> bool:
    if database.engine.dialect.name == "sqlite":
        return _is_written(database)
    rows = select(table.c[0]).where(*which)
    with database.engine.begin() as connection:
        there = len(connection.execute(rows).all())
        return there > len(connection.execute(rows.with_for_update(skip_locked=True)).all())


def _is_written(database: OutboxDatabase) -> bool:
    with closing(sqlite3.connect(str(database.engine.url.database), timeout=0, isolation_level=None)) as raw:
        try:
            raw.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            return "locked" in str(error)
        raw.execute("ROLLBACK")
    return False


# Time.


def let_it_be_forgotten(database: OutboxDatabase, relay: str) -> None:
    """As if its leases had ended and it had not been heard of for even longer."""
    claims, state = database.store.tables.claims, database.store.tables.state
    with database.engine.begin() as connection:
        old = update(claims).where(claims.c.relay == relay).values(lease_until=wall_time_plus(-1.0))
        connection.execute(old)
        beat = update(state).where(state.c.kind == RELAY, state.c.name == relay)
        connection.execute(beat.values(until=wall_time_plus(-2.0)))
