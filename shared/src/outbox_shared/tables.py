"""What every outbox table has in common, and the tables that both sides know."""

import re
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Column, Index, MetaData, PrimaryKeyConstraint, SmallInteger, String, Table, Text, text

from outbox_shared.driver import driver_error
from outbox_shared.errors import ConfigurationError
from outbox_shared.sqltypes import EventId, UtcTime, transaction_time, wall_time

CONSUMER_NAME_LENGTH = 200
EVENT_TYPE_LENGTH = 200
STATE_NAME_LENGTH = 255

MYSQL: Final = ("mysql", "mariadb")
"""One database to us; SQLAlchemy calls it by either name, depending on the URL and its own version."""

TABLES: Final = ("events", "claims", "dlq_events", "state", "audit", "consumed_events", "consumer_attempts")
"""All that there are, of both sides. One more needs a decision record."""

_ON_MYSQL = text("(UTC_TIMESTAMP(6))")  # the parentheses make it an expression, which older forms of DEFAULT were not
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


def now(dialect: str) -> Any:
    """A column default: the moment of the insert."""
    return _ON_MYSQL if dialect in MYSQL else wall_time()


def beginning(dialect: str) -> Any:
    """A column default: when the transaction began. MySQL has no such clock, there it is the statement."""
    return _ON_MYSQL if dialect in MYSQL else transaction_time()


def table_options(names: TableNames) -> dict[str, Any]:
    """Each table's keywords. On MySQL text compares byte by byte, or `AbC` and `abc` would be one consumer and one type."""
    options: dict[str, Any] = {"schema": names.schema}
    options["implicit_returning"] = False  # a producer's role may have INSERT alone
    for dialect in MYSQL:
        options |= {f"{dialect}_engine": "InnoDB", f"{dialect}_charset": "utf8mb4", f"{dialect}_collate": "utf8mb4_bin"}
    return options


def consumed_events(metadata: MetaData, names: TableNames, dialect: str) -> Table:
    """One row per consumer and event: its existence is the fact that the handler's effect is committed."""
    return Table(
        names.of("consumed_events"),
        metadata,
        Column("consumer", String(CONSUMER_NAME_LENGTH), nullable=False),
        Column("event_id", EventId, nullable=False),
        Column("event_type", String(EVENT_TYPE_LENGTH), nullable=True),
        Column("consumed_at", UtcTime, nullable=False, server_default=now(dialect)),
        # which batch inserted the row: row counts of an upsert lie there
        *([Column("mark", EventId)] if dialect in MYSQL else []),
        PrimaryKeyConstraint("consumer", "event_id", name=names.of("consumed_events_pkey")),
        Index(names.of("consumed_events_consumed_at"), "consumed_at"),
        **table_options(names),
    )


def consumer_attempts(metadata: MetaData, names: TableNames, dialect: str) -> Table:
    """How often a message's handler failed, for runners; the row goes when the message is consumed or dead-lettered."""
    return Table(
        names.of("consumer_attempts"),
        metadata,
        Column("consumer", String(CONSUMER_NAME_LENGTH), nullable=False),
        Column("event_id", EventId, nullable=False),
        Column("attempts", SmallInteger, nullable=False),
        Column("updated_at", UtcTime, nullable=False, server_default=now(dialect)),
        Column("last_error", Text),
        PrimaryKeyConstraint("consumer", "event_id", name=names.of("consumer_attempts_pkey")),
        # cleanup of what nobody came back for
        Index(names.of("consumer_attempts_at"), "updated_at"),
        **table_options(names),
    )


def outbox_state(metadata: MetaData, names: TableNames, dialect: str) -> Table:
    """Few rows that all processes of both sides share: maintenance leases, heartbeats, pauses, the schema's version."""
    return Table(
        names.of("state"),
        metadata,
        Column("kind", String(32), nullable=False),
        Column("name", String(STATE_NAME_LENGTH), nullable=False),
        Column("until", UtcTime),
        Column("updated_at", UtcTime, nullable=False, server_default=now(dialect)),
        Column("holder", String(255)),
        Column("value", Text),
        PrimaryKeyConstraint("kind", "name", name=names.of("state_pkey")),
        **table_options(names),
    )


def is_missing_table(error: BaseException) -> bool:
    """Whether a statement failed because a table does not exist, in each driver's own words."""
    original = driver_error(error)
    if "42P01" in (
        getattr(original, "sqlstate", None),
        getattr(original, "pgcode", None),
    ):  # PostgreSQL: undefined_table
        return True
    arguments = getattr(original, "args", ())
    if arguments and arguments[0] == 1146:
        return True
    return "no such table" in str(original)
