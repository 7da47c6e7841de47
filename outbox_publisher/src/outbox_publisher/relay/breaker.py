"""Breakers: what is away is left alone, and tried again ever more rarely, up to 10 s. Pure: the caller brings time and chance.

closed   everything flows
open     nothing of it is claimed until its pause is over; then the broker is asked, which costs no event anything
trying   the broker answers again: one row goes first

There is one for the sender as a whole and one for each topic that was seen away.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from outbox_publisher.event import Event
from outbox_publisher.relay.backoff import pause_after
from outbox_publisher.relay.settlement import clean_error
from outbox_publisher.senders.base import Kind, SendResult


class State(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    TRYING = "trying"


@dataclass(slots=True)
class Breaker:
    base: float
    """Seconds of the first pause, before it is doubled."""
    state: State = State.CLOSED
    failures: int = 0
    until: float = 0.0
    reason: str = ""
    event_type: str = ""
    """For a topic: of which type the row was that met it; one of them will try it again."""

    def fail(self, reason: str, now: float, chance: float) -> None:
        self.failures += 1
        self.state, self.reason = State.OPEN, clean_error(reason)
        self.until = now + pause_after(self.failures, self.base, chance)

    def asks(self, now: float) -> bool:
        """Whether it is time to ask the broker."""
        return self.state is State.OPEN and now >= self.until

    def answered(self) -> None:
        """The broker answers: one row may try."""
        self.state = State.TRYING

    def close(self) -> None:
        self.state, self.failures, self.reason = State.CLOSED, 0, ""


@dataclass(slots=True)
class Breakers:
    base: float
    sender: Breaker = field(init=False)
    topics: dict[str, Breaker] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.sender = Breaker(self.base)

    def blocked(self) -> frozenset[str]:
        """Topics of which nothing is claimed by an ordinary claim."""
        return frozenset(self.topics)

    def close_topic(self, topic: str) -> None:
        self.topics.pop(topic, None)

    def note(self, outcomes: Iterable[tuple[Event, SendResult]], now: float, chance: float) -> None:
        """What a batch's results say: a broker or topic is away where something of it was, and nothing of it went through.

        An answer of any other kind closes. A rejection does not: many are the client's own, and tell nothing about the broker.
        """
        away: SendResult | None = None
        away_topics: dict[str, tuple[str, SendResult]] = {}
        through: set[str] = set()
        answered = False
        for event, result in outcomes:
            topic = event.topic or ""
            if result.kind is Kind.UNAVAILABLE and result.scope == "sender":
                away = result
            elif result.kind is Kind.UNAVAILABLE:
                away_topics[topic] = event.event_type, result
            elif result.kind is Kind.DELIVERED or (result.kind is Kind.RETRY and result.after != 0):
                answered = True
                through.add(topic)
        if answered:
            self.sender.close()
        elif away is not None:
            self.sender.fail(away.reason, now, chance)
        for topic in through:
            self.close_topic(topic)
        for topic, (event_type, result) in away_topics.items():
            if topic not in through:
                breaker = self.topics.setdefault(topic, Breaker(self.base))
                breaker.event_type = event_type
                breaker.fail(result.reason, now, chance)
        if away_topics and away is None:  # the broker itself has answered
            self.sender.close()
