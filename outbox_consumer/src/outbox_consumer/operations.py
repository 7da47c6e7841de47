"""What people do to a consumer's tables from outside. The command line calls it; every method is a transaction or several bounded ones."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from uuid import UUID

from sqlalchemy.engine import Connection, Engine

from outbox_consumer.cache import current_epoch, next_epoch
from outbox_consumer.cleaning.duty import Cleaning
from outbox_consumer.schema import consumer_tables
from outbox_consumer.settings import ConsumerSettings
from outbox_consumer.status import Cleaner, Status, read_cleaner, read_status
from outbox_consumer.store.consumed import missing_table
from outbox_consumer.store.upkeep import upkeep_for
from outbox_shared.clock import SystemClock
from outbox_shared.conflicts import Transactions
from outbox_shared.creation import missing_tables
from outbox_shared.database import make_engine, reading
from outbox_shared.settings import CleanUpSettings

AT_ONCE = 500
"""Rows that one transaction changes at most."""


@dataclass(frozen=True, slots=True)
class Forgotten:
    """How many marks went; of the ids that were named, those that this consumer has not consumed."""

    count: int
    others: list[UUID]


class Operations:
    def __init__(self, settings: ConsumerSettings, engine: Engine) -> None:
        self._settings, self._engine = settings, engine
        names = settings.tables.names
        missing = missing_tables(engine, consumer_tables(names, engine.dialect.name))
        if missing:
            raise missing_table(missing[0].fullname)
        self._upkeep = upkeep_for(engine.dialect.name, names)
        self._transactions = Transactions(engine, self._upkeep, SystemClock())

    def status(self) -> Status:
        with reading(self._engine) as connection:
            return read_status(connection, self._upkeep, self._settings)

    def cleaner(self) -> Cleaner | None:
        """Another process that is cleaning right now."""
        with reading(self._engine) as connection:
            found = read_cleaner(connection, self._upkeep)
        return found if found is not None and found.alive else None

    def clean_up(self, ttl: timedelta | None, tell: Callable[[int], None]) -> tuple[int, int]:
        """Remove what is older than its ttl; returns how many consumed rows and rows of failures. Waits for another cleaner's end."""
        settings = self._settings.clean_up
        wanted: CleanUpSettings = settings if ttl is None else settings.model_copy(update={"ttl": ttl})
        cleaning = Cleaning(
            lambda: self._engine, self._settings.tables.names, lambda: wanted, SystemClock(), tell
        )  # fmt: skip
        return cleaning.run_to_the_end()

    def forget(self, consumer: str, ids: Sequence[UUID]) -> Forgotten:
        """Take marks away: a message with one of these ids runs its handler again."""
        found: set[UUID] = set()
        for start in range(0, len(ids), AT_ONCE):
            found |= self._transactions.run(partial(self._forget, consumer=consumer, ids=ids[start : start + AT_ONCE]))
        return Forgotten(len(found), [one for one in dict.fromkeys(ids) if one not in found])

    def forget_all_caches(self) -> None:
        """After rows were lost behind them (a restore, say): every cache begins anew, the rows stay as they are."""
        self._transactions.run(lambda it: next_epoch(it, self._settings.tables.names))

    def _forget(self, connection: Connection, consumer: str, ids: Sequence[UUID]) -> set[UUID]:
        """With the rows goes what caches know, all of it: nobody can reach what other processes remember of a single one."""
        found: set[UUID] = self._upkeep.forget(connection, consumer=consumer, ids=ids)
        names = self._settings.tables.names
        if current_epoch(connection, names) is not None:  # a cache has been used with this database
            next_epoch(connection, names)
        return found


@contextmanager
def operations(settings: ConsumerSettings) -> Iterator[Operations]:
    """For a command: with an engine of its own."""
    engine = make_engine(settings.require_database_url(), "outbox-consumer")
    try:
        yield Operations(settings, engine)
    finally:
        engine.dispose()
