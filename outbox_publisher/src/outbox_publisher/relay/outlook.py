"""What a relay sees when it looks at the database: which types have something due, what is paused, and where suspects are."""

from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy.engine import Connection

from outbox_publisher.claims import ClaimStrategy
from outbox_publisher.store import EventStore
from outbox_shared.state import PAUSE, SUSPECTS

EVERYTHING = "*"


def pause_name(event_type: str | None = None, topic: str | None = None) -> str:
    """How a pause is written down."""
    if event_type is not None:
        return f"type:{event_type}"
    return EVERYTHING if topic is None else f"topic:{topic}"


@dataclass(frozen=True, slots=True)
class Outlook:
    types: list[str] = field(default_factory=list)
    """Those with something due that are not paused."""
    paused_topics: frozenset[str] = frozenset()
    suspects: dict[str, datetime] = field(default_factory=dict)
    """Types that have rows whose relay died over them, and when that was last seen."""


def look(connection: Connection, store: EventStore, claims: ClaimStrategy) -> Outlook:
    pauses, suspects = set(), {}
    for row in store.state.rows(connection, PAUSE, SUSPECTS):
        if row.kind == PAUSE:
            pauses.add(row.name)
        else:
            suspects[row.name] = row.updated_at
    if EVERYTHING in pauses:
        return Outlook()
    topics = frozenset(name.removeprefix("topic:") for name in pauses if name.startswith("topic:"))
    types = [one for one in claims.due_types(connection) if pause_name(event_type=one) not in pauses]
    return Outlook(types, topics, suspects)
