"""What consuming looks like from outside: who has consumed how much, what is to go, and who sees to that."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy.engine import Connection

from outbox_consumer.settings import ConsumerSettings
from outbox_consumer.store.upkeep import Number, Span, Upkeep
from outbox_consumer.store.upkeep.base import LEASE as CLEANUP
from outbox_shared.state import LEASE
from outbox_shared.text import as_json
from outbox_shared.version import read_version


@dataclass(frozen=True, slots=True)
class Cleaner:
    """The process that is cleaning right now, or died over it; its lease is given back after each run."""

    holder: str
    alive: bool
    since: datetime


@dataclass(frozen=True, slots=True)
class Status:
    now: datetime
    """The database's clock, by which all of it is meant."""
    schema_version: str | None
    consumers: list[Span]
    oldest: datetime | None
    newest: datetime | None
    ttl: timedelta
    cleanup_enabled: bool
    """By the settings that this command read."""
    expired: Number
    """Consumed rows that are older than the ttl."""
    attempts: Number
    """Messages whose handler failed, and that were neither consumed since nor dead-lettered."""
    oldest_attempt: datetime | None
    cleaner: Cleaner | None

    def as_json(self) -> str:
        return as_json(self)


def read_status(connection: Connection, upkeep: Upkeep, settings: ConsumerSettings) -> Status:
    counting, clean = upkeep.counting, settings.clean_up
    oldest, newest = counting.ends(connection)
    return Status(
        now=upkeep.state.now(connection),
        schema_version=read_version(connection, upkeep.state_table, "consumer"),
        consumers=counting.consumers(connection),
        oldest=oldest,
        newest=newest,
        ttl=clean.ttl,
        cleanup_enabled=clean.enabled,
        expired=counting.expired(connection, clean.ttl.total_seconds()),
        attempts=counting.attempts(connection),
        oldest_attempt=counting.oldest_attempt(connection),
        cleaner=read_cleaner(connection, upkeep),
    )


def read_cleaner(connection: Connection, upkeep: Upkeep) -> Cleaner | None:
    leases = (row for row in upkeep.state.rows(connection, LEASE) if row.name == CLEANUP)
    return next((Cleaner(row.holder or "", bool(row.alive), row.updated_at) for row in leases), None)
