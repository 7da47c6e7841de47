"""What a consumer needs to know of a message."""

from dataclasses import dataclass
from uuid import UUID


@dataclass(frozen=True, slots=True)
class Identity:
    """The event that a message carries."""

    event_id: UUID
    event_type: str | None
