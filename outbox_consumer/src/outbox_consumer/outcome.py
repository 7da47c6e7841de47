"""What became of one delivery."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar
from uuid import UUID

R = TypeVar("R")


class Status(StrEnum):
    """Why the handler ran, or why not."""

    CONSUMED = "consumed"
    """The handler ran now, and its changes are committed together with the mark."""

    DUPLICATE = "duplicate"
    """This consumer had consumed the event before; the handler was not called."""


@dataclass(frozen=True, slots=True)
class Outcome(Generic[R]):
    """The answer of `consume`. True in an `if` when the handler ran now; either way the message can be acknowledged."""

    status: Status
    event_id: UUID
    event_type: str | None
    result: R | None = None
    """What the handler returned; None for a duplicate."""

    from_cache: bool = False
    """Whether a cache knew the duplicate, without a look into the database."""

    def __bool__(self) -> bool:
        return self.status is Status.CONSUMED
