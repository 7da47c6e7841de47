"""The database goes away in the middle of a relay's turn, in every way that a database can: the same relay goes on when it is back.

Nothing is lost, nobody is charged, and while no other relay has taken over, nothing is sent twice: a settle names its token and can be
repeated until it is answered.
"""

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import select
from sqlalchemy.engine import make_url
from sqlalchemy.event import listen
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from outbox_publisher import Relay
from outbox_publisher.demo.embedded_kafka import read_topic
from outbox_publisher.demo.relay_process import RelayProcess
from outbox_publisher.schema import create_tables
from outbox_publisher.senders import MemorySender
from outbox_publisher.store import store_for
from outbox_shared.database import make_engine
from outbox_shared.ids import new_event_id
from tests.consuming import eventually, lock_waits
from tests.fixtures import NAMES, OutboxDatabase
from tests.outages import (
    MiddleOfATurn,
    Moment,
    Orders,
    aborted,
    cut_off,
    killed,
    mend,
    paused,
    private_servers,
    restarted,
)
from tests.services.client import BenchClient, OwnServer
from tests.services.databases import administration, database_url, new_name
from tests.services.proxy import Direction

BATCH = 20
UNHURRIED = {"lease": "60s", "defaults": {"topic": "orders", "batch_size": BATCH, "fixed_delay": "20ms"}}
"""No outage here is as long as the lease: nobody takes a batch away from a relay that lives."""
HURRIED = {**UNHURRIED, "lease": "4s", "sender": {"publish_timeout": "1s"}, "stuck_recovery": {"fixed_delay": "200ms"}}


AT_ONCE = "postgresql at once"
"""A relay with an engine of its own, whose transactions leave in one write."""
KINDS = pytest.mark.parametrize("kind", ["postgresql", AT_ONCE, "mariadb"])


@pytest.fixture(scope="module")
def servers(bench: BenchClient) -> Iterator[Callable[[str], OwnServer]]:
    with private_servers(bench) as lend:
        yield lambda kind: lend(kind.partition(" ")[0])


@contextlib.contextmanager
def fresh_outbox(server: OwnServer) -> Iterator[OutboxDatabase]:
    """The test's own way leads past the proxy."""
    direct = server.url.replace(str(server.proxy.port), str(server.port))
    name = new_name()
    with administration(direct) as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
    engine = make_engine(database_url(direct, name), "outbox-publisher")
    create_tables(engine, NAMES)
    try:
        yield OutboxDatabase(database_url(direct, name), engine, store_for(engine.dialect.name, NAMES))
    finally:
        engine.dispose()


def through_the_proxy(server: OwnServer, database: OutboxDatabase) -> str:
    return make_url(database.url).set(port=server.proxy.port).render_as_string(hide_password=False)


def assert_nobody_was_charged(database: OutboxDatabase, count: int) -> None:
    rows = database.events()
    assert len(rows) == count
    assert {(row.status, row.attempts) for row in rows} == {("PROCESSED", 0)}
    assert database.dead_letters() == []
    assert database.claims() == 0


# In the middle of a turn.

MOMENTS: dict[str, Moment] = {
    "sent": "sent",
    "claiming": "claiming",
    "settling": "settling",
    "waiting": "sent",  # and then the settle's first statement waits for a lock
    "unanswered": "settling",  # and then COMMIT is executed, and its answer is lost
}
ENDS_THE_SERVER = {restarted, aborted, killed}


def cases() -> Iterator[Any]:
    for kind in ("postgresql", AT_ONCE, "mariadb"):
        for moment in MOMENTS:
            for way in (restarted, aborted, killed, paused, cut_off):
                if way is aborted and kind == "mariadb":  # it has no such way
                    continue
                if kind == AT_ONCE and moment == "sent":  # nothing of the database's is under way
                    continue
                if way is paused and moment in {"waiting", "unanswered"}:  # a pause breaks nothing off
                    continue
                much_the_same = kind == "mariadb" and moment in {"claiming", "settling"} and way is not killed
                much_the_same |= kind == AT_ONCE and way in {restarted, aborted}
                marks = [pytest.mark.full] if much_the_same else []
                yield pytest.param(
                    kind, moment, way, id=f"{kind.replace(' ', '_')}-{moment}-{way.__name__}", marks=marks
                )


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "moment", "goes_away"), list(cases()))
def test_a_database_that_goes_away_in_the_middle_of_a_turn_costs_no_event_an_attempt_or_a_second_send(
    servers, kind, moment, goes_away
):
    # given a relay in the middle of its second turn, an order that is not finished yet, and customers who keep coming
    server, ends, unanswered = servers(kind), goes_away in ENDS_THE_SERVER, moment == "unanswered"
    directly = ends and not unanswered  # then it is the system itself that refuses connections
    with (
        fresh_outbox(server) as database,
        caught_relay(
            server, database, MOMENTS[moment], directly=directly, unanswered=unanswered, at_once=kind == AT_ONCE
        ) as caught,
        Session(database.engine) as unfinished,
        contextlib.ExitStack() as until_the_outage,
    ):
        orders = caught.orders
        with orders.keep_coming():
            caught.middle.wait()
            unfinished.begin()
            orders.write(unfinished)
            if moment == "waiting":
                until_the_outage.enter_context(claims_locked(database))
                caught.middle.go_on()
                eventually(lambda: lock_waits(database.engine) == 1)
            if unanswered:
                eventually(lambda: database.statuses()["PROCESSED"] == 2 * BATCH)

            # when the database goes away until they have noticed
            with goes_away(server):
                asked, failed = server.proxy.counters.bytes["requests"], orders.failed
                caught.middle.go_on()
                if goes_away is paused:
                    eventually(lambda: server.proxy.counters.bytes["requests"] > asked)
                else:
                    eventually(lambda: caught.middle.errors >= 3)
                if ends:
                    eventually(lambda: orders.failed > failed)
            until_the_outage.close()

            # then the shop goes on, and the unfinished order fails with what it was made on
            confirmed = len(orders.confirmed)
            eventually(lambda: len(orders.confirmed) > confirmed)
            with pytest.raises(DBAPIError) if ends else contextlib.nullcontext():
                unfinished.commit()

        # and the same relay goes on: each event that has an order has arrived, once
        ordered = orders.all()
        assert set(orders.confirmed) <= set(ordered)
        eventually(lambda: database.statuses() == {"PROCESSED": len(ordered)}, within=60)
        assert Counter(caught.arrived()) == Counter(ordered)
        assert_nobody_was_charged(database, len(ordered))
        assert {row.lost_claims for row in database.events()} == {0}


@dataclass
class Caught:
    """A relay that is going to be caught in the middle of a turn, on the events of a shop."""

    orders: Orders
    middle: MiddleOfATurn
    sender: MemorySender

    def arrived(self) -> list[UUID]:
        return [event.id for event in self.sender.sent]


@contextlib.contextmanager
def caught_relay(
    server: OwnServer,
    database: OutboxDatabase,
    moment: Moment,
    *,
    directly: bool = False,
    unanswered: bool = False,
    which: int = 2,
    settings: dict[str, Any] = UNHURRIED,
    at_once: bool = False,
) -> Iterator[Caught]:
    """`unanswered`: the network keeps the answers from that moment on, and the relay runs into it."""
    (orders := Orders(database)).place(3 * BATCH)
    url = database.url if directly else through_the_proxy(server, database)
    engine, sender = make_engine(url, "outbox-publisher"), MemorySender()
    given = database.settings(**settings, **({"database_url": url} if at_once else {}))
    relay = Relay(given, engine=None if at_once else engine, sender=sender)
    lose_answers = partial(server.proxy.black_hole, "answers") if unanswered else None
    middle = MiddleOfATurn(relay._engine, moment, lose_answers, which)
    middle.catch(sender)
    try:
        with middle.watching_bursts(), relay.background():
            try:
                yield Caught(orders, middle, sender)
            except BaseException:
                mend(server)  # the relay's thread ends when it has its answers
                raise
            finally:
                middle.go_on()
    finally:
        engine.dispose()


@contextlib.contextmanager
def claims_locked(database: OutboxDatabase) -> Iterator[None]:
    """By a stranger, whose session may die with the server."""
    with database.engine.connect() as connection:
        connection.execute(select(database.store.tables.claims).with_for_update())
        yield
        connection.invalidate()


# Where a settle cannot be repeated.


@pytest.mark.slow
@KINDS
def test_rows_whose_claim_got_no_answer_come_back_when_the_lease_is_over_and_are_sent_once(servers, kind):
    # given a claim that the database has committed without its relay getting to know
    server = servers(kind)
    with (
        fresh_outbox(server) as database,
        caught_relay(
            server, database, "claiming", unanswered=True, which=1, settings=HURRIED, at_once=kind == AT_ONCE
        ) as caught,
    ):
        caught.middle.wait()
        eventually(lambda: database.statuses() == {"PENDING": 2 * BATCH, "IN_PROCESS": BATCH})

        # when the connection breaks
        with cut_off(server):
            eventually(lambda: caught.middle.errors >= 1)

        # then what the relay knows nothing of comes back, and its relay is known to live
        eventually(lambda: database.statuses() == {"PROCESSED": 3 * BATCH})
        assert Counter(caught.arrived()) == Counter(caught.orders.all())
        assert_nobody_was_charged(database, 3 * BATCH)
        assert {row.lost_claims for row in database.events()} == {0}


@pytest.mark.slow
@KINDS
def test_a_relay_that_was_cut_off_for_longer_than_its_lease_leaves_alone_what_others_have_done(servers, kind, caplog):
    # given a relay that is cut off when it has sent a batch
    server = servers(kind)
    with (
        fresh_outbox(server) as database,
        caught_relay(server, database, "sent", which=1, settings=HURRIED, at_once=kind == AT_ONCE) as caught,
    ):
        caught.middle.wait()
        batch = caught.arrived()
        with cut_off(server):
            caught.middle.go_on()
            eventually(lambda: caught.middle.errors >= 3)

            # when its lease is over, and another relay sends all that there is
            sender = MemorySender()
            other = database.relay(sender, **UNHURRIED)
            eventually(lambda: other.duties.recovery.run_once() >= BATCH)
            while database.statuses() != {"PROCESSED": 3 * BATCH}:
                other.run_once()
                other.duties.recovery.run_once()  # a claim that was on its way when the network went has its own lease
            done = database.events()

        # then it sees, once it is back, that the rows are no longer its own, and goes on with others
        eventually(lambda: f"{BATCH} order-created events were no longer ours" in caplog.text)
        assert database.events() == done
        caught.orders.place()
        eventually(lambda: database.statuses() == {"PROCESSED": 3 * BATCH + 1})

        # and nothing but the batch that was under way has arrived twice
        arrived = Counter([*caught.arrived(), *(event.id for event in sender.sent)])
        assert arrived == Counter(caught.orders.all()) + Counter(batch)
        assert_nobody_was_charged(database, 3 * BATCH + 1)


# The process that users run, and a real broker.

SETTINGS = """
outbox:
  database-url: {url}
  publisher:
    lease: 60s
    stuck-recovery: {{fixed-delay: 1s}}
    sender: {{type: kafka, publish-timeout: 30s, kafka: {{bootstrap-servers: "{kafka}"}}}}
    defaults: {{topic: {topic}, batch-size: {batch}, fixed-delay: 20ms}}
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("kind", "ways", "count"),
    [
        ("postgresql", [aborted, killed], 2_000),
        ("mariadb", [killed], 2_000),
        pytest.param("postgresql", [restarted, aborted, killed] * 4, 20_000, marks=pytest.mark.full),
        pytest.param("mariadb", [restarted, killed] * 5, 20_000, marks=pytest.mark.full),
    ],
)
def test_a_relay_process_outlives_its_database_wherever_it_is_met_and_kafka_gets_every_event_once(
    servers, kafka_url, kafka_topic, tmp_path: Path, kind, ways, count
):
    # given a relay process with a backlog, and customers who keep coming
    server, topic = servers(kind), kafka_topic()
    with fresh_outbox(server) as database:
        (orders := Orders(database)).place(count, topic=topic)
        settings = SETTINGS.format(url=database.url, kafka=kafka_url, topic=topic, batch=count // 100)
        relay = RelayProcess(tmp_path, settings)
        relay.start()

        def complaints() -> int:
            return (tmp_path / "relay.log").read_text().count("again in")

        try:
            with orders.keep_coming(topic=topic):
                # when its database ends again and again, wherever that finds it
                for number, goes_away in enumerate(ways, 1):
                    enough = number * count // (len(ways) + 1)
                    eventually(lambda n=enough: database.statuses().get("PROCESSED", 0) >= n, within=60)
                    with goes_away(server):
                        told = complaints()
                        eventually(lambda before=told: complaints() > before, within=60)

            # then it goes on each time
            eventually(lambda: database.statuses() == {"PROCESSED": len(orders.all())}, within=120)
            assert relay.running()
            assert relay.stop() == 0, relay.log_tail()
        finally:
            relay.kill()

        # and everything is in the broker, once
        ordered = orders.all()
        assert_nobody_was_charged(database, len(ordered))
    messages = read_topic(kafka_url, topic)
    assert Counter(UUID(dict(one.headers())["outbox_event_id"].decode()) for one in messages) == Counter(ordered)
    assert set(orders.confirmed) <= set(ordered)
    print(
        f"\n{kind}: {len(ways)} outages, {len(ordered)} orders in Kafka once each, {orders.failed} customers got errors"
    )


# Publishers.


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
@pytest.mark.parametrize(("lost", "made"), [("requests", False), ("answers", True)])
def test_an_order_whose_commit_got_no_answer_is_announced_if_it_was_made_and_once_when_it_is_repeated(
    servers, kind, lost: Direction, made
):
    # given a customer whose COMMIT, or the answer to it, is lost
    server, event_id, sender = servers(kind), new_event_id(), MemorySender()
    with fresh_outbox(server) as database:
        orders, relay = Orders(database), database.relay(sender)
        engine, committing = make_engine(through_the_proxy(server, database), "outbox-publisher"), threading.Event()

        def lose(_connection):
            server.proxy.black_hole(lost)
            committing.set()

        with Session(engine) as session, ThreadPoolExecutor(1) as pool:
            session.begin()
            orders.write(session, event_id=event_id)
            listen(engine, "commit", lose)
            commit = pool.submit(session.commit)
            assert committing.wait(20)
            eventually(lambda: len(orders.all()) == made)
            server.proxy.reset()
            with pytest.raises(DBAPIError):
                commit.result(20)
        engine.dispose()

        # when the relay looks, then it finds the event exactly where it finds the order
        relay.run_once()
        assert [event.id for event in sender.sent] == orders.all() == [event_id] * made

        # and when the customer tries again, both are there once
        orders.place(event_id=event_id)
        relay.run_once()
        assert [event.id for event in sender.sent] == orders.all() == [event_id]
