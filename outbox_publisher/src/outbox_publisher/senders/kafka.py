"""Kafka through confluent-kafka: the whole batch is produced at once, and every row has its own delivery report.

The callbacks store numbers and nothing more: a fatal error raised inside one would lose its report. What a report means is decided
afterwards, outside of them (`kafka_errors`). Nothing is decided by the client's error callback: it is silent for a frozen broker, a
missing leader and an unknown topic, and noisy in an outage.
"""

import functools
import logging
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from outbox_publisher.event import Event
from outbox_publisher.senders.base import Position, SendResult
from outbox_publisher.senders.kafka_errors import Verdict, verdict_of
from outbox_publisher.settings import SenderSettings
from outbox_shared.errors import ConfigurationError, MissingDependency
from outbox_shared.wire import kafka_headers

try:
    from confluent_kafka import KafkaError, KafkaException, Producer
except ImportError:
    raise MissingDependency("the Kafka sender", "outbox-publisher[kafka]") from None

log = logging.getLogger(__name__)

GRACE_STEP = 1.0
"""Seconds between two looks at a topic that is not there yet."""


class KafkaSender:
    """One idempotent producer per process, made at the first send and again after a fork or a fatal error."""

    def __init__(self, settings: SenderSettings, clock: Callable[[], float] = time.monotonic) -> None:
        if not settings.kafka.bootstrap_servers:
            raise ConfigurationError("no Kafka is configured: set outbox.publisher.sender.kafka.bootstrap-servers")
        self.config = producer_config(settings)
        self._grace = settings.unknown_topic_grace.total_seconds()
        self._clock = clock
        self._first_refusal: dict[str, float] = {}
        self._producer: Producer | None = None
        self._pid = 0

    def send(self, events: Sequence[Event], deadline: float) -> "KafkaFlight":
        return KafkaFlight(self, self.producer(), events, deadline)

    def close(self) -> None:
        if self._producer is not None and self._pid == os.getpid():
            self._producer.purge()
            self._producer.poll(0)
        self._producer = None

    def producer(self) -> Producer:
        """A producer inherited through fork would deliver nothing, without a word."""
        if self._producer is None or self._pid != os.getpid():
            self._producer, self._pid = Producer(self.config), os.getpid()
            try:
                self._producer.list_topics(timeout=1)  # the first ack then comes ten times sooner
            except KafkaException as error:
                log.warning("Kafka does not answer yet: %s", error)
        return self._producer

    def rebuild(self) -> None:
        """The next send gets a new producer; the old one is dropped with whatever it still holds."""
        self._producer = None

    def unknown_topic(self, topic: str, reason: str) -> SendResult:
        """Uncharged for the grace that begins with this process's first refusal; then no retry will help."""
        since = self._first_refusal.setdefault(topic, self._clock())
        if self._clock() - since < self._grace:
            return SendResult.retry(reason, charged=False, after=GRACE_STEP)
        return SendResult.reject(f"{reason} (topic {topic!r} stayed missing for {self._grace:.0f} s)")

    def topic_answered(self, topic: str) -> None:
        self._first_refusal.pop(topic, None)


def producer_config(settings: SenderSettings) -> dict[str, Any]:
    """librdkafka's settings: ours where a default would lose or reorder events, then whatever the user's properties say."""
    timeout_ms = int(settings.publish_timeout.total_seconds() * 1000)
    return {
        "bootstrap.servers": settings.kafka.bootstrap_servers,
        "client.id": "outbox-publisher",
        "acks": "all",
        "enable.idempotence": True,
        "partitioner": "murmur2_random",  # Java's: keys stay where they are when another client takes over
        "linger.ms": 0,  # we hand over whole batches; waiting for more costs a factor of three
        "message.timeout.ms": timeout_ms,
        "socket.timeout.ms": max(10, int(timeout_ms * 0.4)),  # a half-dead connection is noticed within one send
        "topic.metadata.propagation.max.ms": 1000,  # an unknown topic is named as such, not as a timeout
        "reconnect.backoff.max.ms": 1000,
        "queue.buffering.max.messages": 500_000,
        "log_level": 3,
        "error_cb": _log_client_error,
        **settings.kafka.properties,
    }


def _log_client_error(error: Any) -> None:
    log.debug("kafka client: %s", error)


class KafkaFlight:
    """One batch on its way: produced in full, then polled until every report is in or the deadline has passed."""

    def __init__(self, sender: KafkaSender, producer: Producer, events: Sequence[Event], deadline: float) -> None:
        self._sender, self._producer, self._events, self._deadline = sender, producer, events, deadline
        self._results: list[SendResult | None] = [None] * len(events)
        self._codes: list[tuple[int, str] | None] = [None] * len(events)
        self._open = 0
        self._broken = False
        for index in range(len(events)):
            self._produce(index)
        producer.poll(0)

    def done(self) -> bool:
        self._poll(0)
        return self._open == 0

    def results(self) -> Sequence[SendResult]:
        self._wait()
        if self._open:
            self._give_up()
        alone = [index for index, told in enumerate(self._codes) if told and verdict_of(told[0]) is Verdict.ALONE]
        for index in alone:
            self._send_alone(index)
        probes: dict[str, SendResult | None] = {}
        return [self._result(index, probes) for index in range(len(self._events))]

    def _produce(self, index: int) -> None:
        event = self._events[index]
        if event.topic is None:
            self._results[index] = SendResult.reject("the event was stored without a topic")
            return
        report = functools.partial(self._report, index)
        while True:
            try:
                self._producer.produce(
                    event.topic,
                    event.payload,
                    event.key,
                    headers=kafka_headers(event),
                    timestamp=int((event.occurred_at or event.created_at).timestamp() * 1000),
                    on_delivery=report,
                )
                self._open += 1
            except BufferError:
                if time.monotonic() > self._deadline:
                    self._results[index] = SendResult.unavailable("the producer's queue stayed full")
                    return
                self._producer.poll(0.05)
                continue
            except KafkaException as error:
                self._refuse(index, error.args[0])
            except (TypeError, ValueError) as error:
                self._results[index] = SendResult.reject(f"the Kafka client refuses it: {error}")
            return

    def _refuse(self, index: int, error: KafkaError) -> None:
        """Refused before it was sent, and so for this row alone: no neighbour had a part in it."""
        if verdict_of(error.code()) in {Verdict.ALONE, Verdict.REJECT} or error.code() == KafkaError._INVALID_ARG:  # noqa: SLF001
            self._results[index] = SendResult.reject(error.str())
        else:
            self._codes[index] = (error.code(), error.str())

    def _report(self, index: int, error: KafkaError | None, message: Any) -> None:
        self._open -= 1
        if error is None:
            self._results[index] = SendResult.delivered(Position(message.partition(), message.offset()))
        else:
            self._codes[index] = (error.code(), error.str())

    def _poll(self, seconds: float) -> None:
        try:
            self._producer.poll(seconds)
        except (KafkaException, SystemError) as error:
            log.warning("the Kafka producer failed and is made anew: %s", error)
            self._sender.rebuild()
            self._broken = True  # its open reports will never come

    def _wait(self) -> None:
        while self._open and not self._broken and (left := self._deadline - time.monotonic()) > 0:
            self._poll(min(left, 0.1))

    def _give_up(self) -> None:
        """Our own deadline: purge makes every open report come at once, and the producer goes on."""
        self._producer.purge()
        self._poll(0.1)

    def _send_alone(self, index: int) -> None:
        self._codes[index] = None
        self._produce(index)
        self._wait()
        if self._open:
            self._give_up()
        told = self._codes[index]
        if told and verdict_of(told[0]) is Verdict.ALONE:
            self._results[index] = SendResult.reject(told[1])

    def _result(self, index: int, probes: dict[str, SendResult | None]) -> SendResult:
        result, told, topic = self._results[index], self._codes[index], self._events[index].topic or ""
        if result is not None:
            if result.position is not None:
                self._sender.topic_answered(topic)
            return result
        if told is None:
            return SendResult.unavailable("no delivery report came in time", maybe_sent=True)
        code, reason = told
        match verdict_of(code):
            case Verdict.REJECT:
                return SendResult.reject(reason)
            case Verdict.UNKNOWN_TOPIC:
                return self._sender.unknown_topic(topic, reason)
            case Verdict.FORBIDDEN:
                return SendResult.unavailable(reason, scope="topic")
            case Verdict.FATAL:
                self._sender.rebuild()
                return SendResult.unavailable(reason, maybe_sent=True)
            case Verdict.UNAVAILABLE:
                return SendResult.unavailable(reason, scope="topic", maybe_sent=True)
            case Verdict.PURGED:
                return SendResult.unavailable("not sent within the batch's time")
            case Verdict.PURGED_IN_FLIGHT:
                return SendResult.unavailable("no answer within the batch's time", maybe_sent=True)
            case Verdict.TIMED_OUT:
                if topic not in probes:
                    probes[topic] = self._probe(topic)
                return probes[topic] or SendResult.retry(reason, maybe_sent=True)
            case _:
                return SendResult.retry(reason, maybe_sent=True)

    def _probe(self, topic: str) -> SendResult | None:
        """Why did it time out? The broker's own word, asked once per topic; None where it finds nothing wrong."""
        try:
            found = self._producer.list_topics(topic, timeout=1).topics[topic]
        except KafkaException as error:
            return SendResult.unavailable(f"Kafka does not answer: {error.args[0].str()}", maybe_sent=True)
        if found.error is not None:
            match verdict_of(found.error.code()):
                case Verdict.UNKNOWN_TOPIC:
                    return self._sender.unknown_topic(topic, found.error.str())
                case Verdict.REJECT:
                    return SendResult.reject(found.error.str())
                case _:
                    return SendResult.unavailable(found.error.str(), scope="topic", maybe_sent=True)
        if any(partition.leader < 0 for partition in found.partitions.values()):
            return SendResult.unavailable(
                f"topic {topic!r} has a partition without leader", scope="topic", maybe_sent=True
            )
        return None
