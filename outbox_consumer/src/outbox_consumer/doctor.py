"""`doctor`: whether a consumer with these settings can work, a line for each thing that was looked at. Changes nothing."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib.metadata import PackageNotFoundError, version
from typing import Literal

from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from outbox_consumer.doctor_redis import look_at_redis
from outbox_consumer.schema import CONSUMER
from outbox_consumer.settings import ConsumerSettings
from outbox_consumer.store.upkeep import Upkeep, upkeep_for
from outbox_consumer.store.upkeep.probes import PROBES
from outbox_shared.catalogue import check
from outbox_shared.database import make_engine, reading
from outbox_shared.durations import format_duration
from outbox_shared.errors import OutboxError

Level = Literal["ok", "warning", "problem"]

CLIENTS = ("psycopg", "pymysql", "redis", "confluent-kafka", "pika", "prometheus-client", "opentelemetry-api")
CLOCKS_APART = timedelta(seconds=5)
BEHIND = timedelta(hours=1)
"""Cleanup that is later than this does not happen, or cannot keep up."""


@dataclass(frozen=True, slots=True)
class Finding:
    level: Level
    subject: str
    what: str
    remedy: str = ""


def examine(load: Callable[[], ConsumerSettings]) -> list[Finding]:
    """Everything that can be looked at; what depends on something that does not work is left out."""
    try:
        settings = load()
    except OutboxError as error:
        return [Finding("problem", "settings", _one_line(error), "see docs/reference/settings.md")]
    return [*_settings(settings), *_database(settings), *_cache(settings), _clients()]


def _settings(settings: ConsumerSettings) -> Iterator[Finding]:
    if not settings.enabled:
        yield Finding(
            "problem",
            "settings",
            "consumer.enabled is false",
            "set it to true, or build no consumer with these settings",
        )
    else:
        yield Finding("ok", "settings", f"can be read; consumer.name {settings.name or 'is left to the code'}")
    for warning in settings.warnings():
        yield Finding("warning", "settings", *_halves(warning))


def _database(settings: ConsumerSettings) -> Iterator[Finding]:
    try:
        engine = make_engine(settings.require_database_url(), "outbox-consumer")
    except OutboxError as error:
        yield Finding("problem", "database", *_halves(str(error)))
        return
    try:
        yield from _inside(settings, engine)
    except SQLAlchemyError as error:
        remedy = "look at outbox.database-url, the server and the way to it"
        yield Finding("problem", "database", _one_line(getattr(error, "orig", None) or error), remedy)
    finally:
        engine.dispose()


def _inside(settings: ConsumerSettings, engine: Engine) -> Iterator[Finding]:
    upkeep = upkeep_for(engine.dialect.name, settings.tables.names)
    with reading(engine) as connection:
        yield _server(upkeep, connection)
        yield from _isolation(upkeep, connection)
    tables = list(_readable("tables", lambda: _tables(settings, engine)))
    yield from tables
    if any(one.what.endswith(" is missing") and one.remedy.endswith(" init-db") for one in tables):
        return  # the rest would fail for the same reason
    yield from _rights(upkeep, engine)
    with reading(engine) as connection:
        yield _clock(upkeep, connection)
    yield from _readable("retention", lambda: _retention(settings, upkeep, engine))


def _readable(subject: str, look: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """A role with few rights may consume and not look."""
    try:
        yield from look()
    except SQLAlchemyError as error:
        why = _one_line(getattr(error, "orig", None) or error)
        yield Finding(
            "warning", subject, f"cannot be looked at: {why}", "run doctor as a role that may read the tables"
        )


def _tables(settings: ConsumerSettings, engine: Engine) -> Iterator[Finding]:
    differences = check(engine, CONSUMER, settings.tables.names)
    for line in differences:
        yield Finding("problem", "tables", *_halves(line))
    if not differences:
        yield Finding("ok", "tables", "are as this release expects them")


def _server(upkeep: Upkeep, connection: Connection) -> Finding:
    name, found, oldest = upkeep.server(connection)
    said = f"{name} {'.'.join(map(str, found))} answers"
    if found < oldest:
        return Finding("problem", "database", said, f"the consumer needs {name} {'.'.join(map(str, oldest))} or newer")
    return Finding("ok", "database", said)


def _isolation(upkeep: Upkeep, connection: Connection) -> Iterator[Finding]:
    level = upkeep.default_isolation(connection)
    if level is None:
        return
    if level in upkeep.good_isolation:
        yield Finding("ok", "isolation", f"sessions begin in {level}")
        return
    yield Finding(
        "warning", "isolation", f"sessions begin in {level}, where copies of a message that arrive at once cost retries",
        'create_engine(…, isolation_level="READ COMMITTED") for the consumer',
    )  # fmt: skip


def _rights(upkeep: Upkeep, engine: Engine) -> Iterator[Finding]:
    """Tried and taken back, in one transaction: nothing is left behind."""
    refused = False
    with upkeep.engine_for(engine).connect() as connection, connection.begin() as transaction:
        for probe in PROBES:
            savepoint = connection.begin_nested()
            try:
                probe.attempt(upkeep, connection)
            except SQLAlchemyError as error:
                refused = True
                why = _one_line(getattr(error, "orig", None) or error)
                yield Finding(
                    "problem" if probe.is_needed else "warning",
                    "rights",
                    f"cannot {probe.purpose}: {why}",
                    probe.remedy,
                )
            savepoint.rollback()
        transaction.rollback()
    if not refused:
        yield Finding("ok", "rights", "enough to consume, to clean up and to count failures")


def _clock(upkeep: Upkeep, connection: Connection) -> Finding:
    apart = abs(upkeep.state.now(connection) - datetime.now(UTC))
    if apart <= CLOCKS_APART:
        return Finding("ok", "clock", "this machine and the database agree")
    remedy = "nothing depends on it, since time is the database's; but logs will be hard to read: look at NTP"
    return Finding("warning", "clock", f"this machine and the database are {apart.total_seconds():.0f} s apart", remedy)


def _retention(settings: ConsumerSettings, upkeep: Upkeep, engine: Engine) -> Iterator[Finding]:
    ttl = settings.clean_up.ttl
    kept = format_duration(ttl)
    with reading(engine) as connection:
        oldest, _ = upkeep.counting.ends(connection)
        late = timedelta(0) if oldest is None else upkeep.state.now(connection) - oldest - ttl
    if late > BEHIND:
        cause = "no consumer runs that cleans up" if settings.clean_up.enabled else "consumer.clean-up.enabled is false"
        yield Finding(
            "warning", "retention", f"the oldest consumed row is {_hours(late)} past its ttl of {kept}: {cause}",
            "start a consumer with the right to DELETE, or run outbox-consumer cleanup from time to time",
        )  # fmt: skip
    else:
        yield Finding(
            "ok",
            "retention",
            f"a message that comes again within {kept} is recognised; Kafka's own retention is not known here",
        )


def _cache(settings: ConsumerSettings) -> Iterator[Finding]:
    url = settings.cache_redis_url
    if settings.cache.enabled and url is not None:
        yield from (Finding(level, "redis", what, remedy) for level, what, remedy in look_at_redis(url))


def _clients() -> Finding:
    found, absent = [], []
    for name in CLIENTS:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            absent.append(name)
    without = f"; not installed: {', '.join(absent)}" if absent else ""
    return Finding("ok", "clients", f"installed: {', '.join(found) or 'none'}{without}")


def _halves(line: str) -> tuple[str, str]:
    """What is wrong; what to do. Both stand in one sentence where there is only one line for them."""
    first = " ".join(line.split())
    for mark in ("; run: ", "; write ", ": write ", ": set ", ": run "):
        what, found, remedy = first.partition(mark)
        if found:
            return what, f"{mark.strip(':; ')} {remedy}" if not mark.endswith(": ") else f"run: {remedy}"
    return first, ""


def _hours(late: timedelta) -> str:
    return format_duration(timedelta(hours=int(late.total_seconds() // 3600)))


def _one_line(error: object) -> str:
    return " ".join(str(error).split()) if isinstance(error, OutboxError) else str(error).strip().partition("\n")[0]
