"""A sender that keeps what it was given: for tests of yours and ours. It passes the same contract as the real ones."""

import threading
from collections.abc import Callable, Sequence

from outbox_publisher.event import Event
from outbox_publisher.senders.base import FinishedFlight, Kind, Position, SendResult


class MemorySender:
    """Delivers into `sent`. To play a broker in trouble, `answer` may decide otherwise for an event, and `trouble` is what a
    probe finds: None is a broker that looks fine.

    >>> sender = MemorySender(answer=lambda event: SendResult.reject("no") if event.key == "bad" else None)
    >>> sender.trouble = "connection refused"
    """

    def __init__(self, answer: Callable[[Event], SendResult | None] | None = None) -> None:
        self.sent: list[Event] = []
        self.answer = answer
        self.trouble: str | None = None
        self._lock = threading.Lock()

    def send(self, events: Sequence[Event], deadline: float) -> FinishedFlight:
        return FinishedFlight([self._send_one(event) for event in events])

    def probe(self, topic: str | None, seconds: float) -> str | None:
        return self.trouble

    def close(self) -> None:
        """Nothing to give up; what was sent stays readable."""

    def _send_one(self, event: Event) -> SendResult:
        result = self.answer(event) if self.answer else None
        if result is not None and result.kind is not Kind.DELIVERED:
            return result
        with self._lock:
            self.sent.append(event)
            return result or SendResult.delivered(Position(0, len(self.sent) - 1))
