"""The account at the end: every event that was promised must be somewhere, and nothing may have happened twice."""

from dataclasses import dataclass
from uuid import UUID


@dataclass(frozen=True, slots=True)
class Ledger:
    """By ids, not by counts: one lost event and one that nobody published would otherwise cancel out."""

    published: set[UUID]
    rolled_back: int
    poison: UUID
    messages: list[UUID]
    handed_over: int
    effects: list[UUID]
    dead_letters: set[UUID]

    @property
    def delivered(self) -> set[UUID]:
        return set(self.messages)

    @property
    def lost(self) -> set[UUID]:
        return self.published - self.delivered - self.dead_letters

    def mistakes(self) -> list[str]:
        """What does not balance; empty when all is well."""
        checks = {
            "an event is neither in Kafka nor in the dead letters": bool(self.lost),
            "something was announced that nobody committed": bool(
                (self.delivered | self.dead_letters) - self.published
            ),
            "an effect happened twice": len(self.effects) != len(set(self.effects)),
            "the effects are not those of the delivered events": set(self.effects) != self.delivered,
            "the poison event is not the one dead letter": self.dead_letters != {self.poison},
            "an event is both delivered and dead": bool(self.delivered & self.dead_letters),
        }
        return [mistake for mistake, happened in checks.items() if happened]

    def __str__(self) -> str:
        copies, absorbed = len(self.messages) - len(self.delivered), self.handed_over - len(self.effects)
        lines = (
            ("published", len(self.published), "orders that were committed, each with its event"),
            ("rolled back", self.rolled_back, "orders that were not; nobody heard of them"),
            ("delivered", len(self.delivered), f"different events in Kafka ({copies} sent again after the kill)"),
            ("duplicates absorbed", absorbed, f"of {self.handed_over} deliveries to the consumer"),
            ("effects", len(self.effects), "parcels, one per delivered order"),
            ("dead letters", len(self.dead_letters), "kept with their reason, for people to decide"),
            ("lost", len(self.lost), ""),
        )
        return "\n".join(f"  {name:<20}{count:>6}   {meaning}".rstrip() for name, count, meaning in lines)
