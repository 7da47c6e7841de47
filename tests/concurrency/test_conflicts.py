"""A transaction that the database breaks off for another one's sake is run again: no event is charged for it, no loop ends over it."""

import logging
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import create_engine, select, update
from sqlalchemy.engine import Engine
from sqlalchemy.exc import OperationalError

from outbox_publisher import Relay, Turn
from outbox_publisher.senders import MemorySender
from outbox_publisher.store import Delivered, Settlement, Wanted
from outbox_shared.clock import SystemClock
from outbox_shared.conflicts import RETRIES, Transactions
from tests.consuming import eventually, lock_waits
from tests.fixtures import OutboxDatabase

STEPS = {"claim": "INSERT", "settle": "DELETE"}
"""What each does to outbox_claims."""


@pytest.fixture(params=["postgresql", "mariadb"])
def server_database(request: pytest.FixtureRequest) -> OutboxDatabase:
    database: OutboxDatabase = request.getfixturevalue(f"{request.param}_outbox")
    return database


CONFLICTS = {
    "postgresql": ["40P01", "40001"],
    "mysql": ["1213", "1205"],
}


def break_off(engine: Engine, step: str, times: int, error: str) -> None:
    """Let the server itself answer the next `times` claims or settles with this error. A sequence counts, since it never rolls back."""
    if engine.dialect.name == "postgresql":
        statements = [
            f"""CREATE FUNCTION break_off() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                IF nextval('broken_off') <= {times} THEN RAISE EXCEPTION 'broken off' USING ERRCODE = '{error}'; END IF;
                RETURN coalesce(NEW, OLD); END $$""",
            f"CREATE TRIGGER b BEFORE {STEPS[step]} ON outbox_claims FOR EACH ROW EXECUTE FUNCTION break_off()",
        ]
    else:
        statements = [
            f"""CREATE TRIGGER b BEFORE {STEPS[step]} ON outbox_claims FOR EACH ROW
                IF NEXTVAL(broken_off) <= {times} THEN
                SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = {error}, MESSAGE_TEXT = 'broken off'; END IF"""
        ]
    with engine.begin() as connection:
        for statement in ("CREATE SEQUENCE broken_off", *statements):
            connection.exec_driver_sql(statement)


@pytest.mark.parametrize("which", [0, 1], ids=["deadlock", "other"])
@pytest.mark.parametrize("step", STEPS)
def test_a_conflict_is_passed_over_and_charged_to_nobody(server_database: OutboxDatabase, step: str, which: int):
    server_database.publish(3)
    break_off(server_database.engine, step, RETRIES, CONFLICTS[server_database.engine.dialect.name][which])
    sender = MemorySender()

    turn = server_database.relay(sender).run_once()

    assert turn == Turn(claimed=3, delivered=3)
    assert len(sender.sent) == 3
    assert {(row.status, row.attempts, row.lost_claims) for row in server_database.events()} == {("PROCESSED", 0, 0)}
    assert server_database.claims() == 0


def test_a_claim_that_meets_conflicts_without_end_lets_the_caller_know(server_database: OutboxDatabase):
    server_database.publish(3)
    break_off(server_database.engine, "claim", 1000, CONFLICTS[server_database.engine.dialect.name][0])

    with pytest.raises(OperationalError):
        server_database.relay().run_once()

    assert {(row.status, row.attempts) for row in server_database.events()} == {("PENDING", 0)}


def test_the_loop_outlives_more_conflicts_than_one_turn_endures(server_database: OutboxDatabase):
    server_database.publish(3)
    conflict = CONFLICTS[server_database.engine.dialect.name][0]
    break_off(server_database.engine, "claim", 2 * (RETRIES + 1), conflict)
    sender = MemorySender()
    settings = server_database.settings(defaults={"topic": "t", "fixed-delay": "10ms"})
    relay = Relay(settings, engine=server_database.engine, sender=sender)
    thread = threading.Thread(target=relay.run)

    thread.start()
    eventually(lambda: server_database.statuses() == {"PROCESSED": 3})
    relay.stop()
    thread.join(20)

    assert not thread.is_alive()
    assert len(sender.sent) == 3
    assert {row.attempts for row in server_database.events()} == {0}


def test_a_settle_that_loses_a_real_deadlock_still_settles_all(
    server_database: OutboxDatabase, caplog: pytest.LogCaptureFixture
):
    # given a batch of two, and a stranger's transaction that holds the second row and, by much more work, the better right to live
    caplog.set_level(logging.INFO, "outbox_shared.conflicts")
    store, engine = server_database.store, server_database.engine
    events = store.tables.events
    server_database.publish(300, "other")
    first, second = server_database.publish(2)
    with engine.begin() as connection:
        claimed = store.claim(
            connection,
            event_type="order-created",
            wanted=Wanted(2, 10_000),
            token=(token := first),
            relay="r",
            lease=30,
        )
    fate = Settlement([Delivered(event.id, 0, n) for n, event in enumerate(claimed)])
    transactions = Transactions(engine, store, SystemClock())

    with ThreadPoolExecutor(1) as pool:
        with engine.begin() as stranger:
            stranger.execute(update(events).where(events.c.event_type == "other").values(last_error="x"))
            stranger.execute(select(events.c.id).where(events.c.id == second).with_for_update())
            settling = pool.submit(transactions.run, lambda it: store.settle(it, token, fate).changed)
            eventually(lambda: lock_waits(engine) == 1)

            # when it asks for the first row, which the settle holds
            stranger.execute(select(events.c.id).where(events.c.id == first).with_for_update())

        # then the settle was broken off, and is done once the stranger has gone
        assert settling.result(20) == 2
    assert "is run again" in caplog.text
    assert server_database.statuses() == {"PENDING": 300, "PROCESSED": 2}


def test_an_engine_of_the_users_own_at_repeatable_read_drains_on_postgresql(postgresql_outbox: OutboxDatabase):
    """There a row that changed since the snapshot is a conflict and not just another's."""
    postgresql_outbox.publish(200)
    engine = create_engine(postgresql_outbox.url, isolation_level="REPEATABLE READ")
    senders = [MemorySender() for _ in range(4)]
    settings = postgresql_outbox.settings(defaults={"topic": "t", "batch-size": 10})
    relays = [Relay(settings, engine=engine, sender=sender) for sender in senders]

    def drain(relay: Relay) -> None:
        while relay.run_once().claimed:
            pass

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(drain, relays))
    drain(relays[0])

    sent = [event.id for sender in senders for event in sender.sent]
    assert len(sent) == len(set(sent)) == 200
    assert postgresql_outbox.statuses() == {"PROCESSED": 200}
    engine.dispose()


def test_a_deadlock_within_a_savepoint_is_one_too(mariadb_outbox: OutboxDatabase):
    # given somebody who has written much, and will want what we write first
    engine = mariadb_outbox.engine
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE things (id int PRIMARY KEY, n int)")
        connection.exec_driver_sql("INSERT INTO things SELECT seq, 0 FROM seq_1_to_100")
    ours, tries = threading.Event(), []

    def others() -> None:
        with engine.begin() as connection:
            connection.exec_driver_sql("UPDATE things SET n = n + 1 WHERE id > 1")
            assert ours.wait(20)
            connection.exec_driver_sql("UPDATE things SET n = n + 1 WHERE id = 1")

    def work(connection) -> None:
        tries.append(len(tries))
        connection.exec_driver_sql("UPDATE things SET n = n + 1 WHERE id = 1")
        ours.set()
        if len(tries) == 1:
            eventually(lambda: lock_waits(engine) == 1)
        with connection.begin_nested():
            connection.exec_driver_sql("UPDATE things SET n = n + 1 WHERE id = 2")

    # when we ask for its rows within a savepoint, and the server gives us up with savepoint and all
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(others)
        eventually(lambda: open_changes(engine) >= 99)
        Transactions(engine, mariadb_outbox.store, SystemClock()).run(work)
        other.result(20)

    # then we have begun again
    assert tries == [0, 1]
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT n FROM things WHERE id <= 2").all() == [(2,), (2,)]


def open_changes(engine: Engine) -> int:
    """Rows that open transactions have changed."""
    with engine.connect() as connection:
        found = "SELECT coalesce(max(trx_rows_modified), 0) FROM information_schema.innodb_trx"
        return connection.exec_driver_sql(found).scalar_one()
