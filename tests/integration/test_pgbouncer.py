"""Behind pgbouncer in transaction mode nobody hears anything: publishing and relaying go on, and it is said once."""

import logging

import psycopg
import pytest
from sqlalchemy import create_engine
from sqlalchemy.engine import make_url

from outbox_publisher import Outbox, Relay
from outbox_publisher.relay import listener
from outbox_publisher.senders import MemorySender
from tests.consuming import eventually
from tests.hints import libpq, listening, notifiers


@pytest.fixture
def pooled_url(own_server, postgresql_server, postgresql_outbox):
    server = own_server("pgbouncer", upstream=postgresql_server)
    return make_url(postgresql_outbox.url).set(host="127.0.0.1", port=server.port, username="postgres", query={})


@pytest.fixture
def pooled(pooled_url):
    """An engine that leads to the test's database through pgbouncer."""
    engine = create_engine(
        pooled_url, connect_args={"prepare_threshold": None}
    )  # prepared statements would belong to strangers
    yield engine
    engine.dispose()


def test_it_is_a_pool_of_transactions(pooled):
    with psycopg.connect(libpq(pooled.url.render_as_string(hide_password=False)), autocommit=True) as connection:
        assert connection.execute("SELECT pg_backend_pid()").fetchone() != (connection.info.backend_pid,)


def test_a_relay_says_once_that_it_hears_nothing_and_polls(pooled, postgresql_outbox, caplog, monkeypatch):
    caplog.set_level(logging.INFO, "outbox_publisher")
    monkeypatch.setattr(listener, "TEST_SECONDS", 1.0)
    sender = MemorySender()
    settings = postgresql_outbox.settings(defaults={"topic": "t", "fixed-delay": "50ms"})
    relay = Relay(settings, engine=pooled, sender=sender)
    with relay.background():
        eventually(lambda: any("hears no hints" in record.message for record in caplog.records))
        assert not relay.wakeup.hears

        with pooled.begin() as connection:
            Outbox(settings).publish(connection, "order-created", {})
        eventually(lambda: len(sender.sent) == 1)

    told = [record.message for record in caplog.records if "polling" in record.message]
    assert len(told) == 1
    assert "every 50ms" in told[0]
    with postgresql_outbox.engine.connect() as connection:  # no connection of the pool goes on listening for others
        asked = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%%'"
        assert connection.exec_driver_sql(asked).scalar_one() == 0


def test_a_publisher_behind_it_wakes_relays_that_are_not(pooled, postgresql_outbox):
    before = notifiers()
    outbox = Outbox(postgresql_outbox.settings())
    with listening(postgresql_outbox) as ear:
        for number in range(1, 21):
            with pooled.begin() as connection:
                outbox.publish(connection, "order-created", {})
            eventually(lambda count=number: ear.drain()[-1:] == [count])
    with pooled.connect() as connection:  # and what the hint set for its own transaction is nobody else's
        assert connection.exec_driver_sql("SHOW synchronous_commit").scalar_one() == "on"
    pooled.dispose()
    assert set(notifiers()) <= set(before)


def test_relays_with_an_engine_of_their_own_send_everything_once_through_it(pooled_url, postgresql_outbox):
    # given relays whose transactions leave in one write, and meet in the same few sessions of the server
    url = pooled_url.update_query_dict({"prepare_threshold": "none"}).render_as_string(hide_password=False)
    given = {"defaults": {"topic": "t", "batch-size": 20, "fixed-delay": "50ms"}, "database_url": url, "wakeup": "poll"}
    published = postgresql_outbox.publish(500)
    senders = [MemorySender(), MemorySender()]
    first, second = (Relay(postgresql_outbox.settings(**given), sender=sender) for sender in senders)

    with first.background(), second.background():
        eventually(lambda: postgresql_outbox.statuses() == {"PROCESSED": len(published)})

    assert sorted(event.id for sender in senders for event in sender.sent) == sorted(published)
    assert postgresql_outbox.claims() == 0
