"""What a settle writes, as values: the relay decides them, the store carries them out."""

from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID


class Delivered(NamedTuple):
    """The broker has it. A tuple, as a bulk update takes it."""

    id: UUID
    partition: int | None = None
    offset: int | None = None


class Rescheduled(NamedTuple):
    """Back to PENDING: `delay` seconds from now, or at the time it had where that is None (nothing was charged)."""

    id: UUID
    attempts: int
    delay: float | None
    error: str | None
    maybe_sent: bool


class Buried(NamedTuple):
    """No retry will help: into the dead letters, with the reason."""

    id: UUID
    attempts: int
    reason: str
    error: str
    maybe_sent: bool


@dataclass(frozen=True, slots=True)
class Settlement:
    """The fate of every row of a batch."""

    delivered: list[Delivered] = field(default_factory=list)
    rescheduled: list[Rescheduled] = field(default_factory=list)
    buried: list[Buried] = field(default_factory=list)
