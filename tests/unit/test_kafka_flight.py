"""What a batch's reports mean together: decisions that no server shows on demand, with a client that a test plays by hand."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from outbox_publisher import Event
from outbox_publisher.senders import Flight, Kind, Probing, SendResult
from outbox_publisher.senders.kafka import KafkaSender
from outbox_publisher.senders.kafka_topics import Questions
from outbox_publisher.settings import SenderSettings
from outbox_shared.ids import new_event_id

TIMED_OUT, TOO_LARGE, UNKNOWN, FORBIDDEN = -192, 10, 3, 29
FINE = SimpleNamespace(error=None, partitions={0: SimpleNamespace(leader=1)})
LEADERLESS = SimpleNamespace(error=None, partitions={0: SimpleNamespace(leader=1), 1: SimpleNamespace(leader=-1)})


def refused(code: int) -> SimpleNamespace:
    return SimpleNamespace(error=KafkaError(code), partitions={})


class HandHeldClock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        self.now += 0.000_001  # it never says the same twice
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@dataclass
class Message:
    at: str
    told: Callable[[KafkaError | None, Any], None]

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return 7


class Client:
    """A Kafka producer and its broker. What is to be reported is said beforehand, by the event's key."""

    def __init__(self, clock: HandHeldClock) -> None:
        self.clock = clock
        self.open: dict[str, Message] = {}
        self.reports: list[tuple[str, KafkaError | None]] = []
        self.script: dict[str, list[KafkaError | None]] = {}
        self.topics: dict[str, SimpleNamespace] = {}
        self.questions: list[str | None] = []
        self.silent = False
        self.full: dict[str, Callable[[], object]] = {}  # keys that meet a full queue once, and what happens meanwhile

    def produce(self, topic: str, payload: bytes, key: str, *, on_delivery: Any, **_: Any) -> None:
        if key in self.full:
            self.full.pop(key)()
            raise BufferError
        self.open[key] = Message(topic, on_delivery)
        if self.script.get(key):
            self.report(key, self.script[key].pop(0))

    def report(self, key: str, error: KafkaError | int | None = None) -> None:
        self.reports.append((key, KafkaError(error) if isinstance(error, int) else error))

    def flush(self, seconds: float) -> None:
        self.poll(seconds)

    def poll(self, seconds: float) -> None:
        if not self.reports:
            self.clock.now += seconds
        while self.reports:
            key, error = self.reports.pop(0)
            message = self.open.pop(key)
            message.told(error, message)

    def purge(self) -> None:
        for key in self.open:
            self.report(key, -152)

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> SimpleNamespace:
        self.questions.append(topic)
        if self.silent:
            self.clock.now += timeout
            raise KafkaException(KafkaError(-195, "nobody there"))
        return SimpleNamespace(topics={topic: self.topics.get(topic or "", FINE)})


class Desk:
    def __init__(self) -> None:
        self.clock = HandHeldClock()
        self.client = Client(self.clock)
        self.sender = KafkaSender(SenderSettings(kafka={"bootstrap_servers": "127.0.0.1:1"}), self.clock)
        self.use(self.client)

    def use(self, client: Client) -> None:
        self.sender._producer, self.sender._questions = client, Questions(client, self.clock)
        self.sender._warm = True
        self.sender._loner, self.sender._loner_pid = client, os.getpid()

    def fly(self, *keys: str, topic: str = "orders") -> Flight:
        return self.sender.send([an_event(key, topic) for key in keys], self.clock.now + 5)

    def send(self, topic: str = "orders", **script: KafkaError | int | None) -> list[SendResult]:
        """Each event's report by its key."""
        for key, error in script.items():
            self.client.script[key] = [KafkaError(error) if isinstance(error, int) else error]
        return list(self.fly(*script, topic=topic).results())


def an_event(key: str, topic: str) -> Event:
    return Event(
        id=new_event_id(), event_type="order-created", topic=topic, key=key, payload=b"{}",
        content_type="application/json", created_at=datetime.now(UTC),
    )  # fmt: skip


@pytest.fixture
def desk() -> Desk:
    return Desk()


# Whose fault is a timeout?


def test_a_timeout_is_the_events_own_fault_only_if_a_later_event_of_its_partition_went_through(desk):
    results = desk.send(first=TIMED_OUT, second=None, third=TIMED_OUT)

    assert [(result.kind, result.charged, result.maybe_sent) for result in results] == [
        (Kind.RETRY, True, True),
        (Kind.DELIVERED, False, False),
        (Kind.UNAVAILABLE, False, True),
    ]
    assert results[2].scope == "topic"
    assert "nothing later was acknowledged" in results[2].reason


def test_an_event_is_overtaken_by_a_later_flight_that_nobody_has_asked_yet(desk):
    late, early = desk.fly("late"), desk.fly("early")
    desk.client.report("early")
    desk.client.report("late", TIMED_OUT)

    (result,) = late.results()

    assert (result.kind, result.charged) == (Kind.RETRY, True)
    assert early.results()[0].kind is Kind.DELIVERED


def test_an_event_is_overtaken_by_a_flight_that_is_long_over(desk):
    late = desk.fly("late")
    desk.send(early=None)
    desk.client.report("late", TIMED_OUT)

    assert late.results()[0].charged


def test_what_was_produced_before_overtakes_nothing_however_late_its_ack(desk):
    before, after = desk.fly("before"), desk.fly("after")
    desk.client.report("after", TIMED_OUT)
    desk.client.report("before")

    (result,) = after.results()

    assert (result.kind, result.charged) == (Kind.UNAVAILABLE, False)
    assert before.results()[0].kind is Kind.DELIVERED


def test_an_ack_of_another_topic_overtakes_nothing(desk):
    late = desk.fly("late")
    desk.send(topic="invoices", early=None)
    desk.client.report("late", TIMED_OUT)

    assert not late.results()[0].charged


def test_an_event_that_was_sent_again_alone_is_not_overtaken_by_those_that_went_before(desk):
    desk.client.script["large"] = [KafkaError(TOO_LARGE), KafkaError(TIMED_OUT)]
    desk.client.script["second"] = [None]

    large, second = desk.fly("large", "second").results()

    assert (large.kind, large.charged) == (Kind.UNAVAILABLE, False)
    assert second.kind is Kind.DELIVERED


def test_an_event_that_had_to_wait_for_the_queue_is_not_overtaken_by_what_went_meanwhile(desk):
    desk.client.full["waited"] = lambda: desk.send(meanwhile=None)
    desk.client.script["waited"] = [KafkaError(TIMED_OUT)]

    (result,) = desk.fly("waited").results()

    assert (result.kind, result.charged) == (Kind.UNAVAILABLE, False)


def test_a_topic_that_answered_has_its_whole_grace_again(desk):
    assert desk.send(a=UNKNOWN)[0].kind is Kind.RETRY
    desk.send(a=None)
    desk.clock.now += 11

    (result,) = desk.send(a=UNKNOWN)

    assert (result.kind, result.charged) == (Kind.RETRY, False)
    assert "'orders'" in result.reason


# What the broker is asked.


def test_one_question_for_each_topic_and_second_serves_every_flight(desk):
    for _ in range(3):
        desk.send(a=TIMED_OUT, b=TIMED_OUT)
    desk.send(topic="invoices", c=TIMED_OUT)
    assert desk.client.questions == ["orders", "invoices"]

    desk.clock.now += 1.0
    desk.send(a=TIMED_OUT)

    assert desk.client.questions == ["orders", "invoices", "orders"]


def test_silence_counts_for_every_topic_and_is_told_of_the_whole_sender(desk):
    desk.client.silent = True
    desk.client.script = {key: [KafkaError(TIMED_OUT)] for key in "abc"}
    flight = desk.sender.send([an_event(key, f"topic-{key}") for key in "abc"], desk.clock.now)  # no time is left after

    results = flight.results()

    assert {(result.kind, result.scope) for result in results} == {(Kind.UNAVAILABLE, "sender")}
    assert desk.client.questions == ["topic-a"]


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (refused(UNKNOWN), SendResult.retry("", charged=False, after=1.0)),
        (refused(17), SendResult.reject("")),
        (refused(FORBIDDEN), SendResult.unavailable("", scope="topic", maybe_sent=True)),
        (refused(5), SendResult.unavailable("", scope="topic", maybe_sent=True)),
        (LEADERLESS, SendResult.unavailable("", scope="topic", maybe_sent=True)),
    ],
    ids=["unknown", "impossible name", "forbidden", "no leader", "a partition without leader"],
)
def test_what_the_broker_says_of_the_topic_explains_the_timeout(desk, found, expected):
    desk.client.topics["orders"] = found

    timed_out, _ = desk.send(a=TIMED_OUT, b=None)

    assert "'orders'" in timed_out.reason
    assert timed_out._replace(reason="") == expected


# The producer's own end.


def test_an_error_that_calls_itself_fatal_costs_the_producer_and_no_event_an_attempt(desk):
    (result,) = desk.send(a=KafkaError(TOO_LARGE, "the end", fatal=True))

    assert (result.kind, result.scope, result.charged) == (Kind.UNAVAILABLE, "sender", False)
    assert desk.sender._producer is None


def test_a_deadline_gives_back_what_has_no_report_and_nobody_knows_whether_it_was_sent(desk):
    # what waits in the client's queue may be there for the second time, after a request without an answer
    (result,) = desk.fly("a").results()

    assert (result.kind, result.charged, result.maybe_sent) == (Kind.UNAVAILABLE, False, True)


# Is it back?


@pytest.mark.parametrize(
    ("topic", "found", "trouble"),
    [
        (None, FINE, None),
        ("orders", FINE, None),
        ("orders", refused(UNKNOWN), None),  # let its rows be sent: the grace decides
        ("orders", refused(17), None),
        ("orders", refused(FORBIDDEN), "authorization"),
        ("orders", LEADERLESS, "no leader for partition 1"),
    ],
)
def test_a_probe_says_what_keeps_events_from_being_sent(desk, topic, found, trouble):
    desk.client.topics["orders"] = found
    assert isinstance(desk.sender, Probing)

    said = desk.sender.probe(topic, 1.0)

    assert (said is None) if trouble is None else (said is not None and trouble in said.lower())


def test_a_probe_is_asked_anew_each_time_and_tells_of_silence(desk):
    desk.client.silent = True
    began = desk.clock.now

    assert "does not answer" in (desk.sender.probe("orders", 0.5) or "")
    assert desk.clock.now - began < 0.6
    desk.client.silent = False

    assert desk.sender.probe("orders", 0.5) is None
