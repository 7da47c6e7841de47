"""What a consumer needs to know of a message."""

from dataclasses import dataclass
from uuid import UUID

from outbox_shared.context import NO_STORY, Story


@dataclass(frozen=True, slots=True)
class Identity:
    """The event that a message carries."""

    event_id: UUID
    event_type: str | None
    story: Story = NO_STORY
    """What an event that its handler publishes takes over."""
