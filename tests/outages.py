"""What the outage suites share: servers and ways to hurt them, brokers to read back from, and relays caught in the middle of their work."""

import contextlib
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal
from uuid import UUID, uuid4

import pika
import psycopg
import pytest
from sqlalchemy import Column, MetaData, Table, event, insert, select
from sqlalchemy.engine import Connection, Engine, ExceptionContext
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from outbox_publisher import Event, Outbox, Relay
from outbox_publisher.demo.embedded_kafka import read_topic
from outbox_publisher.senders import Flight, Sender, sender_for
from outbox_publisher.store.burst_postgresql import Burst
from outbox_shared.sqltypes import EventId
from outbox_shared.wire import header_pairs
from tests.consuming import eventually
from tests.fixtures import OutboxDatabase
from tests.services.catalogue import Unavailable
from tests.services.client import BenchClient, OwnServer
from tests.services.install import find_program
from tests.services.missing import give_up
from tests.services.proxy import Direction
from tests.services.topics import Topics

ONE_BY_ONE = {"topic": "orders", "batch_size": 200, "fixed_delay": "20ms"}


@contextlib.contextmanager
def private_servers(bench: BenchClient) -> Iterator[Callable[[str], OwnServer]]:
    """One private server of each kind behind a proxy, for all tests of a file; in good health for each, whatever the last one did."""
    started: dict[str, OwnServer] = {}

    def lend(name: str) -> OwnServer:
        if name in started:
            mend(started[name])
        else:
            try:
                started[name] = bench.own(name, behind_proxy=True)
            except Unavailable as error:
                give_up(error)
        return started[name]

    try:
        yield lend
    finally:
        for server in started.values():
            server.release()


def mend(server: OwnServer) -> None:
    """Whatever was done to it."""
    server.resume()
    server.proxy.reset()
    server.proxy.heal()
    if not server.pids():
        server.restart()


# Ways to go away; at the end of each block it is back. What the network still held of the old connections is lost.


@contextlib.contextmanager
def restarted(server: OwnServer) -> Iterator[None]:
    """An orderly shutdown."""
    with _ended(server, server.stop):
        yield


@contextlib.contextmanager
def aborted(server: OwnServer) -> Iterator[None]:
    """PostgreSQL's `-m immediate`."""
    with _ended(server, server.abort):
        yield


@contextlib.contextmanager
def killed(server: OwnServer) -> Iterator[None]:
    """kill -9."""
    with _ended(server, server.kill):
        yield


@contextlib.contextmanager
def _ended(server: OwnServer, end: Callable[[], None]) -> Iterator[None]:
    end()
    server.proxy.reset()
    server.proxy.heal()
    yield
    server.restart()


@contextlib.contextmanager
def paused(server: OwnServer) -> Iterator[None]:
    """SIGSTOP; connections live on, and nobody answers."""
    server.pause()
    server.proxy.heal()
    yield
    server.resume()


@contextlib.contextmanager
def cut_off(server: OwnServer) -> Iterator[None]:
    """The server is well, and cannot be reached."""
    server.proxy.cut()
    yield
    server.proxy.heal()


@contextlib.contextmanager
def in_a_black_hole(server: OwnServer) -> Iterator[None]:
    """The same, and nobody is told: connections live on."""
    server.proxy.black_hole()
    yield
    server.proxy.heal()


# Brokers.


class KafkaPlaces:
    """Topics, and what is in them."""

    name = "kafka"

    def __init__(self, url: str) -> None:
        self.url = url

    def settings(self, **more: Any) -> dict[str, Any]:
        return {"type": "kafka", "kafka": {"bootstrap_servers": self.url, **more.pop("kafka", {})}, **more}

    def new(self) -> str:
        return Topics(self.url).create()

    def ids(self, topic: str) -> list[str]:
        """The event ids of all messages, copies included."""
        return [dict(message.headers())["outbox_event_id"].decode() for message in read_topic(self.url, topic)]


class RabbitPlaces:
    """Exchanges with a durable queue of the same name that takes everything."""

    name = "rabbitmq"

    def __init__(self, url: str, beside: str | None = None) -> None:
        self.url, self._beside = url, beside or url
        self._made: list[str] = []

    def settings(self, **more: Any) -> dict[str, Any]:
        return {"type": "rabbitmq", "rabbitmq": {"url": self.url}, **more}

    @contextlib.contextmanager
    def channel(self) -> Iterator[Any]:
        connection = pika.BlockingConnection(pika.URLParameters(self._beside))
        try:
            yield connection.channel()
        finally:
            connection.close()

    def new(self, name: str = "", *, queue: bool = True) -> str:
        name = name or f"orders-{uuid4().hex[:12]}"
        self._made.append(name)
        with self.channel() as channel:
            channel.exchange_declare(name, "topic", durable=True)
        if queue:
            self.bind(name)
        return name

    def bind(self, name: str) -> None:
        with self.channel() as channel:
            channel.queue_declare(name, durable=True)
            channel.queue_bind(name, name, "#")

    def ids(self, queue: str) -> list[str]:
        """Counters lie right after a restart: whatever is there is taken out, one by one, copies included."""
        found = []
        with self.channel() as channel:
            while (message := channel.basic_get(queue, auto_ack=True))[0] is not None:
                found.append(message[1].message_id)
        return found

    def remove(self) -> None:
        with self.channel() as channel:
            for name in self._made:
                channel.queue_delete(name)
                channel.exchange_delete(name)


Places = KafkaPlaces | RabbitPlaces


@contextlib.contextmanager
def relaying(
    database: OutboxDatabase, sender_settings: dict[str, Any], catch: Callable[[Sender], object] = lambda _: None,
    **more: Any,
) -> Iterator[Relay]:  # fmt: skip
    """A relay with its real sender on a thread of its own; it is never restarted. `catch` may lay hands on the sender first."""
    settings = database.settings(**{"sender": sender_settings, "defaults": ONE_BY_ONE, **more})
    sender = sender_for(settings)
    catch(sender)
    try:
        with Relay(settings, sender=sender).background() as relay:
            yield relay
    finally:
        sender.close()


class MiddleOfABatch:
    """Stops the world around the relay's batch number `which`: its rows are claimed and handed to the client, and the network keeps
    what the broker should get (`hold="requests"`) or what it answers (`hold="answers"`).

    Where Kafka's answers are held, `linger.ms` must let the batch leave in one request: of many small ones only five are ever under way.
    """

    def __init__(self, server: OwnServer, hold: Direction, which: int = 2) -> None:
        self._server, self._hold, self._which = server, hold, which
        self._sent, self._before, self._reached = 0, 0, threading.Event()
        self.events: Sequence[Event] = ()
        self.flight: Flight | None = None
        self._others: list[Flight] = []

    def catch(self, sender: Any) -> None:
        self._send, sender.send = sender.send, self._caught

    def _caught(self, events: Sequence[Event], deadline: float) -> Flight:
        self._sent += 1
        if self._sent != self._which:
            self._others.append(self._send(events, deadline))
            return self._others[-1]
        eventually(lambda: all(flight.done() for flight in self._others))  # it is the middle of this one alone
        self._before = self._server.proxy.counters.bytes["requests"]
        self._server.proxy.black_hole(self._hold)
        self.events, self.flight = events, self._send(events, deadline)
        self._reached.set()
        return self.flight

    def wait(self) -> None:
        assert self._reached.wait(30), "the relay has not come so far"
        if self._hold == "answers":  # then most of the batch is at the broker, and nobody knows
            size = sum(map(_size, self.events))
            eventually(lambda: self._server.proxy.counters.bytes["requests"] > self._before + size)
        assert self.flight is not None
        assert not self.flight.done()


def _size(event: Event) -> int:
    """At least so many bytes go to the broker."""
    return len(event.payload) + sum(len(name) + len(value) for name, value in header_pairs(event))


Moment = Literal["sent", "claiming", "settling"]
_STEPS: dict[str, Moment] = {"INSERT INTO outbox_claims": "claiming", "DELETE FROM outbox_claims": "settling"}


class MiddleOfATurn:
    """Catches a relay that runs in the background at one moment of its turn number `which`:

    sent       the broker has the whole batch
    claiming   the claim's statements are done, its COMMIT is not
    settling   the settle's statements are done, its COMMIT is not

    There it stands still until it may `go_on()`, or does what it is given instead. Of a transaction that leaves in one write both are
    the moment before it does.
    """

    def __init__(self, engine: Engine, moment: Moment, act: Callable[[], None] | None = None, which: int = 2) -> None:
        self.errors = 0
        """What the relay's loop, and nobody else, has heard from a database that is away."""
        self._moment, self._act, self._which = moment, act or self._stand, which
        self._steps: set[Moment] = set()  # of the transaction under way: a settle may share it with the next claim
        self._met: Counter[Moment] = Counter()
        self._reached, self._may_go_on = threading.Event(), threading.Event()
        event.listen(engine, "before_cursor_execute", self._executes)
        event.listen(engine, "commit", self._commits)
        event.listen(engine, "handle_error", self._fails)

    def catch(self, sender: Sender) -> None:
        self._send, sender.send = sender.send, self._sends  # type: ignore[method-assign]

    @contextlib.contextmanager
    def watching_bursts(self) -> Iterator[None]:
        """What leaves in one write passes the engine by."""
        send, fly = Burst._send, Burst.fly

        def sends(burst: Burst, portion: Sequence[Any]) -> None:
            for one in portion:
                self._executes(None, None, one.text.decode())
            self._commits()
            send(burst, portion)

        def flies(burst: Burst, meanwhile: Callable[[], object]) -> None:
            try:
                fly(burst, meanwhile)
            except psycopg.Error:
                self._fails()
                raise

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(Burst, "_send", sends)
            patched.setattr(Burst, "fly", flies)
            yield

    def wait(self) -> None:
        assert self._reached.wait(30), "the relay has not come so far"

    def go_on(self) -> None:
        self._may_go_on.set()

    def _sends(self, events: Sequence[Event], deadline: float) -> Flight:
        flight = self._send(events, deadline)
        flight.results()
        self._is_at("sent")
        return flight

    def _executes(self, _c: Any, _d: Any, statement: str, *_: Any) -> None:
        if _is_the_relays_thread():
            self._steps |= {step for words, step in _STEPS.items() if words in statement}

    def _commits(self, *_: Connection) -> None:
        if _is_the_relays_thread():
            steps, self._steps = self._steps, set()
            for step in sorted(steps):
                self._is_at(step)

    def _fails(self, *_: ExceptionContext) -> None:
        if _is_the_relays_thread():
            self._steps = set()
            self.errors += 1

    def _is_at(self, moment: Moment) -> None:
        self._met[moment] += 1
        if moment == self._moment and self._met[moment] == self._which:
            self._act()
            self._reached.set()

    def _stand(self) -> None:
        self._reached.set()
        assert self._may_go_on.wait(60), "nobody let the relay go on"


def _is_the_relays_thread() -> bool:
    return threading.current_thread().name == "outbox-relay"


class Orders:
    """A shop's own rows, each written in one transaction with the event about it: what was ordered is what must arrive."""

    def __init__(self, database: OutboxDatabase) -> None:
        self._engine, self._outbox = database.engine, Outbox(database.settings())
        self._table = Table("shop_orders", MetaData(), Column("id", EventId, primary_key=True))
        self._table.create(self._engine)
        self.confirmed: list[UUID] = []
        self.failed = 0

    def place(self, count: int = 1, **options: Any) -> None:
        """One transaction. It is `confirmed` if its COMMIT has returned."""
        with Session(self._engine) as session, session.begin():
            ids = [self.write(session, **options) for _ in range(count)]
        self.confirmed += ids

    def write(self, session: Session, **options: Any) -> UUID:
        published = self._outbox.publish(session, "order-created", {"total": 1}, **options)
        if published.stored:
            session.execute(insert(self._table).values(id=published.id))
        return published.id

    @contextlib.contextmanager
    def keep_coming(self, **options: Any) -> Iterator[None]:
        """One after the other, from a thread. Whoever gets an error leaves, and another customer comes."""
        closing = threading.Event()

        def customers() -> None:
            while not closing.wait(0.02):
                try:
                    self.place(**options)
                except DBAPIError:
                    self.failed += 1

        thread = threading.Thread(target=customers, name="customers")
        thread.start()
        try:
            yield
        finally:
            closing.set()
            thread.join()

    def all(self) -> list[UUID]:
        with self._engine.connect() as connection:
            return list(connection.execute(select(self._table.c.id)).scalars())


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
    give_up(Unavailable("this RabbitMQ does not run where its tool can reach it"))
