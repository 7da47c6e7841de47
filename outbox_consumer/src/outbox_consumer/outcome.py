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
    """This consumer had consumed the event before, or earlier in the same batch; the handler was not called with it."""

    FAILED = "failed"
    """The handler raised for this message, and nothing of it was kept. Only `consume_batch(…, on_error="bisect")` answers so."""


@dataclass(frozen=True, slots=True)
class Outcome(Generic[R]):
    """The answer for one message. True in an `if` when the handler ran now.

    Acknowledge the message unless it is FAILED: that one is as new as before, to be delivered again or put aside.
    """

    status: Status
    event_id: UUID
    event_type: str | None
    result: R | None = None
    """What the handler returned, in a batch from the call that had this message; None for a duplicate."""

    from_cache: bool = False
    """Whether a cache knew the duplicate, without a look into the database."""

    error: Exception | None = None
    """What the handler raised when it ran with this message alone; only where it FAILED."""

    def __bool__(self) -> bool:
        return self.status is Status.CONSUMED
