"""The seam between the relay and a broker: a batch goes out in one piece, and every event comes back with one SendResult.

delivered    the broker has it
retry        try again later; counts against max-retries where `charged`
reject       no retry will cure it: too large, cannot be encoded, refused alone
unavailable  the broker or the topic is away: nothing is charged, the relay slows down
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Literal, NamedTuple, Protocol, runtime_checkable

from outbox_publisher.event import Event


class Kind(StrEnum):
    DELIVERED = "delivered"
    RETRY = "retry"
    REJECT = "reject"
    UNAVAILABLE = "unavailable"


class Position(NamedTuple):
    """Where the broker put it."""

    partition: int
    offset: int


class SendResult(NamedTuple):
    """What became of one event; made by the class methods, which name what may be said of it."""

    kind: Kind
    reason: str = ""
    position: Position | None = None
    charged: bool = False
    scope: Literal["topic", "sender"] = "topic"
    """For `unavailable`: what is away."""
    maybe_sent: bool = False
    """True where nobody knows whether the broker has it: a timeout, a lost reply."""
    after: float | None = None
    """For an uncharged retry: seconds to wait before the next send."""

    @classmethod
    def delivered(cls, position: Position | None = None) -> "SendResult":
        return cls(Kind.DELIVERED, "", position)

    @classmethod
    def delivered_at(cls, partition: int, offset: int) -> "SendResult":
        """The same, for clients that tell of tens of thousands a second: it takes half as long."""
        return tuple.__new__(
            cls, (Kind.DELIVERED, "", tuple.__new__(Position, (partition, offset)), False, "topic", False, None)
        )

    @classmethod
    def retry(
        cls, reason: str, *, charged: bool = True, maybe_sent: bool = False, after: float | None = None
    ) -> "SendResult":
        return cls(kind=Kind.RETRY, reason=reason, charged=charged, maybe_sent=maybe_sent, after=after)

    @classmethod
    def reject(cls, reason: str) -> "SendResult":
        return cls(kind=Kind.REJECT, reason=reason)

    @classmethod
    def unavailable(
        cls, reason: str, *, scope: Literal["topic", "sender"] = "sender", maybe_sent: bool = False
    ) -> "SendResult":
        return cls(kind=Kind.UNAVAILABLE, reason=reason, scope=scope, maybe_sent=maybe_sent)


class Flight(Protocol):
    """A batch that is under way."""

    def done(self) -> bool:
        """Whether every event has its result; never waits."""

    def results(self) -> Sequence[SendResult]:
        """One result per event, in the batch's order. Waits, but never much beyond the deadline of the send."""


class FinishedFlight:
    """A batch whose results were known at once."""

    def __init__(self, results: Sequence[SendResult]) -> None:
        self._results = results

    def done(self) -> bool:
        return True

    def results(self) -> Sequence[SendResult]:
        return self._results


class Sender(Protocol):
    """A way out. One sender serves one relay process; several batches may be in flight at once.

    Beside these two methods a sender may be `Probing`, and may say `needs_topic = False` (events without a topic are fine) or
    `unhurried = True` (a batch is bounded by emergency-timeout, not by publish-timeout).
    """

    def send(self, events: Sequence[Event], deadline: float) -> Flight:
        """Hand the whole batch to the client and return; `deadline` is a time of the relay's clock (`monotonic()`)."""

    def close(self) -> None:
        """Give up connections; events without a result are the relay's to send again."""


@runtime_checkable
class Probing(Protocol):
    """A sender that can ask its broker whether it is back, without sending anything."""

    def probe(self, topic: str | None, seconds: float) -> str | None:
        """None where the broker (and the topic, if one is named) looks fine, else what is wrong; waits `seconds` at most."""


@runtime_checkable
class Waiting(Protocol):
    """A flight that can be waited for without being asked again and again."""

    def wait(self, seconds: float) -> None:
        """Return when something has come in, or after so long at most."""


@runtime_checkable
class Stoppable(Protocol):
    """A flight whose events that have not been begun can be given back."""

    def stop(self) -> None:
        """Begin nothing more: what has not been begun comes back unsent, to be tried again at once and uncharged."""
