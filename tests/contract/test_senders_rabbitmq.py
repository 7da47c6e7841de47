"""What only a real RabbitMQ can tell: routes, channels, alarms, and a connection that may go away at any moment."""

import contextlib
import logging
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pika
import pika.exceptions
import pytest

from outbox_publisher.senders import Kind, Probing, SendResult
from outbox_publisher.senders.rabbitmq import RabbitSender, parameters_of
from outbox_publisher.senders.rabbitmq_channel import Publisher
from outbox_publisher.senders.rabbitmq_flight import EARLIER, RabbitFlight
from outbox_publisher.settings import SenderSettings
from outbox_shared.clock import SystemClock
from outbox_shared.errors import ConfigurationError
from outbox_shared.wire import amqp_headers
from tests.consuming import eventually
from tests.contract.test_senders import Backend, delivers
from tests.services.catalogue import Unavailable
from tests.services.client import BenchClient, OwnServer
from tests.services.install import find_program
from tests.services.missing import give_up

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
    events[7] = replace(events[7], **fields)

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


# Nobody there.


def wrong_password(url: str) -> str:
    return url.replace(":guest@", ":s3cret@")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda url: "amqp://guest:s3cret@127.0.0.1:1/", "refused"),
        (lambda url: "amqp://guest:s3cret@no-such-host.invalid/", "no-such-host.invalid"),
        (wrong_password, "ACCESS_REFUSED"),
        (lambda url: f"{url}no-such-vhost", "no-such-vhost"),
    ],
    ids=["port", "host", "password", "vhost"],
)
def test_a_broker_that_lets_nobody_in_is_unavailable(rabbitmq_url, change, reason):
    sender = rabbit_sender(change(rabbitmq_url))
    backend = Backend(sender, "", list)

    results = backend.send(backend.event(), backend.event())

    for result in results:
        assert (result.kind, result.scope) == (Kind.UNAVAILABLE, "sender")
        assert (result.charged, result.maybe_sent) == (False, False)
        assert reason in result.reason
        assert "s3cret" not in result.reason
    assert reason in (sender.probe(None, 5) or "")
    sender.close()


def test_a_deadline_that_has_passed_is_answered_at_once(rabbit):
    (result,) = rabbit.send(rabbit.event(), seconds=-1)

    assert (result.kind, result.maybe_sent) == (Kind.UNAVAILABLE, False)
    assert delivers(rabbit)


def test_an_outage_writes_no_tracebacks_and_leaves_the_applications_own_pika_alone(caplog):
    caplog.set_level(logging.INFO)
    sender = rabbit_sender("amqp://guest:guest@127.0.0.1:1/")
    backend = Backend(sender, "", list)

    assert backend.send(backend.event())[0].kind is Kind.UNAVAILABLE
    sender.close()
    assert [record for record in caplog.records if record.name.startswith("pika")] == []

    with pytest.raises(pika.exceptions.AMQPConnectionError):
        pika.BlockingConnection(pika.URLParameters("amqp://guest:guest@127.0.0.1:1/"))
    assert [record for record in caplog.records if record.name.startswith("pika")]


# Probes.


def test_a_probe_tells_what_is_there(rabbit, places):
    assert isinstance(rabbit.sender, Probing)

    assert rabbit.sender.probe(None, 5) is None
    assert rabbit.sender.probe("", 5) is None
    assert rabbit.sender.probe(rabbit.topic, 5) is None
    assert "nowhere" in rabbit.sender.probe("nowhere", 5)
    assert "bytes" in rabbit.sender.probe("x" * 300, 5)
    assert delivers(rabbit)


# Life.


def test_close_ends_the_thread_and_may_be_called_again(places):
    sender = rabbit_sender(places.url)
    backend = Backend(sender, places.exchange(), list)
    sender.close()
    assert delivers(backend)

    sender.close()
    sender.close()

    assert [thread for thread in threading.enumerate() if thread.name == "outbox-rabbitmq"] == []


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_hundred_senders_leave_nothing_behind(places):
    exchange = places.exchange()

    def one_round() -> None:
        sender = rabbit_sender(places.url)
        assert delivers(Backend(sender, exchange, list))
        sender.close()

    one_round()
    before = open_files()
    for _ in range(100):
        one_round()

    eventually(lambda: threading.active_count() < 10)
    assert [thread for thread in threading.enumerate() if thread.name == "outbox-rabbitmq"] == []
    assert open_files() <= before + 2


def test_a_forked_child_sends_on_a_connection_of_its_own(rabbitmq_url, places):
    exchange = places.exchange()
    script = f"""
import os, sys
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from tests.contract.test_senders_rabbitmq import rabbit_sender
from tests.contract.test_senders import Backend
backend = Backend(rabbit_sender({rabbitmq_url!r}), {exchange!r}, list)
parent = backend.send(backend.event(1))[0].kind
pid = os.fork()
if pid == 0:
    kind = backend.send(backend.event(2), seconds=5)[0].kind
    backend.sender.close()
    os._exit(0 if kind == "delivered" else 1)
child = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
again = backend.send(backend.event(3))[0].kind
backend.sender.close()
print(parent, child, again)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)

    assert done.stdout.split() == ["delivered", "0", "delivered"]
    assert len(places.drain(exchange)) == 3


def test_an_error_of_our_own_costs_one_batch_and_not_the_thread(rabbit, monkeypatch, caplog):
    assert delivers(rabbit)
    with monkeypatch.context() as broken:
        broken.setattr(Publisher, "publish", lambda self, rows: 1 / 0)
        (result,) = rabbit.send(rabbit.event())

    assert (result.kind, result.scope) == (Kind.UNAVAILABLE, "sender")
    assert "ZeroDivisionError" in caplog.text
    assert delivers(rabbit)


def test_at_the_deadline_an_event_is_to_blame_only_where_a_later_one_was_confirmed(rabbit):
    flight = RabbitFlight([rabbit.event(n) for n in range(4)], 0.0, SystemClock())
    flight.tags[:] = [3, 8, 0, EARLIER]

    silent = flight.expire("no confirm", confirmed=5)
    flight.settle(0, SendResult.delivered())  # too late

    overtaken, last, unsent, again = flight.results()
    assert silent
    assert (overtaken.kind, overtaken.charged, overtaken.maybe_sent) == (Kind.RETRY, True, True)
    assert (last.kind, last.scope, last.maybe_sent) == (Kind.UNAVAILABLE, "sender", True)
    assert (unsent.kind, unsent.maybe_sent) == (Kind.UNAVAILABLE, False)
    assert (again.kind, again.charged, again.maybe_sent) == (Kind.RETRY, False, True)


# A broker to hurt: one for all tests of this file, each leaves it as it was.


@pytest.fixture(scope="module")
def broker(bench: BenchClient) -> Iterator[OwnServer]:
    try:
        server = bench.own("rabbitmq", behind_proxy=True)
    except Unavailable as error:
        give_up(error)
    yield server
    server.release()


@pytest.fixture
def private(broker):
    """A sender through the proxy, warm; what arrived is read beside it."""
    places = Places(broker.url.replace(str(broker.proxy.port), str(broker.port)))
    sender = rabbit_sender(broker.url)
    backend = Backend(sender, places.exchange(), lambda: places.drain(backend.topic), positions=False)
    assert delivers(backend)
    yield backend
    broker.proxy.heal()
    sender.close()


def assert_unavailable(results: list[SendResult], maybe_sent: bool) -> None:
    assert {(r.kind, r.scope, r.charged, r.maybe_sent) for r in results} == {
        (Kind.UNAVAILABLE, "sender", False, maybe_sent)
    }


def timed(backend: Backend, count: int, seconds: float) -> list[SendResult]:
    """The results of a batch, which must be there soon after the deadline."""
    began = time.monotonic()
    results = backend.send(*(backend.event(n) for n in range(count)), seconds=seconds)
    assert time.monotonic() - began < seconds + 3
    return results


@pytest.mark.slow
def test_a_broker_that_stands_still_is_unavailable_within_the_deadline_and_comes_back(broker, private):
    broker.pause()
    try:
        assert_unavailable(timed(private, 10, 2), maybe_sent=True)
        assert private.sender.probe(None, 0.5) is not None
        time.sleep(1.5)  # by now the silent connection is given up: nobody waits for its heartbeat
        assert_unavailable(timed(private, 10, 1), maybe_sent=False)
    finally:
        broker.resume()

    eventually(lambda: delivers(private), within=30)


@pytest.mark.slow
def test_a_broker_killed_in_mid_batch_is_unavailable_and_the_sender_finds_it_again(broker, private):
    broker.proxy.black_hole("answers")
    flight = private.sender.send([private.event(n) for n in range(500)], time.monotonic() + 10)
    eventually(lambda: broker.proxy.counters.bytes["requests"] > 100_000)
    broker.kill()
    broker.proxy.reset()
    try:
        assert_unavailable(list(flight.results()), maybe_sent=True)
        broker.proxy.heal()
        assert_unavailable(timed(private, 10, 2), maybe_sent=False)
        assert private.sender.probe(None, 1) is not None
    finally:
        broker.restart()

    eventually(lambda: delivers(private), within=30)
    assert private.sender.probe(private.topic, 5) is None


@pytest.mark.slow
def test_a_broker_that_restarts_closes_the_connection_and_gets_the_next_batch(broker, private):
    broker.restart()

    eventually(lambda: delivers(private), within=30)
    assert len(private.arrived()) >= 2  # the first of them survived the restart: it is persistent


@pytest.mark.slow
@pytest.mark.parametrize("how", ["cut", "reset"])
def test_a_connection_lost_in_mid_batch_is_unavailable_and_made_anew(broker, private, how):
    broker.proxy.black_hole("answers")
    flight = private.sender.send([private.event(n) for n in range(500)], time.monotonic() + 10)
    assert not flight.done()
    getattr(broker.proxy, how)()

    began = time.monotonic()
    assert_unavailable(list(flight.results()), maybe_sent=True)
    assert time.monotonic() - began < 5  # the loss is the answer, not the deadline
    if how == "cut":
        assert_unavailable(timed(private, 10, 3), maybe_sent=False)
    broker.proxy.heal()
    eventually(lambda: delivers(private))


@pytest.mark.slow
def test_a_network_that_swallows_everything_costs_no_more_than_the_deadline(broker, private):
    broker.proxy.black_hole()
    assert_unavailable(timed(private, 500, 1), maybe_sent=True)
    time.sleep(1.5)  # the connection is given up; the next batch waits for a new one in vain
    assert_unavailable(timed(private, 10, 1), maybe_sent=False)
    assert private.sender.probe(private.topic, 1) is not None

    broker.proxy.heal()
    eventually(lambda: delivers(private))


@pytest.mark.slow
def test_a_confirm_that_comes_after_the_deadline_harms_nobody(broker, private):
    broker.proxy.black_hole("answers")
    late = private.sender.send([private.event(n) for n in range(50)], time.monotonic() + 0.5)
    assert_unavailable(list(late.results()), maybe_sent=True)
    connections = broker.proxy.counters.connections

    broker.proxy.heal()
    results = timed(private, 50, 5)

    assert kinds(results) == {Kind.DELIVERED: 50}
    assert_unavailable(list(late.results()), maybe_sent=True)
    assert len(private.arrived()) == 101
    assert broker.proxy.counters.connections == connections  # it was slow, not dead: the connection is still the same


@pytest.mark.slow
def test_closing_the_sender_answers_what_is_under_way(broker, private):
    broker.proxy.black_hole()
    flight = private.sender.send([private.event()], time.monotonic() + 20)
    began = time.monotonic()

    private.sender.close()

    assert_unavailable(list(flight.results()), maybe_sent=True)
    assert time.monotonic() - began < 10
    assert [thread for thread in threading.enumerate() if thread.name == "outbox-rabbitmq"] == []


def rabbitmqctl(broker: OwnServer, *words: str) -> None:
    """Run the node's own tool in the node's own environment, which has the cookie and the ports."""
    program = find_program("rabbitmqctl")
    for pid in broker.pids():
        environment = dict(
            line.split("=", 1) for line in Path(f"/proc/{pid}/environ").read_text().split("\0") if "=" in line
        )
        if program is not None and "beam" in Path(f"/proc/{pid}/comm").read_text():
            node = environment["RABBITMQ_NODENAME"]
            subprocess.run([program, "-n", node, *words], env=environment, check=True, capture_output=True, timeout=60)
            return
    pytest.skip("this RabbitMQ does not run where its tool can reach it")


@pytest.mark.slow
def test_a_message_that_is_too_large_for_the_broker_is_rejected_alone(broker, private):
    rabbitmqctl(broker, "eval", "application:set_env(rabbit, max_message_size, 100000).")
    private.sender.close()  # a channel keeps the limit that it was opened with
    try:
        events = [private.event(n, payload=b"x" * (200_000 if n == 17 else 1000)) for n in range(50)]
        results = private.send(*events)
    finally:
        rabbitmqctl(broker, "eval", "application:set_env(rabbit, max_message_size, 134217728).")

    assert results[17].kind is Kind.REJECT
    assert "message size 200000 is larger" in results[17].reason
    assert kinds(results) == {Kind.DELIVERED: 49, Kind.REJECT: 1}
