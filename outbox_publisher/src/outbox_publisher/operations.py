"""What people do to an outbox from outside. The command line calls it; every method is a transaction or several bounded ones."""

import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from uuid import UUID

from sqlalchemy.engine import Connection, Engine

from outbox_publisher.relay.duties import Duties
from outbox_publisher.relay.inflight import InFlight
from outbox_publisher.relay.outlook import pause_name
from outbox_publisher.relay.recovery import Orphans
from outbox_publisher.relay.settler import log_dead_letters
from outbox_publisher.schema import require_tables
from outbox_publisher.settings import PublisherSettings
from outbox_publisher.status import Status, read_status
from outbox_publisher.store import store_for
from outbox_shared.clock import SystemClock
from outbox_shared.conflicts import Transactions
from outbox_shared.database import make_engine, reading
from outbox_shared.errors import ConfigurationError
from outbox_shared.state import PAUSE
from outbox_shared.tables import STATE_NAME_LENGTH

AT_ONCE = 500
"""Rows that one transaction changes at most."""


@dataclass(frozen=True, slots=True)
class Retried:
    """How many events are to be sent again; of the ids that were named, those that are not FAILED, and what they are."""

    count: int
    others: dict[UUID, str]


class Operations:
    def __init__(self, settings: PublisherSettings, engine: Engine) -> None:
        self._settings, self._engine = settings, engine
        self._store = store_for(engine.dialect.name, settings.tables.names)
        require_tables(engine, settings.tables.names)
        clock = SystemClock()
        self._transactions = Transactions(engine, self._store, clock)
        name = f"command@{socket.gethostname()}:{os.getpid()}"
        self._duties = Duties(
            self._transactions, self._store, settings, name, InFlight(clock), log_dead_letters, clock
        )  # fmt: skip

    def status(self) -> Status:
        with reading(self._engine) as connection:
            return read_status(connection, self._store)

    # Pauses: every relay sees them within a second.

    def pause(self, event_type: str | None = None, topic: str | None = None) -> None:
        """Nothing of it is claimed any more; events are still stored. Without a type or topic: nothing at all."""
        name = _pause_name(event_type, topic)
        self._transactions.run(lambda it: self._store.state.put(it, PAUSE, name))

    def resume(self, event_type: str | None = None, topic: str | None = None) -> bool:
        """End that pause, and no other; False where there was none."""
        name = _pause_name(event_type, topic)
        return self._transactions.run(lambda it: self._store.state.remove(it, PAUSE, name))

    # What relays do by themselves, now and to the end.

    def clean_up(self) -> tuple[int, int]:
        """Remove delivered events and resolved dead letters that are older than their ttl; returns how many of each."""
        return self._duties.cleanup.run_to_the_end(), self._duties.dead_letter_cleanup.run_to_the_end()

    def recover(self) -> int:
        """Give back the rows of claims whose lease is over, and of claims that are gone; returns how many rows."""
        return self._duties.recovery.run_once() + Orphans(self._transactions, self._store).run_once()

    # FAILED rows, which `dlq.enabled: false` leaves behind.

    def retry(self, ids: Sequence[UUID]) -> Retried:
        """Send these events again, with a fresh budget. Those that are not FAILED stay what they are."""
        count, others = 0, dict[UUID, str]()
        for start in range(0, len(ids), AT_ONCE):
            some = ids[start : start + AT_ONCE]
            changed, rest = self._transactions.run(partial(self._retry_named, ids=some))
            count += changed
            others |= rest
        return Retried(count, others)

    def retry_all(self, event_type: str | None = None) -> int:
        """Send every FAILED event again, or all of one type; returns how many."""
        count = 0
        while changed := self._transactions.run(lambda it: self._retry_some(it, event_type)):
            count += changed
        return count

    def _retry_named(self, connection: Connection, ids: Sequence[UUID]) -> tuple[int, dict[UUID, str]]:
        standing = self._store.standing(connection, ids)
        others = {one: standing.get(one, "there is no such event") for one in ids if standing.get(one) != "FAILED"}
        return self._store.send_again(connection, [one for one in ids if one not in others]), others

    def _retry_some(self, connection: Connection, event_type: str | None) -> int:
        failed = self._store.failed(connection, AT_ONCE, event_type)
        return self._store.send_again(connection, failed) if failed else 0


def _pause_name(event_type: str | None, topic: str | None) -> str:
    if event_type is not None and topic is not None:
        raise ConfigurationError("name a type or a topic, not both: two commands pause two things")
    name = pause_name(event_type, topic)
    if len(name) > STATE_NAME_LENGTH:
        raise ConfigurationError(f"no type or topic has such a long name: {name[:40]}…")
    return name


@contextmanager
def operations(settings: PublisherSettings) -> Iterator[Operations]:
    """For a command: with an engine of its own."""
    engine = make_engine(settings.require_database_url(), "outbox-publisher")
    try:
        yield Operations(settings, engine)
    finally:
        engine.dispose()
