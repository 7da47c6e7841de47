"""Which event types each worker thread of a relay serves. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from outbox_publisher.settings import DeliverySettings

OF_ITS_OWN = {"batch_size", "fixed_delay"}
"""An event type that sets one of these has a rhythm of its own, and shall not be held up by the others."""


@dataclass(frozen=True, slots=True)
class Share:
    """What one worker serves: the types that are named, or all but those."""

    name: str
    types: frozenset[str]
    all_but: bool = False

    def has(self, event_type: str) -> bool:
        return (event_type in self.types) != self.all_but


def divide(events: Mapping[str, DeliverySettings], threads: int) -> list[Share]:
    """One worker for everything that sets no rhythm of its own, and one for each type that does, as far as there are threads."""
    own = sorted(name for name, delivery in events.items() if OF_ITS_OWN & delivery.model_fields_set)
    count = min(len(own), threads - 1)
    dealt = [own[number::count] for number in range(count)]
    taken = frozenset(name for names in dealt for name in names)
    return [
        Share("relay", taken, all_but=True),
        *(Share(f"relay-{', '.join(names)}", frozenset(names)) for names in dealt),
    ]
