"""One contract for every sender: a batch goes out, and every event comes back with one result, in order."""

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from outbox_publisher import Event
from outbox_publisher.demo.embedded_kafka import read_topic
from outbox_publisher.senders import Handlers, HandlerSender, Kind, MemorySender, Probing, Sender
from outbox_publisher.senders.kafka import KafkaSender
from outbox_publisher.settings import SenderSettings
from outbox_shared.errors import ConfigurationError
from outbox_shared.ids import new_event_id
from outbox_shared.wire import kafka_headers
from tests.consuming import eventually
from tests.services.topics import Topics

OCCURRED = datetime(2026, 1, 31, 12, 0, 0, 123_000, tzinfo=UTC)


@dataclass
class Backend:
    """A sender, a place to send to, and a way to see what arrived there."""

    sender: Sender
    topic: str
    arrived: Callable[[], list[dict[str, Any]]]
    positions: bool = True
    """Whether its broker tells where it put an event."""
    keys: bool = True
    """Whether its messages carry the key."""
    grain_ms: int = 1
    """What its messages' time is rounded down to."""

    def event(self, n: int = 0, **fields: Any) -> Event:
        event = Event(
            id=new_event_id(), event_type="order-created", topic=self.topic, key=f"k{n}", payload=b'{"n":%d}' % n,
            content_type="application/json", created_at=datetime.now(UTC), headers={"tenant": "acme"},
        )  # fmt: skip
        return event._replace(**fields)

    def send(self, *events: Event, seconds: float = 10.0) -> list[Any]:
        return list(self.sender.send(events, time.monotonic() + seconds).results())


def kafka_backend(url: str, topic: str, **settings: Any) -> Backend:
    sender = KafkaSender(SenderSettings(kafka={"bootstrap_servers": url}, publish_timeout="5s", **settings))

    def arrived() -> list[dict[str, Any]]:
        return [
            {"id": dict(m.headers())["outbox_event_id"].decode(), "key": m.key().decode() if m.key() is not None else None,
             "payload": m.value(), "headers": m.headers(), "timestamp": m.timestamp()[1]}
            for m in read_topic(url, topic)
        ]  # fmt: skip

    return Backend(sender, topic, arrived)


def as_arrived(event: Event) -> dict[str, Any]:
    """What a sender without a broker was given, as Kafka would have shown it."""
    return {
        "id": str(event.id), "key": event.key, "payload": event.payload, "headers": kafka_headers(event),
        "timestamp": int((event.occurred_at or event.created_at).timestamp() * 1000),
    }  # fmt: skip


@pytest.fixture(params=["memory", "handlers", "kafka-mock", "kafka", "rabbitmq"])
def backend(request: pytest.FixtureRequest):
    if request.param == "memory":
        memory = MemorySender()
        yield Backend(memory, "orders", lambda: [as_arrived(event) for event in memory.sent])
        return
    if request.param == "handlers":
        handled: list[Event] = []
        handlers = Handlers()
        handlers.add("order-created", handled.append)
        sender = HandlerSender(handlers, SenderSettings())
        yield Backend(sender, "orders", lambda: [as_arrived(event) for event in handled], positions=False)
        sender.close()
        return
    if request.param == "rabbitmq":
        from tests.contract.test_senders_rabbitmq import rabbit_backend  # noqa: PLC0415 - it builds on this module

        rabbit, places = rabbit_backend(request.getfixturevalue("rabbitmq_url"))
        yield rabbit
        rabbit.sender.close()
        places.remove()
        return
    if request.param == "kafka":
        made = kafka_backend(request.getfixturevalue("kafka_url"), request.getfixturevalue("kafka_topic")(partitions=3))
    else:
        made = kafka_backend(request.getfixturevalue("mock_kafka_url"), f"orders-{uuid4().hex[:8]}")
    yield made
    made.sender.close()


@pytest.fixture
def kafka(kafka_url, kafka_topic):
    made = kafka_backend(kafka_url, kafka_topic(), unknown_topic_grace="2s")
    yield made
    made.sender.close()


def test_every_event_arrives_with_key_payload_and_headers(backend):
    events = [backend.event(n) for n in range(200)]

    results = backend.send(*events)

    assert {result.kind for result in results} == {Kind.DELIVERED}
    arrived = {message["id"]: message for message in backend.arrived()}
    assert len(arrived) == 200
    for event in events:
        message = arrived[str(event.id)]
        assert (message["key"], message["payload"]) == (event.key if backend.keys else None, event.payload)
        assert message["headers"] == kafka_headers(event)


def test_results_come_in_the_order_of_the_batch_with_their_position(backend):
    events = [backend.event(n, key="one key") for n in range(50)]

    results = backend.send(*events)

    assert [message["id"] for message in backend.arrived()] == [str(event.id) for event in events]
    if not backend.positions:
        assert {result.position for result in results} == {None}
        return
    assert len({result.position.partition for result in results}) == 1
    offsets = [result.position.offset for result in results]
    assert offsets == list(range(offsets[0], offsets[0] + 50))


def test_the_messages_time_is_when_it_occurred_or_else_when_it_was_published(backend):
    created = datetime.now(UTC) - timedelta(minutes=5)

    backend.send(backend.event(created_at=created, occurred_at=OCCURRED), backend.event(created_at=created))

    assert sorted(message["timestamp"] for message in backend.arrived()) == [
        int(moment.timestamp() * 1000) // backend.grain_ms * backend.grain_ms for moment in (OCCURRED, created)
    ]


def test_an_event_without_key_and_with_an_empty_payload_arrives(backend):
    (result,) = backend.send(backend.event(key=None, payload=b""))

    assert result.kind is Kind.DELIVERED
    (message,) = backend.arrived()
    assert (message["key"], message["payload"]) == (None, b"")  # not null: that would be a tombstone


def test_several_batches_may_be_in_flight(backend):
    deadline = time.monotonic() + 10
    flights = [backend.sender.send([backend.event(n)], deadline) for n in range(5)]

    assert [flight.results()[0].kind for flight in flights] == [Kind.DELIVERED] * 5
    assert all(flight.done() for flight in flights)


def test_an_empty_batch_has_no_results(backend):
    assert backend.send() == []


def test_a_broker_that_is_there_looks_fine_to_a_probe(backend):
    if not isinstance(backend.sender, Probing):
        assert isinstance(backend.sender, HandlerSender)  # nobody to ask
        return

    assert backend.sender.probe(None, 5.0) is None
    assert backend.sender.probe(backend.topic, 5.0) is None


def test_a_memory_sender_may_play_a_broker_that_is_away():
    sender = MemorySender()
    sender.trouble = "connection refused"

    assert sender.probe("orders", 1.0) == "connection refused"


# What only a real Kafka can tell.


def test_a_topic_that_is_missing_keeps_nothing_from_being_sent(kafka):
    assert kafka.sender.probe(f"nowhere-{uuid4().hex}", 5.0) is None


def test_a_message_that_is_too_large_is_rejected_alone(kafka):
    events = [kafka.event(n) for n in range(20)]
    events[7] = events[7]._replace(payload=b"x" * 2_000_000)

    results = kafka.send(*events)

    assert results[7].kind is Kind.REJECT
    assert "large" in results[7].reason.lower()
    assert [result.kind for n, result in enumerate(results) if n != 7] == [Kind.DELIVERED] * 19
    assert len(kafka.arrived()) == 19


def test_a_refusal_by_the_broker_hits_its_own_message_only(kafka_url, kafka_topic):
    # the client lets 2 MB through, the broker takes 1 MB: its verdict covers the whole wire batch
    topic = kafka_topic()
    sender = KafkaSender(
        SenderSettings(
            kafka={"bootstrap_servers": kafka_url, "properties": {"message.max.bytes": 5_000_000, "linger.ms": 50}}
        )
    )
    backend = Backend(
        sender, topic, lambda: [{"id": dict(m.headers())["outbox_event_id"]} for m in read_topic(kafka_url, topic)]
    )
    events = [backend.event(n, key="same") for n in range(10)]
    events[3] = events[3]._replace(payload=b"x" * 2_000_000)

    results = backend.send(*events, seconds=20)

    assert [result.kind for result in results] == [Kind.REJECT if n == 3 else Kind.DELIVERED for n in range(10)]
    assert len(backend.arrived()) == 9
    sender.close()


@pytest.mark.slow
def test_a_missing_topic_gets_a_grace_and_is_then_rejected(kafka):
    missing = kafka.event(topic=f"nowhere-{uuid4().hex}")
    good = kafka.event()

    first, delivered = kafka.send(missing, good)
    assert (first.kind, first.charged, first.after) == (Kind.RETRY, False, 1.0)
    assert delivered.kind is Kind.DELIVERED

    until = time.monotonic() + 15
    while (again := kafka.send(missing)[0]).kind is Kind.RETRY and time.monotonic() < until:
        assert not again.charged
    assert again.kind is Kind.REJECT
    assert missing.topic in again.reason


@pytest.mark.parametrize(
    "properties",
    [
        {"no.such.setting": 1},
        {"compression.type": "shoelace"},
        {"ssl.ca.location": "/no/such/file", "security.protocol": "ssl"},
    ],
)
def test_a_mistake_in_the_clients_settings_is_told_before_any_event_is_sent(properties):
    with pytest.raises(ConfigurationError, match=r"librdkafka refuses outbox\.publisher\.sender\.kafka\.properties"):
        KafkaSender(SenderSettings(kafka={"bootstrap_servers": "127.0.0.1:1", "properties": properties}))


def test_a_very_long_publish_timeout_is_no_mistake():
    KafkaSender(SenderSettings(kafka={"bootstrap_servers": "127.0.0.1:1"}, publish_timeout="15m")).close()


@pytest.mark.slow
def test_many_topics_of_a_silent_broker_take_no_longer_than_one():
    sender = KafkaSender(SenderSettings(kafka={"bootstrap_servers": "127.0.0.1:1"}, publish_timeout="500ms"))
    backend = Backend(sender, "", list)
    began = time.monotonic()

    results = backend.send(*(backend.event(topic=f"topic-{n}") for n in range(30)), seconds=2)

    assert {result.kind for result in results} == {Kind.UNAVAILABLE}
    assert time.monotonic() - began < 10  # one question to the broker, not thirty
    sender.close()


def test_a_forked_child_sends_with_a_producer_of_its_own(any_kafka_url, request):
    topic = f"orders-{uuid4().hex[:8]}"
    if "real" in request.node.callspec.id:
        topic = Topics(any_kafka_url).create()
    script = f"""
import os, sys
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from tests.contract.test_senders import kafka_backend
backend = kafka_backend({any_kafka_url!r}, {topic!r})
parent = backend.send(backend.event(1))[0].kind
pid = os.fork()
if pid == 0:
    os._exit(0 if backend.send(backend.event(2), seconds=5)[0].kind == "delivered" else 1)
child = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
again = backend.send(backend.event(3))[0].kind
print(parent, child, again)
os._exit(0)
"""
    done = subprocess.run([sys.executable, "-u", "-c", script], capture_output=True, text=True, check=True, timeout=60)

    assert done.stdout.split() == ["delivered", "0", "delivered"]
    assert len(read_topic(any_kafka_url, topic)) == 3


def test_nobody_there_is_unavailable_and_charges_nothing(bench):
    nobody = KafkaSender(SenderSettings(kafka={"bootstrap_servers": "127.0.0.1:1"}, publish_timeout="500ms"))
    backend = Backend(nobody, "orders", list)

    (result,) = backend.send(backend.event(), seconds=3)

    assert (result.kind, result.scope, result.charged) == (Kind.UNAVAILABLE, "sender", False)
    assert "does not answer" in (nobody.probe("orders", 0.2) or "")
    assert "does not answer" in (nobody.probe(None, 0.2) or "")
    nobody.close()


@pytest.mark.slow
def test_the_deadline_bounds_a_send_to_a_broker_that_stands_still(own_server):
    broker = own_server("kafka")
    topic = Topics(broker.url).create()
    sender = KafkaSender(SenderSettings(kafka={"bootstrap_servers": broker.url}, publish_timeout="1s"))
    backend = Backend(sender, topic, list)
    eventually(
        lambda: delivers(backend)
    )  # a broker that has just started may take more than the second that a send has

    broker.pause()
    began = time.monotonic()
    results = backend.send(*(backend.event(n) for n in range(10)), seconds=2)
    took = time.monotonic() - began

    assert {result.kind for result in results} == {Kind.UNAVAILABLE}
    assert any(result.maybe_sent for result in results)
    assert took < 6
    assert sender.probe(topic, 0.5) is not None
    broker.resume()
    eventually(lambda: sender.probe(topic, 1.0) is None, within=30)
    eventually(lambda: delivers(backend), within=30)
    sender.close()


def delivers(backend: Backend) -> bool:
    return bool(backend.send(backend.event())[0].kind is Kind.DELIVERED)
