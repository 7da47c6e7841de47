"""What a relay's round did, in numbers."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Turn:
    """`fenced` counts rows that were no longer ours when we came to settle them; `full`: a claim brought all that it asked for."""

    claimed: int = 0
    delivered: int = 0
    rescheduled: int = 0
    buried: int = 0
    fenced: int = 0
    unavailable: bool = False
    full: bool = False

    def __add__(self, other: "Turn") -> "Turn":
        return Turn(
            self.claimed + other.claimed,
            self.delivered + other.delivered,
            self.rescheduled + other.rescheduled,
            self.buried + other.buried,
            self.fenced + other.fenced,
            self.unavailable or other.unavailable,
            self.full or other.full,
        )
