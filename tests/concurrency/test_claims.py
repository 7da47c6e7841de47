"""Several relays on one database: each row is one relay's, nobody waits for another's rows, and producers wait for nobody."""

import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from uuid import uuid4

import pytest
from sqlalchemy import create_engine, insert, text, update
from sqlalchemy.engine import Connection
from sqlalchemy.exc import OperationalError

from outbox_publisher.claims import Batch, RowClaims
from outbox_publisher.senders import MemorySender
from outbox_publisher.store import Buried, Delivered, Recovered, Rescheduled, Settlement, Wanted
from outbox_shared.sqltypes import wall_time_plus
from tests.fixtures import OutboxDatabase


@pytest.fixture(params=["postgresql", "mariadb"])
def server_database(request: pytest.FixtureRequest) -> OutboxDatabase:
    """A database with row locks: on SQLite writers follow each other anyway."""
    database: OutboxDatabase = request.getfixturevalue(f"{request.param}_outbox")
    return database


@contextmanager
def hasty(database: OutboxDatabase) -> Iterator[Connection]:
    """A transaction that fails at once, or within a second, where it would have to wait for another one's lock."""
    with database.engine.begin() as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(text("SET LOCAL lock_timeout = '1s'"))
            yield connection
            return
        connection.execute(text("SET SESSION innodb_lock_wait_timeout = 1"))
        yield connection
        connection.execute(text("SET SESSION innodb_lock_wait_timeout = DEFAULT"))


def claims_of(database: OutboxDatabase) -> RowClaims:
    return RowClaims(database.store, "relay", timedelta(seconds=30))


def claim(database: OutboxDatabase, limit: int) -> Batch:
    with database.engine.begin() as connection:
        batch = claims_of(database).begin_claim(connection, "order-created", Wanted(limit, 10_000_000), uuid4())()
    assert batch is not None
    return batch


def every_fate(batch: Batch) -> Settlement:
    """A third delivered, a third rescheduled, a third buried."""
    ids = [event.id for event in batch.events]
    return Settlement(
        [Delivered(one, 0, n) for n, one in enumerate(ids[0::3])],
        [Rescheduled(one, 1, 60.0, "timeout", maybe_sent=True) for one in ids[1::3]],
        [Buried(one, 1, "rejected", "too large", maybe_sent=False) for one in ids[2::3]],
    )


def test_relays_that_work_at_once_send_every_event_once(outbox_database: OutboxDatabase):
    # given 600 events, and more that are published while the relays work
    outbox_database.publish(600)
    senders = [MemorySender() for _ in range(4)]
    relays = [outbox_database.relay(sender, defaults={"topic": "t", "batch-size": 20}) for sender in senders]
    published = threading.Event()

    def produce() -> None:
        for _ in range(10):
            outbox_database.publish(20)
        published.set()

    def work(relay) -> Counter[str]:
        done: Counter[str] = Counter()
        idle = 0
        while idle < 3:
            last_look = published.is_set()
            turn = relay.run_once()
            done.update(claimed=turn.claimed, delivered=turn.delivered, fenced=turn.fenced)
            idle = idle + 1 if last_look and not turn.claimed else 0
        return done

    # when four relays drain them
    with ThreadPoolExecutor(5) as pool:
        producer = pool.submit(produce)
        totals = list(pool.map(work, relays))
        producer.result()

    # then each was sent once and settled by its sender, without a retry
    sent = [event.id for sender in senders for event in sender.sent]
    assert len(sent) == len(set(sent)) == 800
    assert sum(totals, Counter()) == {"claimed": 800, "delivered": 800}
    assert outbox_database.statuses() == {"PROCESSED": 800}
    assert {(row.attempts, row.lost_claims, row.maybe_sent) for row in outbox_database.events()} == {(0, 0, False)}
    assert outbox_database.claims() == 0


@pytest.mark.parametrize("batch_size", [3, 60])
def test_a_settle_waits_for_nobody_elses_rows(server_database: OutboxDatabase, batch_size: int):
    """Also in a table so short that a planner would rather read all of it: reading is locking on MariaDB."""
    server_database.publish(2 * batch_size)
    first, second = claim(server_database, batch_size), claim(server_database, batch_size)

    with server_database.engine.begin() as slow:
        assert server_database.store.settle(slow, first.token, every_fate(first)).changed == batch_size
        with hasty(server_database) as connection:
            assert server_database.store.settle(connection, second.token, every_fate(second)).changed == batch_size

    third = 2 * batch_size // 3
    assert server_database.statuses() == {"PROCESSED": third, "PENDING": third}
    assert len(server_database.dead_letters()) == third


@pytest.mark.parametrize("batch_size", [2, 50])
def test_a_claim_passes_rows_that_others_are_claiming_or_settling(server_database: OutboxDatabase, batch_size: int):
    ids = server_database.publish(4 * batch_size)
    settling = claim(server_database, batch_size)
    claims = claims_of(server_database)

    with server_database.engine.begin() as slow, server_database.engine.begin() as slow_too:
        server_database.store.settle(slow, settling.token, every_fate(settling))
        claiming = claims.begin_claim(slow_too, "order-created", Wanted(batch_size, 10_000_000), uuid4())()
        with hasty(server_database) as connection:
            found = claims.begin_claim(connection, "order-created", Wanted(4 * batch_size, 10_000_000), uuid4())()

    assert claiming is not None
    assert found is not None
    taken = [event.id for batch in (settling, claiming, found) for event in batch.events]
    # the row at the edge of a claim may be passed over: it is found by the next
    assert 4 * batch_size - 1 <= len(taken) == len(set(taken))
    assert set(taken) <= set(ids)


@pytest.mark.parametrize("batch_size", [3, 60])
def test_recovery_waits_for_nobody_elses_rows(server_database: OutboxDatabase, batch_size: int):
    # given a claim whose lease is over, and one that is just being settled
    server_database.publish(2 * batch_size)
    lost, living = claim(server_database, batch_size), claim(server_database, batch_size)
    claims = server_database.store.tables.claims
    with server_database.engine.begin() as connection:
        expired = update(claims).where(claims.c.token == lost.token).values(lease_until=wall_time_plus(-1.0))
        connection.execute(expired)

    with server_database.engine.begin() as slow:
        server_database.store.settle(slow, living.token, every_fate(living))
        with hasty(server_database) as connection:
            assert server_database.store.recover(connection, 100, 300.0) == Recovered(1, batch_size)


@pytest.mark.parametrize("waiting", [0, 5])
def test_producers_insert_while_a_claim_is_open(server_database: OutboxDatabase, waiting: int):
    """Also on an empty queue, where at MariaDB's default isolation the claim locks the gap that every new row falls into."""
    if waiting:
        server_database.publish(waiting)
    row = {"lane": 0, "topic": "t", "content_type": "x", "payload": b""}

    with server_database.engine.begin() as claiming:
        claims_of(server_database).begin_claim(claiming, "order-created", Wanted(100, 10_000_000), uuid4())()
        with hasty(server_database) as connection:
            for event_type in ("a", "order-created", "z"):
                connection.execute(
                    insert(server_database.store.tables.events), {"id": uuid4(), "event_type": event_type, **row}
                )

    assert len(server_database.events()) == waiting + 3


@pytest.mark.parametrize("batch_size", [3, 60])
def test_a_cleanup_stands_in_nobodys_way(server_database: OutboxDatabase, batch_size: int):
    # given rows whose time is over, rows that are claimed and rows that wait
    server_database.publish(3 * batch_size)
    done, claimed = claim(server_database, batch_size), claim(server_database, batch_size)
    events = server_database.store.tables.events
    with server_database.engine.begin() as connection:
        fate = Settlement([Delivered(event.id, 0, 0) for event in done.events])
        server_database.store.settle(connection, done.token, fate)
        connection.execute(
            update(events).where(events.c.status == "PROCESSED").values(processed_at=wall_time_plus(-7200.0))
        )

    # when a cleanup has deleted and not yet committed
    with server_database.engine.begin() as cleaning:
        assert server_database.store.drop_processed(cleaning, 3600.0, 2 * batch_size) == batch_size

        # then others publish, settle and claim as ever
        with hasty(server_database) as connection:
            row = {"lane": 0, "topic": "t", "content_type": "x", "payload": b""}
            for event_type in ("a", "order-created", "z"):
                connection.execute(insert(events), {"id": uuid4(), "event_type": event_type, **row})
        with hasty(server_database) as connection:
            fate = every_fate(claimed)
            assert server_database.store.settle(connection, claimed.token, fate).changed == batch_size
        with hasty(server_database) as connection:
            wanted = Wanted(2 * batch_size, 10_000_000)
            found = claims_of(server_database).begin_claim(connection, "order-created", wanted, uuid4())()
    assert found is not None
    assert len(found.events) >= batch_size


def test_the_trap_is_real_at_repeatable_read(mariadb_outbox: OutboxDatabase):
    """Why the relay refuses such sessions. If this fails one day, the refusal may go."""
    engine = create_engine(mariadb_outbox.url, isolation_level="REPEATABLE READ")
    row = {"id": uuid4(), "lane": 0, "event_type": "order-created", "topic": "t", "content_type": "x", "payload": b""}

    with engine.begin() as claiming:
        assert (
            claims_of(mariadb_outbox).begin_claim(claiming, "order-created", Wanted(100, 10_000_000), uuid4())() is None
        )
        with pytest.raises(OperationalError, match="1205"), hasty(mariadb_outbox) as connection:
            connection.execute(insert(mariadb_outbox.store.tables.events), row)

    engine.dispose()
