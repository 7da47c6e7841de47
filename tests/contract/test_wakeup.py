"""A commit wakes the relay: by the database's own means where it has some, within one process on every database."""

import asyncio
import logging
import threading
from contextlib import contextmanager

import psycopg
import pytest
from sqlalchemy import create_engine, event, text

from outbox_publisher import Outbox, PublisherSettings, Relay
from outbox_publisher.hints.pace import QUIET
from outbox_publisher.relay import listener
from outbox_publisher.relay.wakeup import Wakeup
from outbox_publisher.senders import MemorySender
from outbox_shared.clock import SystemClock
from outbox_shared.database import make_engine
from tests.consuming import eventually
from tests.hints import CHANNEL, libpq
from tests.publishing import AsyncShop, database_behind, open_shop

NO_POLL = {"topic": "t", "fixed-delay": "10m"}
"""So that nothing but a hint can be the cause."""


def never():
    return False


def listeners():
    return [thread for thread in threading.enumerate() if thread.name == "outbox-listener"]


@contextmanager
def relaying(database, engine=None, **settings):
    """A relay that has looked once, and now waits for its poll in ten minutes."""
    sender = MemorySender()
    relay = Relay(database.settings(defaults=NO_POLL, **settings), engine=engine or database.engine, sender=sender)
    looks = []
    (rounds,) = relay._workers.values()
    once = rounds.round

    def look():
        turn = once()
        looks.append(turn)
        return turn

    rounds.round = look
    relay.looks = looks
    with relay.background():
        eventually(lambda: looks and (relay.wakeup.hears or relay.wakeup._listener is None))
        yield relay, sender


@contextmanager
def waking(database, engine=None, **settings):
    made = PublisherSettings(database_url=database.url, **settings)
    wakeup = Wakeup(engine or database.engine, made)
    bell = wakeup.bell()
    wakeup.start()
    try:
        yield wakeup, bell
    finally:
        wakeup.stop()


@pytest.mark.parametrize("form", ["postgresql", "psycopg-async", "asyncpg", "raw-psycopg", "raw-psycopg-async", "django-postgresql",
                                  "sqlite", "aiosqlite", "mariadb", "asyncmy", "django-sqlite"])  # fmt: skip
def test_an_event_is_sent_without_waiting_for_the_poll(form, request):
    database = request.getfixturevalue(f"{database_behind(form)}_outbox")
    shop = open_shop(form, database)
    with relaying(database) as (_, sender):
        for number in range(1, 4):
            with shop.begin():
                shop.take(number)
            if form.startswith("raw"):
                shop.run(shop.outbox.wake()) if isinstance(shop, AsyncShop) else shop.outbox.wake()
            if isinstance(shop, AsyncShop):
                shop.run(asyncio.sleep(20 * QUIET))
            eventually(lambda count=number: len(sender.sent) == count)
    shop.close()


def test_every_relay_is_woken(postgresql_outbox):
    with relaying(postgresql_outbox) as (one, _), relaying(postgresql_outbox) as (other, _):
        before = len(one.looks), len(other.looks)
        postgresql_outbox.publish(1)
        eventually(lambda: len(one.looks) > before[0] and len(other.looks) > before[1])
        eventually(lambda: postgresql_outbox.statuses() == {"PROCESSED": 1})


def test_a_relay_that_waits_for_the_lock_is_not_woken(postgresql_outbox):
    with (
        relaying(postgresql_outbox, lock="database") as (_, sender),
        relaying(postgresql_outbox, lock="database") as (waiting, _),
    ):
        before = len(waiting.looks)
        for count in range(1, 6):
            postgresql_outbox.publish(1)
            eventually(lambda count=count: len(sender.sent) == count)
        assert len(waiting.looks) == before == 1


def test_with_wakeup_poll_there_is_neither_thread_nor_connection(outbox_database):
    before = listeners()
    with relaying(outbox_database, wakeup="poll") as (relay, sender):
        outbox_database.publish(1)
        assert listeners() == before
        relay.wakeup._told_here()  # nobody does: it answers to nobody
        eventually(lambda: len(sender.sent) == 1)


def test_a_woken_relay_looks_again_for_a_moment_only(postgresql_outbox):
    with (
        relaying(postgresql_outbox) as (relay, _),
        psycopg.connect(libpq(postgresql_outbox.url), autocommit=True) as other,
    ):
        eventually(lambda: len(relay.looks) >= 6)  # the ring after LISTEN, and four times more
        before = len(relay.looks)
        other.execute("SELECT pg_notify(%s, '')", [CHANNEL])

        eventually(lambda: len(relay.looks) == before + 5)
        other.execute("SELECT pg_notify(%s, %s)", [CHANNEL, listener.TEST + "of another relay"])
        other.execute("SELECT pg_notify(%s, '')", [CHANNEL])
        eventually(lambda: len(relay.looks) == before + 10)


# The listener.


def test_hints_ring_every_bell_and_none_is_missed(postgresql_outbox):
    with (
        waking(postgresql_outbox) as (wakeup, bell),
        psycopg.connect(libpq(postgresql_outbox.url), autocommit=True) as other,
    ):
        second = wakeup.bell()
        assert bell.wait(SystemClock(), 20, never)  # for what was told before it listened
        for _ in range(300):
            other.execute("SELECT pg_notify(%s, '')", [CHANNEL])
            assert bell.wait(SystemClock(), 20, never)
        assert second.heard(20)
        assert not bell.heard(0)


def test_it_comes_back_when_its_connection_is_cut_and_says_so_once(postgresql_outbox, caplog, monkeypatch):
    caplog.set_level(logging.INFO, "outbox_publisher")
    with (
        waking(postgresql_outbox) as (wakeup, bell),
        psycopg.connect(libpq(postgresql_outbox.url), autocommit=True) as other,
    ):
        assert bell.wait(SystemClock(), 20, never)

        other.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%'"
        )

        assert bell.wait(SystemClock(), 20, never)  # something may have been told in between
        assert wakeup.hears
        other.execute("SELECT pg_notify(%s, '')", [CHANNEL])
        assert bell.wait(SystemClock(), 20, never)
    told = [record.message for record in caplog.records]
    assert sum("until the connection is back" in line for line in told) == 1
    assert sum("again" in line for line in told) == 1


def test_a_database_that_is_away_for_long_is_told_of_once(own_server, caplog):
    server = own_server("postgresql", behind_proxy=True)
    engine = make_engine(server.url, "outbox-publisher")
    with waking(server, engine) as (wakeup, bell):
        assert bell.wait(SystemClock(), 20, never)
        server.proxy.cut()
        eventually(lambda: wakeup._listener._failures >= 4)
        assert not wakeup.hears
        server.proxy.heal()
        assert bell.wait(SystemClock(), 60, never)
    engine.dispose()

    assert sum("until the connection is back" in record.message for record in caplog.records) == 1


def test_a_connection_that_the_network_forgot_is_found_out(own_server, monkeypatch):
    monkeypatch.setattr(listener, "ALIVE_AFTER", 0.2)
    monkeypatch.setattr(listener, "TEST_SECONDS", 1.0)
    server = own_server("postgresql", behind_proxy=True)
    engine = make_engine(server.url, "outbox-publisher")
    with waking(server, engine) as (wakeup, bell):
        assert bell.wait(SystemClock(), 20, never)
        server.pause()
        eventually(lambda: not wakeup.hears)
        server.resume()
        assert bell.wait(SystemClock(), 60, never)
    engine.dispose()


@pytest.mark.parametrize("times", [20, pytest.param(100, marks=pytest.mark.full)])
def test_starts_and_stops_leave_nothing_behind(postgresql_outbox, times):
    sessions = text(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    before = listeners()
    for number in range(times):
        with waking(postgresql_outbox) as (_, bell):
            if number % 2:
                assert bell.wait(SystemClock(), 20, never)

    assert set(listeners()) <= set(before)
    with postgresql_outbox.engine.connect() as connection:
        eventually(lambda: connection.execute(sessions).scalar_one() == 0)


def test_a_relay_with_a_pool_of_one_listens_beside_it(postgresql_outbox):
    engine = create_engine(
        postgresql_outbox.url, pool_size=1, max_overflow=0, pool_timeout=5, isolation_level="READ COMMITTED"
    )
    with waking(postgresql_outbox, engine) as (_, bell), engine.connect():
        assert bell.wait(SystemClock(), 20, never)
    engine.dispose()


def test_another_driver_is_told_and_polls(postgresql_outbox, caplog, monkeypatch):
    monkeypatch.setattr(type(postgresql_outbox.engine.dialect), "driver", "psycopg2")
    with waking(postgresql_outbox) as (wakeup, bell):
        assert not wakeup.hears
        Outbox(postgresql_outbox.settings()).wake()
        assert bell.wait(SystemClock(), 20, never)  # of this process, all the same
    assert sum("cannot wait for hints" in record.message for record in caplog.records) == 1


def test_the_relays_own_statements_carry_no_listen(postgresql_outbox):
    sent = []

    @event.listens_for(postgresql_outbox.engine, "before_cursor_execute")
    def _listen(_connection, _cursor, statement, *_):
        sent.append(statement)

    with relaying(postgresql_outbox) as (_, sender):
        postgresql_outbox.publish(1)
        eventually(lambda: len(sender.sent) == 1)
    assert not [statement for statement in sent if "LISTEN" in statement or "notify" in statement]
