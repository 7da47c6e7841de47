"""What MariaDB's planner and clock do with the relay's statements: measured by the server's own counters."""

from datetime import timedelta
from uuid import uuid4

import pytest
from sqlalchemy import Float, bindparam, create_engine, insert, select

from outbox_publisher import Outbox, Relay, Turn
from outbox_publisher.senders import MemorySender
from outbox_publisher.store import Delivered, Recovered, Rescheduled, Settlement, Wanted, store_for
from outbox_shared.database import make_engine
from outbox_shared.errors import ConfigurationError
from outbox_shared.ids import new_event_id
from outbox_shared.sqltypes import wall_time, wall_time_plus
from outbox_shared.tables import TableNames
from tests.backlogs import rows_read
from tests.fixtures import OutboxDatabase

BACKLOG = 20_000


def fill(database: OutboxDatabase, count: int, event_type: str, due_in: timedelta = timedelta(hours=-1)) -> None:
    """Rows that are due one microsecond after the other."""
    row = {"lane": 0, "event_type": event_type, "topic": "t", "content_type": "x", "payload": b"x" * 100}
    with database.engine.connect() as connection:
        first_due = connection.execute(select(wall_time())).scalar_one() + due_in
    due = (first_due + timedelta(microseconds=n) for n in range(count))
    with database.engine.begin() as connection:
        connection.execute(
            insert(database.store.tables.events),
            [{"id": new_event_id(), "next_retry_at": moment, **row} for moment in due],
        )


@pytest.fixture
def backlog(mariadb_outbox: OutboxDatabase) -> OutboxDatabase:
    """Many rows of type "a" that are due, many of type "c" that are due tomorrow, a few of "b" between them."""
    fill(mariadb_outbox, BACKLOG, "a")
    fill(mariadb_outbox, BACKLOG, "c", due_in=timedelta(days=1))
    fill(mariadb_outbox, 3, "b")
    return mariadb_outbox


def test_no_statement_reads_the_backlog(backlog: OutboxDatabase):
    store, token = backlog.store, uuid4()

    def claim(event_type: str, limit: int):
        return store.claim(
            connection, event_type=event_type, wanted=Wanted(limit, 10_000_000), token=token, relay="r", lease=30
        )

    with backlog.engine.begin() as connection:
        with rows_read(connection) as by_types:
            assert store.look(connection).due == ["a", "b"]
        with rows_read(connection) as by_small_type:
            small = claim("b", 500)
        with rows_read(connection) as by_delayed_type:
            assert claim("c", 500) == []
        token = uuid4()
        with rows_read(connection) as by_big_type:
            big = claim("a", 500)
        with rows_read(connection) as by_settle:
            settled = store.settle(connection, token, Settlement([Delivered(event.id, 0, 0) for event in big])).changed

    assert (len(small), len(big), settled) == (3, 500, 500)
    assert by_types[0] < 30
    assert by_small_type[0] < 20
    assert by_delayed_type[0] < 5
    assert by_big_type[0] < 500 * 3  # found once, changed once
    assert by_settle[0] < 500 * 8  # most of them are reads of the 500 rows that travelled


def test_recovery_reads_its_claim_and_not_the_backlog(backlog: OutboxDatabase):
    with backlog.engine.begin() as connection:
        lost = backlog.store.claim(
            connection, event_type="a", wanted=Wanted(10, 10_000_000), token=uuid4(), relay="r", lease=-1
        )

    with backlog.engine.begin() as connection, rows_read(connection) as read:
        assert backlog.store.recover(connection, 100, 300.0) == Recovered(1, len(lost))

    assert len(lost) == 10
    assert read[0] < 50


def test_times_have_microseconds_and_no_delay_is_no_time(mariadb_outbox: OutboxDatabase):
    def later(seconds: float | None):
        return wall_time_plus(bindparam(None, seconds, type_=Float))

    with mariadb_outbox.engine.connect() as connection:
        now, soon, before, never = connection.execute(
            select(wall_time(), later(1.25), later(-0.000001), later(None))
        ).one()

    assert soon - now == timedelta(seconds=1.25)
    assert now - before == timedelta(microseconds=1)
    assert never is None


def test_a_whole_batch_is_rescheduled_each_with_its_own_delay_and_words(mariadb_outbox: OutboxDatabase):
    words = ["plain", "\N{GRINNING FACE} naïve", "back\\slash \"quotes' \n\t\x01 %s :name", "x" * 2000, None]
    delays = [0.5, 3600.25, None, 259_200.654321, 0.000001]
    ids = mariadb_outbox.publish(5)
    token = uuid4()
    with mariadb_outbox.engine.begin() as connection:
        mariadb_outbox.store.claim(
            connection, event_type="order-created", wanted=Wanted(5, 10_000_000), token=token, relay="r", lease=30
        )
    later = [
        Rescheduled(one, n, delay, error, maybe_sent=n == 3)
        for n, (one, delay, error) in enumerate(zip(ids, delays, words, strict=True))
    ]

    with mariadb_outbox.engine.begin() as connection:
        mariadb_outbox.store.settle(connection, token, Settlement(rescheduled=later))
        now = connection.execute(select(wall_time())).scalar_one()

    rows = mariadb_outbox.events()
    assert [row.last_error for row in rows] == words
    assert [(row.attempts, row.maybe_sent) for row in rows] == [(n, n == 3) for n in range(5)]
    assert rows[2].next_retry_at == rows[2].created_at
    for row, delay in zip(rows, delays, strict=True):
        if delay is not None:
            assert timedelta(0) <= now + timedelta(seconds=delay) - row.next_retry_at < timedelta(seconds=5)


def test_a_session_at_repeatable_read_is_refused_with_the_line_to_write(mariadb_outbox: OutboxDatabase):
    engine = create_engine(mariadb_outbox.url)  # the server's default

    with pytest.raises(ConfigurationError, match=r'create_engine\(…, isolation_level="READ COMMITTED"\)'):
        Relay(mariadb_outbox.settings(), engine=engine, sender=MemorySender())

    engine.dispose()


@pytest.mark.parametrize("scheme", ["mysql+pymysql", "mysql", "mariadb"])
def test_a_relay_is_made_of_a_url_and_drains(mariadb_outbox: OutboxDatabase, scheme: str):
    # given a service with an engine of its own, at the server's default isolation
    url = mariadb_outbox.url.replace("mysql+pymysql", scheme)
    settings = mariadb_outbox.settings(database_url=url)
    engine = create_engine(mariadb_outbox.url)
    outbox, sender = Outbox(settings), MemorySender()
    with engine.begin() as connection:
        ids = [outbox.publish(connection, "order-created", {"n": n}, key=n).id for n in range(5)]

    # when a relay is given nothing but the settings
    relay = Relay(settings, sender=sender)
    turn = relay.run_once()
    relay.close()

    # then it finds, sends and settles them
    assert turn == Turn(claimed=5, delivered=5)
    assert [event.id for event in sender.sent] == ids
    assert mariadb_outbox.statuses() == {"PROCESSED": 5}
    engine.dispose()


def test_both_names_of_the_dialect_have_the_store(mariadb_outbox: OutboxDatabase):
    made = make_engine(mariadb_outbox.url.replace("mysql+pymysql", "mariadb"), "outbox-publisher")

    for dialect in (made.dialect.name, "mysql", "mariadb"):
        store = store_for(dialect, TableNames())
        with made.begin() as connection:
            assert store.look(connection).due == []
            assert store.recover(connection, 10, 300.0) == Recovered()

    made.dispose()
