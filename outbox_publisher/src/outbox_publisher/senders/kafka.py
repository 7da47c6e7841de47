"""Kafka through confluent-kafka: the producer's life and settings. What a batch goes through is in `kafka_flight`."""

import logging
import os
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from outbox_publisher.event import Event
from outbox_publisher.senders.base import FinishedFlight, Flight, SendResult
from outbox_publisher.senders.grace import Grace
from outbox_publisher.senders.kafka_errors import Verdict
from outbox_publisher.settings import SenderSettings
from outbox_shared.clock import Clock, SystemClock
from outbox_shared.errors import ConfigurationError, MissingDependency

try:
    from confluent_kafka import KafkaException, Producer
except ModuleNotFoundError:
    raise MissingDependency("the Kafka sender", "outbox-publisher[kafka]") from None

from outbox_publisher.senders.kafka_flight import KafkaFlight, Produced
from outbox_publisher.senders.kafka_topics import Questions

log = logging.getLogger(__name__)
client_log = logging.getLogger(f"{__name__}.client")
"""What librdkafka itself has to say, instead of its lines on stderr."""

_INHERITED: list[Producer] = []
"""A forked child keeps its parent's producer: to destroy it would wait for threads that the child does not have."""


class KafkaSender:
    """One idempotent producer per process, made anew after a fork or a fatal error."""

    def __init__(self, settings: SenderSettings, clock: Clock | None = None) -> None:
        if not settings.kafka.bootstrap_servers:
            raise ConfigurationError("no Kafka is configured: set outbox.publisher.sender.kafka.bootstrap-servers")
        self.clock = clock or SystemClock()
        self._config = producer_config(settings)
        self.grace = Grace(settings.unknown_topic_grace.total_seconds(), self.clock)
        self._acked: dict[tuple[str, int], Produced] = {}
        self._flights: set[weakref.ref[KafkaFlight]] = set()
        self._warm = False
        self._loner: Producer | None = None
        self._loner_pid = 0
        try:  # now: a mistake in the settings must not be charged to events later
            self._producer: Producer | None = Producer(self._config, logger=client_log)
            self._questions = Questions(self._producer, self.clock)
        except KafkaException as error:
            raise ConfigurationError(
                f"librdkafka refuses outbox.publisher.sender.kafka.properties: {error.args[0].str()}"
            ) from None
        self._pid = os.getpid()

    def send(self, events: Sequence[Event], deadline: float) -> Flight:
        try:
            producer = self._current()
        except KafkaException as error:  # a certificate that went away, say
            return FinishedFlight([_no_producer(error)] * len(events))
        if not self._warm:
            self._warm = True
            if trouble := self._questions.look(None, 1.0):  # the first ack then comes ten times sooner
                log.warning("%s", trouble.reason)
        flight = KafkaFlight(self, producer, self._questions, events, deadline)
        self._flights.add(weakref.ref(flight, self._flights.discard))
        return flight

    def fly_alone(self, events: Sequence[Event], deadline: float) -> Flight:
        """Each event in a wire batch of its own, through a producer that is made when it is first needed."""
        try:
            if self._loner is None or self._loner_pid != os.getpid():
                if self._loner is not None:
                    _INHERITED.append(self._loner)
                self._loner = Producer({**self._config, "batch.num.messages": 1}, logger=client_log)
                self._loner_pid = os.getpid()
        except KafkaException as error:
            return FinishedFlight([_no_producer(error)] * len(events))
        return KafkaFlight(self, self._loner, Questions(self._loner, self.clock), events, deadline, alone=True)

    def probe(self, topic: str | None, seconds: float) -> str | None:
        """A topic that is missing or has an impossible name is no trouble here: its rows are to be sent, and judged."""
        try:
            self._current()
        except KafkaException as error:
            return f"no Kafka producer: {error.args[0].str()}"
        trouble = self._questions.look(topic, seconds)
        self._warm = self._warm or trouble is None
        if trouble is None or trouble.verdict in {Verdict.UNKNOWN_TOPIC, Verdict.REJECT}:
            return None
        return trouble.reason

    def close(self) -> None:
        if self._producer is not None and self._pid == os.getpid():
            self._producer.purge()
        self._producer, self._loner = None, None

    def rebuild(self, broken: Producer) -> None:
        """The next send gets a new producer, unless another flight has asked for one already."""
        if self._producer is broken:
            log.warning("the Kafka producer has failed and is made anew")
            self._producer = None
        if self._loner is broken:
            self._loner = None

    def unknown_topic(self, topic: str, reason: str) -> SendResult:
        return self.grace.refused(topic, f"topic {topic!r}: {reason}")

    def note_acked(self, acked: Mapping[tuple[str, int], Produced]) -> None:
        """Kept beyond the flight: what it overtook may still be waiting in another."""
        for place, produced in acked.items():
            self._acked[place] = max(produced, self._acked.get(place, produced))

    def latest_acked(self) -> Mapping[tuple[str, int], Produced]:
        """Of each partition what was produced last of all that the broker has acknowledged, flights under way included."""
        for flight in [reference() for reference in list(self._flights)]:
            if flight is not None:
                self.note_acked(flight.acked())
        return self._acked

    def _current(self) -> Producer:
        """A producer inherited through fork would deliver nothing, without a word."""
        if self._producer is not None and self._pid != os.getpid():
            _INHERITED.append(self._producer)
        if self._producer is None or self._pid != os.getpid():
            self._producer, self._pid, self._warm = Producer(self._config, logger=client_log), os.getpid(), False
            self._questions = Questions(self._producer, self.clock)
        return self._producer


def _no_producer(error: KafkaException) -> SendResult:
    return SendResult.unavailable(f"no Kafka producer: {error.args[0].str()}")


def producer_config(settings: SenderSettings) -> dict[str, Any]:
    """librdkafka's settings: ours where a default would lose or reorder events, then whatever the user's properties say."""
    timeout_ms = int(settings.publish_timeout.total_seconds() * 1000)
    return {
        "bootstrap.servers": settings.kafka.bootstrap_servers,
        "client.id": "outbox-publisher",
        "acks": "all",
        "enable.idempotence": True,
        "partitioner": "murmur2_random",  # Java's: keys stay where they are when another client takes over
        "linger.ms": 2,  # while we hand over a batch, and no longer: whoever waits for a flight sends off what lingers
        "message.timeout.ms": timeout_ms,
        # a half-dead connection is noticed within one send; the bounds are librdkafka's
        "socket.timeout.ms": min(max(10, int(timeout_ms * 0.4)), 300_000),
        "topic.metadata.propagation.max.ms": 1000,  # an unknown topic is named as such, not as a timeout
        "reconnect.backoff.max.ms": 1000,
        "queue.buffering.max.messages": 500_000,
        "log_level": 2,  # an outage is told by our own words once a turn, not by dozens of lines for each attempt to connect
        "error_cb": _log_client_error,
        **settings.kafka.properties,
    }


def _log_client_error(error: Any) -> None:
    """For the log only: it is silent for a frozen broker, a missing leader and an unknown topic, and noisy in an outage."""
    log.debug("kafka client: %s", error)
