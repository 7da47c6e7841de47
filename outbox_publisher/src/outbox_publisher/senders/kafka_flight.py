"""One batch on its way to Kafka: produced in full, then polled until every report is in or the deadline has passed.

The callbacks keep what they are given and nothing more: a fatal error raised in the same call would take their report with it. What a
report means is decided afterwards, by `kafka_errors` and, for a timeout, by asking the broker.
"""

import functools
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException, Producer

from outbox_publisher.event import Event
from outbox_publisher.senders.base import Position, SendResult
from outbox_publisher.senders.kafka_errors import Verdict, verdict_of
from outbox_shared.wire import kafka_headers

if TYPE_CHECKING:
    from outbox_publisher.senders.kafka import KafkaSender

log = logging.getLogger(__name__)

PROBE_SECONDS = 1.0
"""What all questions to the broker may take together, beyond the deadline."""


class KafkaFlight:
    def __init__(self, sender: "KafkaSender", producer: Producer, events: Sequence[Event], deadline: float) -> None:
        self._sender, self._producer, self._events, self._deadline = sender, producer, events, deadline
        self._clock = sender.clock
        self._reports: list[tuple[KafkaError | None, int, int] | None] = [None] * len(
            events
        )  # error, partition, offset
        self._verdicts: dict[int, SendResult] = {}  # those that need no report
        self._open = 0
        self._broken = False
        self._probes: dict[str, SendResult | None] = {}
        self._results: list[SendResult] | None = None
        for index in range(len(events)):
            self._produce(index)
        self._poll(0)

    def done(self) -> bool:
        self._poll(0)
        return self._open == 0

    def results(self) -> Sequence[SendResult]:
        if self._results is None:
            self._wait()
            for index in range(len(self._events)):
                if self._verdict(index) is Verdict.ALONE:
                    self._send_alone(index)
            acked = self._last_acked()
            self._results = [self._result(index, acked) for index in range(len(self._events))]
        return self._results

    # On the way out.

    def _produce(self, index: int) -> None:
        event = self._events[index]
        if event.topic is None:
            self._verdicts[index] = SendResult.reject("the event was stored without a topic")
            return
        while True:
            try:
                self._producer.produce(
                    event.topic,
                    event.payload,
                    event.key,
                    headers=kafka_headers(event),
                    timestamp=int((event.occurred_at or event.created_at).timestamp() * 1000),
                    on_delivery=functools.partial(self._report, index),
                )
                self._open += 1
            except BufferError:
                if self._clock.monotonic() < self._deadline and not self._broken:
                    self._poll(0.05)
                    continue
                self._verdicts[index] = SendResult.unavailable("the producer's queue stayed full")
            except KafkaException as error:
                self._refused(index, error.args[0])
            except (TypeError, ValueError, AttributeError) as error:
                self._verdicts[index] = SendResult.reject(f"the Kafka client refuses it: {error}")
            return

    def _refused(self, index: int, error: KafkaError) -> None:
        """Refused before it was sent, and so for this row alone: no neighbour had a part in it."""
        if verdict_of(error.code()) in {Verdict.ALONE, Verdict.REJECT} or error.code() == KafkaError._INVALID_ARG:  # noqa: SLF001
            self._verdicts[index] = SendResult.reject(error.str())
        else:
            self._reports[index] = (error, -1, -1)

    def _report(self, index: int, error: KafkaError | None, message: Any) -> None:
        self._open -= 1
        self._reports[index] = (error, message.partition(), message.offset())

    def _poll(self, seconds: float) -> None:
        try:
            self._producer.poll(seconds)
        except (KafkaException, SystemError) as error:
            log.warning("Kafka: %s", error)
            self._sender.rebuild(self._producer)
            self._broken = True  # its open reports will never come

    def _wait(self) -> None:
        while self._open and not self._broken and (left := self._deadline - self._clock.monotonic()) > 0:
            self._poll(min(left, 0.1))
        if self._open and not self._broken:
            # our own deadline: a purge makes every open report come at once, and the producer goes on
            self._producer.purge()
            self._poll(0.1)

    def _send_alone(self, index: int) -> None:
        report = self._reports[index]
        if self._broken or self._clock.monotonic() >= self._deadline:
            reason = report[0].str() if report and report[0] else ""
            self._verdicts[index] = SendResult.retry(
                f"{reason}; no time was left to send it alone", charged=False, after=0
            )
            return
        self._reports[index] = None
        self._produce(index)
        self._wait()
        alone = self._reports[index]
        if alone and alone[0] and self._verdict(index) is Verdict.ALONE:
            self._verdicts[index] = SendResult.reject(alone[0].str())

    # What the reports mean.

    def _verdict(self, index: int) -> Verdict | None:
        report = self._reports[index]
        return None if report is None or report[0] is None or index in self._verdicts else verdict_of(report[0].code())

    def _last_acked(self) -> dict[tuple[str | None, int], int]:
        """The last event of each partition that the broker has acknowledged."""
        acked = {}
        for index, report in enumerate(self._reports):
            if report is not None and report[0] is None:
                acked[self._events[index].topic, report[1]] = index
        return acked

    def _result(self, index: int, acked: dict[tuple[str | None, int], int]) -> SendResult:
        if index in self._verdicts:
            return self._verdicts[index]
        report, topic = self._reports[index], self._events[index].topic or ""
        if report is None:
            return SendResult.unavailable("no delivery report came in time", maybe_sent=True)
        error, partition, offset = report
        if error is None:
            self._sender.topic_answered(topic)
            return SendResult.delivered(Position(partition, offset))
        reason = error.str()
        match verdict_of(error.code()):
            case Verdict.REJECT:
                return SendResult.reject(reason)
            case Verdict.UNKNOWN_TOPIC:
                return self._sender.unknown_topic(topic, reason)
            case Verdict.FORBIDDEN:
                return SendResult.unavailable(reason, scope="topic")
            case Verdict.FATAL:
                self._sender.rebuild(self._producer)
                return SendResult.unavailable(reason, maybe_sent=True)
            case Verdict.UNAVAILABLE:
                return SendResult.unavailable(reason, scope="topic", maybe_sent=True)
            case Verdict.PURGED:
                return SendResult.unavailable("not sent within the batch's time")
            case Verdict.PURGED_IN_FLIGHT:
                return SendResult.unavailable("no answer within the batch's time", maybe_sent=True)
            case Verdict.TIMED_OUT:
                overtaken = acked.get((topic, partition), -1) > index
                return self._why_timed_out(topic, reason, overtaken=overtaken)
            case _:
                return SendResult.retry(reason, maybe_sent=True)

    def _why_timed_out(self, topic: str, reason: str, *, overtaken: bool) -> SendResult:
        """The event's own fault only where the broker is fine and took a later event of the same partition."""
        if "" in self._probes:  # nobody answers at all: ask no further
            return self._probes[""] or SendResult.unavailable(reason, maybe_sent=True)
        if topic not in self._probes:
            self._probes[topic] = self._probe(topic)
        found = self._probes[topic]
        if found is not None:
            return found
        if overtaken:
            return SendResult.retry(reason, maybe_sent=True)
        return SendResult.unavailable(f"{reason}, and nothing later was acknowledged", scope="topic", maybe_sent=True)

    def _probe(self, topic: str) -> SendResult | None:
        """The broker's own word on a topic; None where it finds nothing wrong."""
        left = self._deadline + PROBE_SECONDS - self._clock.monotonic()
        if left <= 0:
            return SendResult.unavailable("timed out, and no time was left to ask why", scope="topic", maybe_sent=True)
        try:
            found = self._producer.list_topics(topic, timeout=min(left, PROBE_SECONDS)).topics[topic]
        except (KafkaException, SystemError) as error:
            self._probes[""] = SendResult.unavailable(f"Kafka does not answer: {error}", maybe_sent=True)
            return self._probes[""]
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
