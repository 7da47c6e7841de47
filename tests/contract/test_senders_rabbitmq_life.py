"""RabbitMQ's connection: nobody there, a broker that goes away at any moment, and the sender's own beginning and end."""

import logging
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pika
import pika.exceptions
import pytest

from outbox_publisher.senders import Kind, Probing, SendResult
from outbox_publisher.senders.rabbitmq_channel import Publisher
from outbox_publisher.senders.rabbitmq_flight import EARLIER, RabbitFlight
from outbox_shared.clock import SystemClock
from tests.consuming import eventually
from tests.contract.test_senders import Backend, delivers
from tests.contract.test_senders_rabbitmq import Places, kinds, rabbit_sender
from tests.outages import rabbitmqctl
from tests.services.catalogue import Unavailable
from tests.services.client import BenchClient, OwnServer
from tests.services.missing import give_up


@pytest.fixture
def places(rabbitmq_url):
    made = Places(rabbitmq_url)
    yield made
    made.remove()


@pytest.fixture
def rabbit(places):
    """A sender on the shared server, and an exchange with a queue."""
    sender = rabbit_sender(places.url)
    yield Backend(sender, places.exchange(), list, positions=False)
    sender.close()


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
