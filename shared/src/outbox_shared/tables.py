"""What every outbox table has in common: names, creation, and the consumed table that both sides know."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import Column, Index, MetaData, PrimaryKeyConstraint, String, Table, inspect
from sqlalchemy.engine import Engine
from sqlalchemy.exc import DBAPIError

from outbox_shared.errors import ConfigurationError
from outbox_shared.sqlite import READS_ONLY
from outbox_shared.sqltypes import EventId, UtcTime, wall_time

CONSUMER_NAME_LENGTH = 200
EVENT_TYPE_LENGTH = 200

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LONGEST = 36  # PostgreSQL takes 63; the longest name of ours, consumed_events_consumed_at, has 27


@dataclass(frozen=True, slots=True)
class TableNames:
    """Where the tables live: `tables.schema` and `tables.prefix` of the settings."""

    schema: str | None = None
    prefix: str = "outbox_"

    def __post_init__(self) -> None:
        for key, value in (("tables.schema", self.schema), ("tables.prefix", self.prefix)):
            if value is not None and not (_IDENTIFIER.fullmatch(value) and len(value) <= _LONGEST):
                raise ConfigurationError(
                    f"{key} must be a plain SQL identifier (letters, digits, underscore, at most {_LONGEST}), not {value!r}"
                )

    def of(self, name: str) -> str:
        return f"{self.prefix}{name}"


def consumed_events(metadata: MetaData, names: TableNames) -> Table:
    """One row per consumer and event: its existence is the fact that the handler's effect is committed."""
    return Table(
        names.of("consumed_events"),
        metadata,
        Column("consumer", String(CONSUMER_NAME_LENGTH), nullable=False),
        Column("event_id", EventId, nullable=False),
        Column("event_type", String(EVENT_TYPE_LENGTH), nullable=True),
        Column("consumed_at", UtcTime, nullable=False, server_default=wall_time()),
        PrimaryKeyConstraint("consumer", "event_id", name=names.of("consumed_events_pkey")),
        Index(names.of("consumed_events_consumed_at"), "consumed_at"),
        schema=names.schema,
        implicit_returning=False,
    )


def missing_tables(engine: Engine, tables: Iterable[Table]) -> list[Table]:
    """Those that are not there yet, by a look into the catalogue: a role without CREATE may start where nothing is missing."""
    with engine.connect().execution_options(**{READS_ONLY: True}) as connection:
        catalogue = inspect(connection)
        return [table for table in tables if not catalogue.has_table(table.name, schema=table.schema)]


def create_missing(engine: Engine, tables: Iterable[Table]) -> list[str]:
    """Create what is missing and return its names. Safe when several processes do it at once: the loser looks again."""
    wanted = list(tables)
    for last_try in (False, False, True):
        missing = missing_tables(engine, wanted)
        if not missing:
            return []
        try:
            with engine.begin() as connection:
                missing[0].metadata.create_all(connection, tables=missing, checkfirst=False)
            return [table.name for table in missing]
        except DBAPIError:
            if last_try:
                raise
    return []


def is_missing_table(error: DBAPIError) -> bool:
    """Whether a statement failed because a table does not exist, in each driver's own words."""
    original = error.orig
    if "42P01" in (
        getattr(original, "sqlstate", None),
        getattr(original, "pgcode", None),
    ):  # PostgreSQL: undefined_table
        return True
    arguments = getattr(original, "args", ())
    if arguments and arguments[0] == 1146:
        return True
    return "no such table" in str(original)
