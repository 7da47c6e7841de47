"""What only a real RabbitMQ can tell of messages: what they carry, where they go, and why one is refused."""

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pika
import pika.exceptions
import pytest

from outbox_publisher.senders import Kind, SendResult
from outbox_publisher.senders.rabbitmq import RabbitSender, parameters_of
from outbox_publisher.settings import SenderSettings
from outbox_shared.clock import SystemClock
from outbox_shared.errors import ConfigurationError
from outbox_shared.wire import amqp_headers
from tests.contract.test_senders import Backend, delivers

OCCURRED = datetime(2026, 1, 31, 12, 0, 0, 123_000, tzinfo=UTC)


class Places:
    """Exchanges and queues of one test's own."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._made: list[tuple[str, str]] = []

    @contextlib.contextmanager
    def admin(self) -> Iterator[Any]:
        connection = pika.BlockingConnection(pika.URLParameters(self.url))
        try:
            yield connection.channel()
        finally:
            connection.close()

    def exchange(self, name: str = "", queue: bool = True, **options: Any) -> str:
        """A topic exchange, with a queue of the same name that takes everything."""
        name = name or f"orders-{uuid4().hex[:12]}"
        with self.admin() as channel:
            channel.exchange_declare(name, "topic", durable=True, **options)
        self._made.append(("exchange", name))
        if queue:
            self.queue(name)
        return name

    def queue(self, exchange: str, name: str = "", key: str = "#", **arguments: Any) -> str:
        name = name or exchange
        with self.admin() as channel:
            channel.queue_declare(name, durable=True, arguments=arguments)
            if exchange:
                channel.queue_bind(name, exchange, key)
        self._made.append(("queue", name))
        return name

    def drain(self, queue: str) -> list[tuple[Any, Any, bytes]]:
        """Counters lie right after a restart: whatever is there is taken out, one by one."""
        drained = []
        with self.admin() as channel:
            while (message := channel.basic_get(queue, auto_ack=True))[0] is not None:
                drained.append(message)
        return drained

    def ids(self, queue: str) -> list[str]:
        return [properties.message_id for _, properties, _ in self.drain(queue)]

    def remove(self) -> None:
        with self.admin() as channel:
            for kind, name in self._made:
                (channel.queue_delete if kind == "queue" else channel.exchange_delete)(name)


class Ahead(SystemClock):
    """A clock that a test can set forward."""

    ahead = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead


def rabbit_sender(url: str, clock: Ahead | None = None, **settings: Any) -> RabbitSender:
    return RabbitSender(SenderSettings(**{"rabbitmq": {"url": url}, "publish_timeout": "5s", **settings}), clock)


def rabbit_backend(url: str) -> tuple[Backend, Places]:
    """For the contract of all senders; a message is shown there as Kafka would show it."""
    places = Places(url)
    exchange = places.exchange()
    seen: list[dict[str, Any]] = []

    def arrived() -> list[dict[str, Any]]:
        seen.extend(
            {"id": properties.message_id, "key": None, "payload": body, "timestamp": properties.timestamp * 1000,
             "headers": [(name, value.encode()) for name, value in properties.headers.items()]}
            for _, properties, body in places.drain(exchange)
        )  # fmt: skip
        return seen

    backend = Backend(rabbit_sender(url), exchange, arrived, positions=False, keys=False, grain_ms=1000)
    return backend, places


@pytest.fixture
def places(rabbitmq_url):
    made = Places(rabbitmq_url)
    yield made
    made.remove()


@pytest.fixture
def clock():
    return Ahead()


@pytest.fixture
def rabbit(places, clock):
    """A sender on the shared server, and an exchange with a queue."""
    sender = rabbit_sender(places.url, clock)
    yield Backend(sender, places.exchange(), list, positions=False)
    sender.close()


def kinds(results: list[SendResult]) -> dict[Kind, int]:
    return dict(Counter(result.kind for result in results))


# Messages.


@pytest.mark.parametrize("queue_type", ["classic", "quorum"])
def test_a_message_carries_everything_that_the_contract_asks_for(rabbit, places, queue_type):
    queue = places.queue(rabbit.topic, f"{rabbit.topic}-{queue_type}", **{"x-queue-type": queue_type})
    events = [
        rabbit.event(n, correlation_id="request-7", occurred_at=OCCURRED, aggregate_type="order", aggregate_id=str(n))
        for n in range(300)
    ]

    results = rabbit.send(*events)

    assert kinds(results) == {Kind.DELIVERED: 300}
    drained = places.drain(queue)
    assert [properties.message_id for _, properties, _ in drained] == [str(event.id) for event in events]
    for event, (method, properties, body) in zip(events, drained, strict=True):
        assert (method.exchange, method.routing_key, body) == (event.topic, event.event_type, event.payload)
        assert {**properties.headers, **amqp_headers(event)} == properties.headers  # a quorum queue adds one of its own
        assert (properties.type, properties.content_type) == ("order-created", "application/json")
        assert (properties.delivery_mode, properties.correlation_id) == (2, "request-7")
        assert properties.timestamp == int(OCCURRED.timestamp())


def test_the_default_exchange_leads_to_the_queue_that_is_named_like_the_type(rabbit, places):
    queue = places.queue("", f"order-created-{uuid4().hex[:8]}")

    (result,) = rabbit.send(rabbit.event(topic="", event_type=queue))

    assert result.kind is Kind.DELIVERED
    assert len(places.drain(queue)) == 1


def test_batches_of_several_threads_do_not_mix_their_results(rabbit, places):
    found: list[dict[Kind, int]] = []

    def work() -> None:
        for _ in range(5):
            flights = [
                rabbit.sender.send([rabbit.event(n) for n in range(100)], time.monotonic() + 10) for _ in range(3)
            ]
            found.extend(kinds(flight.results()) for flight in flights)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert found == [{Kind.DELIVERED: 100}] * 60
    assert len(set(places.ids(rabbit.topic))) == 6000


def test_a_large_body_arrives_in_one_piece(rabbit, places):
    body = os.urandom(3_000_000)

    (result,) = rabbit.send(rabbit.event(payload=body))

    assert result.kind is Kind.DELIVERED
    assert places.drain(rabbit.topic)[0][2] == body


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"topic": None}, "without a topic"),
        ({"topic": "x" * 256}, "256 bytes"),
        ({"topic": "\ud800"}, "no Unicode"),
        ({"event_type": "é" * 150}, "cannot encode"),
        ({"headers": {"name": "\ud800"}}, "cannot encode"),
        ({"headers": {"n" * 300: "value"}}, "cannot encode"),
        ({"headers": {"name": "v" * 200_000}}, "headers are larger than a frame"),
        ({"headers": {"name": object()}}, "cannot encode"),
    ],
)
def test_what_cannot_be_encoded_is_rejected_alone(rabbit, places, fields, reason):
    assert delivers(rabbit)
    events = [rabbit.event(n) for n in range(20)]
    events[7] = events[7]._replace(**fields)

    results = rabbit.send(*events)

    assert results[7].kind is Kind.REJECT
    assert reason in results[7].reason
    assert kinds(results) == {Kind.DELIVERED: 19, Kind.REJECT: 1}
    assert len(places.ids(rabbit.topic)) == 20


def test_what_has_no_room_as_a_property_still_travels_in_the_headers(rabbit, places):
    long = "ü" * 200
    event = rabbit.event(correlation_id=long, content_type=long, occurred_at=datetime(1969, 7, 20, tzinfo=UTC))

    (result,) = rabbit.send(event)

    assert result.kind is Kind.DELIVERED
    ((_, properties, _),) = places.drain(rabbit.topic)
    assert (properties.correlation_id, properties.content_type, properties.timestamp) == (None, None, None)
    assert properties.headers == amqp_headers(event)


# Refusals.


def test_an_event_without_a_route_gets_a_grace_and_is_then_rejected(rabbit, places, clock):
    exchange = places.exchange(queue=False)
    lost = rabbit.event(topic=exchange)

    first, good = rabbit.send(lost, rabbit.event())
    clock.ahead += 9
    again = rabbit.sender.send([lost], clock.monotonic() + 5).results()[0]
    clock.ahead += 2
    last = rabbit.sender.send([lost], clock.monotonic() + 5).results()[0]

    assert (first.kind, first.charged, first.after) == (Kind.RETRY, False, 1.0)
    assert exchange in first.reason
    assert "NO_ROUTE" in first.reason
    assert (good.kind, again.kind) == (Kind.DELIVERED, Kind.RETRY)
    assert last.kind is Kind.REJECT


def test_only_those_without_a_route_are_returned(rabbit, places):
    exchange = places.exchange(queue=False)
    places.queue(exchange, key="order-created")
    events = [rabbit.event(n, topic=exchange, event_type="order-lost" if n % 3 else "order-created") for n in range(90)]

    results = rabbit.send(*events)

    assert kinds(results) == {Kind.DELIVERED: 30, Kind.RETRY: 60}
    assert places.ids(exchange) == [str(event.id) for event in events[::3]]


def test_a_route_that_appears_within_the_grace_gets_the_event(rabbit, places, clock):
    exchange = places.exchange(queue=False)
    early = rabbit.event(topic=exchange)

    assert rabbit.send(early)[0].kind is Kind.RETRY
    places.queue(exchange)
    assert rabbit.send(early)[0].kind is Kind.DELIVERED
    assert places.ids(exchange) == [str(early.id)]

    # the grace begins anew with the next refusal
    with places.admin() as channel:
        channel.queue_unbind(exchange, exchange, "#")
    clock.ahead += 60
    assert rabbit.sender.send([early], clock.monotonic() + 5).results()[0].kind is Kind.RETRY


def test_a_missing_exchange_hits_its_own_events_only(rabbit, places, clock):
    missing = f"nowhere-{uuid4().hex}"
    events = [rabbit.event(n, topic=missing if n % 10 == 3 else rabbit.topic) for n in range(50)]
    good = [str(event.id) for event in events if event.topic == rabbit.topic]

    results = rabbit.send(*events)

    assert kinds(results) == {Kind.DELIVERED: 45, Kind.RETRY: 5}
    assert {(r.charged, r.after) for r in results if r.kind is Kind.RETRY} == {(False, 1.0)}
    assert missing in results[3].reason
    assert places.ids(rabbit.topic) == good  # each once

    clock.ahead += 11
    assert rabbit.sender.send([events[3]], clock.monotonic() + 5).results()[0].kind is Kind.REJECT

    places.exchange(missing)
    assert rabbit.sender.send([events[3]], clock.monotonic() + 5).results()[0].kind is Kind.DELIVERED


def test_an_exchange_that_goes_away_hits_its_own_events_only(rabbit, places):
    gone = places.exchange()
    assert kinds(rabbit.send(rabbit.event(topic=gone), rabbit.event())) == {Kind.DELIVERED: 2}
    with places.admin() as channel:
        channel.exchange_delete(gone)
    events = [rabbit.event(n, topic=gone if n == 20 else rabbit.topic) for n in range(50)]

    results = rabbit.send(*events)

    assert (results[20].kind, results[20].charged) == (Kind.RETRY, False)
    assert kinds(results) == {Kind.DELIVERED: 49, Kind.RETRY: 1}
    assert set(places.ids(rabbit.topic)) >= {str(event.id) for n, event in enumerate(events) if n != 20}


def test_a_forbidden_exchange_is_unavailable_as_a_topic(rabbit, places):
    internal = places.exchange(internal=True)
    events = [rabbit.event(n, topic=internal if n in {5, 30} else rabbit.topic) for n in range(50)]

    results = rabbit.send(*events)

    assert kinds(results) == {Kind.DELIVERED: 48, Kind.UNAVAILABLE: 2}
    assert (results[5].scope, results[5].charged) == ("topic", False)
    assert internal in results[5].reason
    assert delivers(rabbit)


def test_a_message_that_closes_the_channel_is_found_and_rejected_alone(rabbit, places):
    # the header CC has a meaning of its own, and RabbitMQ closes the channel (406) where it is no list
    events = [rabbit.event(n, headers={"CC": "x"} if n in {11, 12, 33} else {}) for n in range(50)]
    deadline = time.monotonic() + 10

    flights = [rabbit.sender.send(events[:25], deadline), rabbit.sender.send(events[25:], deadline)]
    results = [result for flight in flights for result in flight.results()]

    assert [n for n, result in enumerate(results) if result.kind is Kind.REJECT] == [11, 12, 33]
    assert "PRECONDITION_FAILED" in results[11].reason
    assert kinds(results) == {Kind.DELIVERED: 47, Kind.REJECT: 3}
    assert set(places.ids(rabbit.topic)) == {str(e.id) for n, e in enumerate(events) if n not in {11, 12, 33}}
    assert delivers(rabbit)


def test_a_full_queue_that_refuses_is_a_charged_retry(rabbit, places):
    exchange = places.exchange(queue=False)
    places.queue(exchange, **{"x-max-length": 3, "x-overflow": "reject-publish"})

    results = rabbit.send(*(rabbit.event(n, topic=exchange) for n in range(10)))

    refused = [result for result in results if result.kind is Kind.RETRY]
    assert kinds(results) == {Kind.DELIVERED: 3, Kind.RETRY: 7}
    assert {(result.charged, result.maybe_sent) for result in refused} == {(True, False)}
    assert "nack" in refused[0].reason


# Settings.


def test_no_url_is_a_mistake_in_the_settings():
    with pytest.raises(ConfigurationError, match=r"outbox\.publisher\.sender\.rabbitmq\.url"):
        RabbitSender(SenderSettings())


@pytest.mark.parametrize(
    "rest", ["host:port/", "host/?no_such_setting=1", "host/?heartbeat=often", "host:5672/%2F?tcp_options=}"]
)
def test_an_unreadable_url_is_told_without_its_password(rest):
    with pytest.raises(ConfigurationError, match=r"outbox\.publisher\.sender\.rabbitmq\.url") as caught:
        rabbit_sender(f"amqp://user:s3cret@{rest}")

    assert "s3cret" not in str(caught.value)


def test_what_the_url_says_wins_over_our_defaults():
    settings = SenderSettings(
        rabbitmq={"url": "amqp://u:p@h/?heartbeat=33&connection_attempts=2"}, publish_timeout="7s"
    )

    found = parameters_of(settings)

    assert (found.heartbeat, found.connection_attempts) == (33, 2)
    assert (found.socket_timeout, found.stack_timeout, found.blocked_connection_timeout) == (7, 7, 300)


def test_without_pika_the_error_names_the_extra():
    script = "import sys; sys.modules['pika'] = None; import outbox_publisher.senders.rabbitmq"

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)

    assert "pip install 'outbox-publisher[rabbitmq]'" in done.stderr.splitlines()[-1]
