"""One batch on its way to Kafka: produced in full, then polled until every report is in or the deadline has passed.

The callbacks keep what they are given and nothing more: a fatal error raised in the same call would take their report with it. What a
report means is decided afterwards, by `kafka_errors` and, for a timeout, by asking the broker.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException, Producer

from outbox_publisher.event import Event
from outbox_publisher.senders.base import SendResult
from outbox_publisher.senders.kafka_errors import Verdict, verdict_of
from outbox_publisher.senders.kafka_topics import Questions
from outbox_shared.wire import header_pairs

if TYPE_CHECKING:
    from outbox_publisher.senders.kafka import KafkaSender

log = logging.getLogger(__name__)

_MILLISECOND = timedelta(milliseconds=1)

PROBE_SECONDS = 1.0
"""What all questions to the broker may take together, beyond the deadline."""
HURRY_SECONDS = 0.001
PURGE_SECONDS = 0.5
"""A purge's reports come within milliseconds, but another thread's poll may be the one that gets them."""

Report = tuple[KafkaError | None, int, int]
"""Error, partition and offset."""
Produced = tuple[float, int]
"""When a message was handed to the client: the time of its flight, and its place therein."""


class KafkaFlight:
    def __init__(
        self,
        sender: "KafkaSender",
        producer: Producer,
        questions: Questions,
        events: Sequence[Event],
        deadline: float,
        *,
        alone: bool = False,
    ) -> None:
        """`alone`: the producer makes a wire batch of each message, so that a verdict on content is its own."""
        self._alone = alone
        self._sender, self._producer, self._questions = sender, producer, questions
        self._events, self._deadline = events, deadline
        self._clock = sender.clock
        self._began = self._clock.monotonic()
        self._late = False  # from here on each message has a time of its own
        self._times: dict[int, float] = {}
        self._reports: list[Report | None] = [None] * len(events)
        self._verdicts: dict[int, SendResult] = {}  # those that need no report
        self._produced = 0
        self._reported: list[int] = []  # appended to by whichever thread polls: a counter would lose some
        self._broken = self._hurried = False
        self._latest: Mapping[tuple[str, int], Produced] | None = None
        self._results: list[SendResult] | None = None
        self._produce_all()
        self._poll(0)

    def done(self) -> bool:
        self._poll(0)
        return self._broken or not self._open()

    def results(self) -> Sequence[SendResult]:
        if self._results is None:
            self._wait()
            refused = [index for index in self._failed() if self._verdict(index) is Verdict.ALONE]
            if refused and not self._alone:
                self._send_alone(refused)
            acked = self.acked()
            self._sender.note_acked(acked)
            for topic in {topic for topic, _ in acked}:
                self._sender.grace.answered(topic)
            delivered_at = SendResult.delivered_at
            self._results = [
                delivered_at(report[1], report[2]) if report is not None and report[0] is None else self._result(index)
                for index, report in enumerate(self._reports)
            ]
        return self._results

    def wait(self, seconds: float) -> None:
        if not self._broken and self._open():
            self._hurry()
            self._poll(seconds if self._open() else 0)

    def acked(self) -> dict[tuple[str, int], Produced]:
        """Of each partition the last event that the broker has acknowledged so far."""
        topics = [event.topic for event in self._events]
        last = {
            (topics[index], report[1]): index
            for index, report in enumerate(self._reports)
            if report is not None and report[0] is None
        }
        acked = {(topic or "", partition): (self._began, index) for (topic, partition), index in last.items()}
        for index, time in list(self._times.items()):  # another flight's thread may be asking
            report = self._reports[index]
            if report is not None and report[0] is None:
                place = self._events[index].topic or "", report[1]
                acked[place] = max(acked.get(place, (time, index)), (time, index))
        return acked

    # On the way out.

    def _produce_all(self) -> None:
        produce, report = self._producer.produce, self._report
        for index, event in enumerate(self._events):
            topic, moment = event.topic, event.occurred_at or event.created_at
            if topic is None:
                self._verdicts[index] = SendResult.reject("the event was stored without a topic")
                continue
            timestamp = (moment - _epoch_in(moment.tzinfo)) // _MILLISECOND
            while True:
                try:
                    produce(
                        topic,
                        event.payload,
                        event.key,
                        headers=header_pairs(event),  # type: ignore[arg-type]  # text is as good as bytes here, and UTF-8 in the end
                        timestamp=timestamp,
                        on_delivery=partial(report, index),
                    )
                    self._produced += 1
                    if self._late:
                        self._times[index] = self._clock.monotonic()
                except BufferError:
                    self._late = True
                    if self._clock.monotonic() < self._deadline and not self._broken:
                        self._poll(0.05)
                        continue
                    self._verdicts[index] = SendResult.unavailable("the producer's queue stayed full")
                except KafkaException as error:
                    self._refused(index, error.args[0])
                except (TypeError, ValueError, AttributeError) as error:
                    self._verdicts[index] = SendResult.reject(f"the Kafka client refuses it: {error}")
                break

    def _refused(self, index: int, error: KafkaError) -> None:
        """Refused before it was sent, and so for this row alone: no neighbour had a part in it."""
        verdict = verdict_of(error.code(), fatal=error.fatal())
        if verdict in {Verdict.ALONE, Verdict.REJECT} or error.code() == KafkaError._INVALID_ARG:  # noqa: SLF001
            self._verdicts[index] = SendResult.reject(error.str())
        else:
            self._reports[index] = (error, -1, -1)

    def _report(self, index: int, error: KafkaError | None, message: Any) -> None:
        self._reports[index] = (error, message.partition(), message.offset())
        self._reported.append(index)

    def _open(self) -> bool:
        """Whether reports are still to come."""
        return len(self._reported) < self._produced

    def _poll(self, seconds: float) -> None:
        self._call(self._producer.poll, seconds)

    def _call(self, serve: Callable[[float], object], seconds: float) -> None:
        """Reports come in this, on this thread."""
        try:
            serve(seconds)
        except (KafkaException, SystemError) as error:
            log.warning("Kafka: %s", error)
            self._sender.rebuild(self._producer)
            self._broken = True  # its open reports will never come

    def _hurry(self) -> None:
        """Somebody waits: what still lingers in the client shall leave now. Its `flush` says so to its threads, and if they do not hear
        it within so short a time, nothing is lost but the rest of `linger.ms`.
        """
        if not self._hurried and self._open():
            self._hurried = True
            self._call(self._producer.flush, HURRY_SECONDS)

    def _wait(self) -> None:
        self._hurry()
        self._poll_until(self._deadline)
        if self._open() and not self._broken:
            # our own deadline: a purge makes every open report come at once, and the producer goes on
            self._producer.purge()
            self._poll_until(self._clock.monotonic() + PURGE_SECONDS)

    def _poll_until(self, end: float) -> None:
        while self._open() and not self._broken and (left := end - self._clock.monotonic()) > 0:
            self._poll(min(left, 0.1))

    def _send_alone(self, indexes: list[int]) -> None:
        """Once more through a producer that puts each message into a wire batch of its own: now the verdict is theirs."""
        if self._broken or self._clock.monotonic() >= self._deadline:
            for index in indexes:
                reason = f"{self._reason(index)}; no time was left to send it alone"
                self._verdicts[index] = SendResult.retry(reason, charged=False, after=0)
            return
        alone = self._sender.fly_alone([self._events[index] for index in indexes], self._deadline)
        self._verdicts |= dict(zip(indexes, alone.results(), strict=True))

    # What the reports mean.

    def _failed(self) -> list[int]:
        """Those with a report that tells of an error."""
        return [index for index, report in enumerate(self._reports) if report is not None and report[0] is not None]

    def _verdict(self, index: int) -> Verdict | None:
        report = self._reports[index]
        if report is None or report[0] is None or index in self._verdicts:
            return None
        return verdict_of(report[0].code(), fatal=report[0].fatal())

    def _reason(self, index: int) -> str:
        report = self._reports[index]
        return report[0].str() if report and report[0] else ""

    def _result(self, index: int) -> SendResult:
        if index in self._verdicts:
            return self._verdicts[index]
        report, topic = self._reports[index], self._events[index].topic or ""
        if report is None or report[0] is None:
            return SendResult.unavailable("no delivery report came in time", maybe_sent=True)
        error, partition = report[0], report[1]
        reason = error.str()
        match verdict_of(error.code(), fatal=error.fatal()):
            case Verdict.REJECT | Verdict.ALONE:
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
                # taken out of the queue; but one whose request went unanswered is back there, to be sent again
                return SendResult.unavailable("not sent within the batch's time", maybe_sent=True)
            case Verdict.PURGED_IN_FLIGHT:
                return SendResult.unavailable("no answer within the batch's time", maybe_sent=True)
            case Verdict.TIMED_OUT:
                return self._why_timed_out(index, topic, partition, reason)
            case _:
                return SendResult.retry(reason, maybe_sent=True)

    def _why_timed_out(self, index: int, topic: str, partition: int, reason: str) -> SendResult:
        """The event's own fault only where the broker is fine and took a later event of the same partition."""
        trouble = self._questions.ask(topic, self._deadline + PROBE_SECONDS - self._clock.monotonic())
        if trouble is not None:
            match trouble.verdict:
                case None:
                    return SendResult.unavailable(trouble.reason, maybe_sent=True)
                case Verdict.UNKNOWN_TOPIC:
                    return self._sender.grace.refused(topic, trouble.reason)
                case Verdict.REJECT:
                    return SendResult.reject(trouble.reason)
                case _:
                    return SendResult.unavailable(trouble.reason, scope="topic", maybe_sent=True)
        if self._latest is None:
            self._latest = self._sender.latest_acked()
        produced = self._times.get(index, self._began), index
        if self._latest.get((topic, partition), produced) > produced:
            return SendResult.retry(reason, maybe_sent=True)
        return SendResult.unavailable(f"{reason}, and nothing later was acknowledged", scope="topic", maybe_sent=True)


@cache
def _epoch_in(zone: tzinfo | None) -> datetime:
    """Within one zone a subtraction asks for no offsets, which took longer than all the rest of it. Only of UTC is that the truth."""
    return datetime(1970, 1, 1, tzinfo=zone if str(zone) in {"UTC", "Etc/UTC"} else UTC)
