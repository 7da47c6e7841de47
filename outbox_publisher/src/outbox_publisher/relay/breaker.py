"""Breakers: what is away is left alone, and tried again ever more rarely, up to 10 s. Pure: the caller brings time and chance.

closed   everything flows
open     nothing of it is claimed until its pause is over; then the broker is asked, which costs no event anything
trying   the broker answers again: one row goes first

There is one for the sender as a whole and one for each topic that was seen away.
"""

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
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
    opened: float = 0.0
    """When it was seen away last: what took off before that tells nothing new."""

    def fail(self, reason: str, now: float, chance: float) -> None:
        self.failures += 1
        self.state, self.reason = State.OPEN, clean_error(reason)
        self.opened = now
        self.until = now + pause_after(self.failures, self.base, chance)

    def knew_of(self, took_off: float) -> bool:
        """Whether a batch that took off then could only say what is known."""
        return self.state is State.OPEN and took_off < self.opened

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
    lock: threading.RLock = field(default_factory=threading.RLock, repr=False)
    """For the workers of a process, who share them."""
    _trying: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def __post_init__(self) -> None:
        self.sender = Breaker(self.base)

    @contextmanager
    def trying(self) -> Iterator[bool]:
        """Whether this worker may ask and try now; another one may just be doing so."""
        ours = self._trying.acquire(blocking=False)
        try:
            yield ours
        finally:
            if ours:
                self._trying.release()

    def blocked(self) -> frozenset[str]:
        """Topics of which nothing is claimed by an ordinary claim."""
        return frozenset(self.topics)

    def close_topic(self, topic: str) -> None:
        self.topics.pop(topic, None)

    def note(
        self, outcomes: Iterable[tuple[Event, SendResult]], now: float, chance: float, took_off: float | None = None
    ) -> None:
        """What a batch's results say: a broker or topic is away where something of it was, and nothing of it went through.

        An answer of any other kind closes. A rejection does not: many are the client's own, and tell nothing about the broker. Of several
        batches that were in the air when the broker went away, one opens the breaker, and the others do not make its pause any longer.
        """
        began = now if took_off is None else took_off
        away: SendResult | None = None
        away_topics: dict[str, tuple[str, SendResult]] = {}
        through: set[str] = set()
        for event, result in outcomes:
            topic = event.topic or ""
            if result.kind is Kind.DELIVERED or (result.kind is Kind.RETRY and result.after != 0):
                through.add(topic)
            elif result.kind is Kind.UNAVAILABLE and result.scope == "sender":
                away = result
            elif result.kind is Kind.UNAVAILABLE:
                away_topics[topic] = event.event_type, result
        if through:
            self.sender.close()
        elif away is not None and not self.sender.knew_of(began):
            self.sender.fail(away.reason, now, chance)
        for topic in through:
            self.close_topic(topic)
        for topic, (event_type, result) in away_topics.items():
            if topic not in through:
                breaker = self.topics.setdefault(topic, Breaker(self.base))
                if not breaker.knew_of(began):
                    breaker.event_type = event_type
                    breaker.fail(result.reason, now, chance)
        if away_topics and away is None:  # the broker itself has answered
            self.sender.close()
