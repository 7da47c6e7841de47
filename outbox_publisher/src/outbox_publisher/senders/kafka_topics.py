"""What Kafka itself says about a topic: asked after a timeout, which tells nothing alone, and before an outage is called over."""

import threading
from dataclasses import dataclass

from confluent_kafka import KafkaException, Producer

from outbox_publisher.senders.kafka_errors import Verdict, verdict_of
from outbox_shared.clock import Clock

ANSWER_LASTS = 1.0
"""Seconds for which an answer serves every flight: a thousand rows that timed out are one question, not a thousand."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """What is wrong. `verdict` is None where nobody answers at all, which is then true of every topic."""

    reason: str
    verdict: Verdict | None = None


@dataclass(frozen=True, slots=True)
class _Answer:
    at: float
    trouble: Trouble | None


class Questions:
    """Asks through one producer, one question at a time."""

    def __init__(self, producer: Producer, clock: Clock) -> None:
        self._producer, self._clock = producer, clock
        self._lock = threading.Lock()
        self._answers: dict[str | None, _Answer] = {}  # under None: nobody answers

    def ask(self, topic: str, seconds: float) -> Trouble | None:
        """None where nothing is wrong; an answer of the last second counts, and silence counts for every topic."""
        known = self._known(topic)
        if known is None:
            if seconds <= 0 or not self._lock.acquire(timeout=seconds):
                return Trouble("timed out, and no time was left to ask why", Verdict.UNAVAILABLE)
            try:
                known = self._known(topic) or self._asked(topic, min(seconds, ANSWER_LASTS))
            finally:
                self._lock.release()
        return known.trouble

    def _known(self, topic: str) -> "_Answer | None":
        now = self._clock.monotonic()
        for place in (None, topic):
            answer = self._answers.get(place)
            if answer is not None and now - answer.at < ANSWER_LASTS:
                return answer
        return None

    def _asked(self, topic: str, seconds: float) -> "_Answer":
        trouble = self.look(topic, seconds)
        silent = trouble is not None and trouble.verdict is None
        answer = self._answers[None if silent else topic] = _Answer(self._clock.monotonic(), trouble)
        return answer

    def look(self, topic: str | None, seconds: float) -> Trouble | None:
        """The same, asked anew."""
        try:
            if topic is None:
                self._producer.list_topics(timeout=seconds)
                return None
            found = self._producer.list_topics(topic, timeout=seconds).topics[topic]
        except (KafkaException, SystemError) as error:
            return Trouble(f"Kafka does not answer: {error}")
        if found.error is not None:
            return Trouble(f"topic {topic!r}: {found.error.str()}", verdict_of(found.error.code()))
        leaderless = [number for number, partition in found.partitions.items() if partition.leader < 0]
        if leaderless:
            return Trouble(f"topic {topic!r} has no leader for partition {leaderless[0]}", Verdict.UNAVAILABLE)
        return None
