"""What an outbox looks like from outside: who relays, what is paused, and how much of what there is."""

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy.engine import Connection

from outbox_publisher.store import Count, EventStore
from outbox_shared.state import PAUSE, RELAY
from outbox_shared.text import as_json


@dataclass(frozen=True, slots=True)
class RelaySeen:
    """A relay's last sign of life. One that stopped in good order has taken its own back."""

    name: str
    alive: bool
    seen_at: datetime
    host: str | None = None
    pid: int | None = None
    version: str | None = None


@dataclass(frozen=True, slots=True)
class Status:
    now: datetime
    """The database's clock, by which all of it is meant."""
    relays: list[RelaySeen]
    paused: list[str]
    """`*`, `type:…` and `topic:…`."""
    events: list[Count]
    dead_letters: list[Count]

    def as_json(self) -> str:
        return as_json(self)


def read_status(connection: Connection, store: EventStore) -> Status:
    rows = store.state.rows(connection, RELAY, PAUSE)
    return Status(
        now=store.state.now(connection),
        relays=[_relay(row) for row in rows if row.kind == RELAY],
        paused=[row.name for row in rows if row.kind == PAUSE],
        events=store.count_events(connection),
        dead_letters=store.count_dead_letters(connection),
    )


def _relay(row: Any) -> RelaySeen:
    about = json.loads(row.value or "{}")
    told = {name: about.get(name) for name in ("host", "pid", "version")}
    return RelaySeen(row.name, bool(row.alive), row.updated_at, **told)
