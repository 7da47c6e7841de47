"""What a relay makes of its look at the database: which types may be claimed now, which topics not, and where suspects are. Pure."""

from dataclasses import dataclass, field
from datetime import datetime

from outbox_publisher.store import Look

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
    next_due: float | None = None
    """Seconds until a type has something due that has nothing now."""


def outlook_of(look: Look) -> Outlook:
    return paused(Outlook(look.due, suspects=look.suspects, next_due=look.next_due), look)


def paused(outlook: Outlook, look: Look) -> Outlook:
    """The same with the pauses and suspects of a later look."""
    if EVERYTHING in look.pauses:
        return Outlook()
    topics = frozenset(name.removeprefix("topic:") for name in look.pauses if name.startswith("topic:"))
    types = [one for one in outlook.types if pause_name(event_type=one) not in look.pauses]
    return Outlook(types, topics, look.suspects, outlook.next_due)
