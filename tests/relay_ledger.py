"""A ledger that the database itself keeps: each change of an event's status or claim, and the beginning and end of each claim.

Triggers write it in the transaction of the change: it holds all that was committed and nothing that was rolled back. Two changes of one
event are in their true order, since the second waits for the first one's row lock before it gets its number.
"""

from collections import defaultdict
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import BigInteger, Column, Identity, Integer, MetaData, String, Table, select
from sqlalchemy.engine import Engine

from outbox_shared.database import reading
from outbox_shared.sqltypes import EventId
from tests.fixtures import OutboxDatabase

_CHANGE = """INSERT INTO ledger_changes (event_id, was, becomes, old_token, new_token)
    VALUES (NEW.id, OLD.status, NEW.status, OLD.claim_token, NEW.claim_token)"""
_OPENED = "INSERT INTO ledger_claims (token, relay, what) VALUES (NEW.token, NEW.relay, 'opened')"
_ENDED = "INSERT INTO ledger_claims (token, relay, what) VALUES (OLD.token, OLD.relay, 'ended')"

_TRIGGERS = [
    ("change", "AFTER UPDATE ON outbox_events", _CHANGE),
    ("opened", "AFTER INSERT ON outbox_claims", _OPENED),
    ("ended", "AFTER DELETE ON outbox_claims", _ENDED),
]


@dataclass(frozen=True)
class Change:
    """What one committed transaction did to one event."""

    was: str
    becomes: str
    old_token: UUID | None
    new_token: UUID | None


class Ledger:
    """Made in a test's own database, before the first claim."""

    def __init__(self, database: OutboxDatabase) -> None:
        self._engine = database.engine
        metadata, token = MetaData(), database.store.tables.events.c.claim_token
        number = BigInteger().with_variant(Integer, "sqlite")
        self._changes = Table(
            "ledger_changes",
            metadata,
            Column("n", number, Identity(), primary_key=True),
            Column("event_id", EventId, nullable=False),
            Column("was", String(16), nullable=False),
            Column("becomes", String(16), nullable=False),
            Column("old_token", token.type),
            Column("new_token", token.type),
        )
        self._claims = Table(
            "ledger_claims",
            metadata,
            Column("n", number, Identity(), primary_key=True),
            Column("token", EventId, nullable=False),
            Column("relay", String(255), nullable=False),
            Column("what", String(8), nullable=False),
        )
        metadata.create_all(self._engine)
        _create_triggers(self._engine)

    def stories(self) -> dict[UUID, list[Change]]:
        """What happened to each event, in order."""
        found: dict[UUID, list[Change]] = defaultdict(list)
        with reading(self._engine) as connection:
            for row in connection.execute(select(self._changes).order_by(self._changes.c.n)):
                found[row.event_id].append(Change(row.was, row.becomes, row.old_token, row.new_token))
        return dict(found)

    def claims(self) -> dict[UUID, list[str]]:
        """What happened to each claim, in order: it was opened, and ended."""
        found: dict[UUID, list[str]] = defaultdict(list)
        with reading(self._engine) as connection:
            for row in connection.execute(select(self._claims).order_by(self._claims.c.n)):
                found[row.token].append(row.what)
        return dict(found)

    def claimants(self) -> dict[UUID, str]:
        """The relay that opened each claim."""
        with reading(self._engine) as connection:
            rows = connection.execute(select(self._claims).where(self._claims.c.what == "opened")).all()
        return {row.token: row.relay for row in rows}


def _create_triggers(engine: Engine) -> None:
    with engine.begin() as connection:
        for name, when, what in _TRIGGERS:
            for statement in _statements(engine.dialect.name, name, when, what):
                connection.exec_driver_sql(statement)


def _statements(dialect: str, name: str, when: str, what: str) -> list[str]:
    """Light ones: an update that leaves status and claim alone writes nothing."""
    row, changed = "FOR EACH ROW", ""
    match dialect:
        case "postgresql":
            if name == "change":
                changed = "WHEN ((OLD.status, OLD.claim_token) IS DISTINCT FROM (NEW.status, NEW.claim_token))"
            body = f"BEGIN {what}; RETURN NULL; END"
            return [
                f"CREATE FUNCTION ledger_{name}() RETURNS trigger LANGUAGE plpgsql AS $${body}$$",
                f"CREATE TRIGGER ledger_{name} {when} {row} {changed} EXECUTE FUNCTION ledger_{name}()",
            ]
        case "mysql":
            if name == "change":
                changed = "IF OLD.status <> NEW.status OR OLD.claim_token <> NEW.claim_token THEN"
            return [f"CREATE TRIGGER ledger_{name} {when} {row} {changed} {what}{'; END IF' if changed else ''}"]
        case _:
            if name == "change":
                changed = "WHEN OLD.status IS NOT NEW.status OR OLD.claim_token IS NOT NEW.claim_token"
            return [f"CREATE TRIGGER ledger_{name} {when} {row} {changed} BEGIN {what}; END"]
