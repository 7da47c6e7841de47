"""The account at the end: every event that was promised must be somewhere, and nothing may have happened twice."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ledger:
    published: int
    rolled_back: int
    delivered: int
    copies: int
    handed_over: int
    absorbed: int
    effects: int
    orders_with_effect: int
    dead_letters: int

    @property
    def lost(self) -> int:
        return self.published - self.delivered - self.dead_letters

    def mistakes(self) -> list[str]:
        """What does not balance; empty when all is well."""
        checks = {
            "an event is neither in Kafka nor in the dead letters": self.lost > 0,
            "more was sent than was published: something rolled back was announced": self.lost < 0,
            "an effect happened twice": self.effects != self.orders_with_effect,
            "a delivered event had no effect, or an effect had no event": self.effects != self.delivered,
            "a delivery is neither an effect nor an absorbed copy": self.handed_over != self.effects + self.absorbed,
        }
        return [mistake for mistake, happened in checks.items() if happened]

    def __str__(self) -> str:
        lines = (
            ("published", self.published, "orders that were committed, each with its event"),
            ("rolled back", self.rolled_back, "orders that were not; nobody heard of them"),
            ("delivered", self.delivered, f"different events in Kafka ({self.copies} sent again after the kill)"),
            ("duplicates absorbed", self.absorbed, f"of {self.handed_over} deliveries to the consumer"),
            ("effects", self.effects, "parcels, one per delivered order"),
            ("dead letters", self.dead_letters, "kept with their reason, for people to decide"),
            ("lost", self.lost, ""),
        )
        return "\n".join(f"  {name:<20}{count:>6}   {meaning}".rstrip() for name, count, meaning in lines)
