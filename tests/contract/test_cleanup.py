"""Delivered events go when their time is over, a bounded batch at a time, one cleaner at a time, and nothing else goes."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import event, select, update

from outbox_publisher import Relay, Turn
from outbox_publisher.senders import MemorySender, SendResult
from outbox_shared.cleanup import Cleanup
from outbox_shared.clock import SystemClock
from outbox_shared.conflicts import Transactions
from outbox_shared.database import make_engine
from outbox_shared.errors import OutboxError
from outbox_shared.lease import Lease
from outbox_shared.settings import CleanUpSettings
from outbox_shared.sqltypes import wall_time_plus
from outbox_shared.state import RELAY
from tests.clocks import HandHeldClock
from tests.consuming import eventually


def deliver(database, count):
    database.publish(count)
    database.relay().run_once()
    assert database.statuses()["PROCESSED"] >= count


def age(database, seconds, *keys):
    """As if rows had been delivered so long ago: all of them, or those with these keys."""
    events = database.store.tables.events
    change = update(events).where(events.c.status != "PENDING").values(processed_at=wall_time_plus(-float(seconds)))
    with database.engine.begin() as connection:
        connection.execute(change.where(events.c.key.in_(keys)) if keys else change)


def hold_lease(database, holder="another", seconds=30.0, name="cleanup"):
    with database.engine.begin() as connection:
        assert database.store.state.take_lease(connection, name, holder, seconds)


def test_delivered_events_go_after_their_ttl_and_no_others(outbox_database):
    # given old and young delivered events, failed ones of any age, and one that waits
    outbox_database.publish(6)
    sender = MemorySender(
        answer=lambda one: {"key-4": SendResult.reject("no"), "key-5": SendResult.retry("later")}.get(one.key)
    )
    outbox_database.relay(sender, dlq={"enabled": False}).run_once()
    assert outbox_database.statuses() == {"PROCESSED": 4, "FAILED": 1, "PENDING": 1}
    age(outbox_database, 3700)
    age(outbox_database, 3500, "key-2")
    relay = outbox_database.relay()

    # when the duty runs; the ttl is an hour
    assert [relay.duties.cleanup.run_once(), relay.duties.cleanup.run_once()] == [3, 0]

    # then
    left = {row.key: row.status for row in outbox_database.events()}
    assert left == {"key-2": "PROCESSED", "key-4": "FAILED", "key-5": "PENDING"}


def test_rows_go_in_bounded_batches(outbox_database):
    deliver(outbox_database, 25)
    age(outbox_database, 7200)
    sizes = []

    @event.listens_for(outbox_database.engine, "commit")
    def _count(connection):
        events = outbox_database.store.tables.events
        sizes.append(len(connection.execute(select(events.c.id)).all()))

    gone = outbox_database.relay(clean_up={"batch-size": 10}).duties.cleanup.run_once()
    event.remove(outbox_database.engine, "commit", _count)

    assert gone == 25
    assert outbox_database.events() == []
    steps = [earlier - later for earlier, later in zip([25, *sizes], sizes, strict=False)]
    assert sorted(steps, reverse=True)[:3] == [10, 10, 5]


def test_a_duty_stops_after_a_while_so_that_others_get_their_turn(outbox_database):
    deliver(outbox_database, 10)
    age(outbox_database, 7200)
    clock = HandHeldClock()
    store = outbox_database.store

    def slowly(connection, ttl, limit):
        clock.sleep(0.6)
        return store.drop_processed(connection, ttl, limit)

    transactions = Transactions(outbox_database.engine, store, clock)
    lease = Lease(transactions.run, store.state, "cleanup", "me")
    cleanup = Cleanup("cleanup", transactions, store.has_processed, slowly, CleanUpSettings(batch_size=2), lease, clock)

    assert [cleanup.run_once() for _ in range(4)] == [4, 4, 2, 0]


def test_a_ttl_of_nothing_removes_a_row_when_it_is_settled(outbox_database):
    outbox_database.publish(4)
    sender = MemorySender(
        answer=lambda one: {"key-1": SendResult.reject("no"), "key-2": SendResult.retry("later")}.get(one.key)
    )

    turn = outbox_database.relay(sender, clean_up={"ttl": "0s"}).run_once()

    assert turn == Turn(claimed=4, delivered=2, rescheduled=1, buried=1)
    assert [(row.key, row.status) for row in outbox_database.events()] == [("key-2", "PENDING")]
    assert [letter.key for letter in outbox_database.dead_letters()] == ["key-1"]
    assert len(sender.sent) == 2
    assert outbox_database.claims() == 0


def test_a_relay_that_was_overtaken_removes_nothing(outbox_database):
    outbox_database.publish(1)
    others = outbox_database.relay(clean_up={"ttl": "0s"})

    def overtake(_event):
        with outbox_database.engine.begin() as connection:
            connection.execute(update(outbox_database.store.tables.claims).values(lease_until=wall_time_plus(-1.0)))
        others.duties.recovery.run_once()

    turn = outbox_database.relay(MemorySender(overtake), clean_up={"ttl": "0s"}).run_once()

    assert turn.fenced == 1
    assert outbox_database.statuses() == {"PENDING": 1}


@pytest.mark.parametrize("ttl", ["0s", "1ms"])
def test_without_clean_up_everything_is_kept(outbox_database, ttl):
    outbox_database.publish(3)
    settings = {"clean_up": {"enabled": False, "ttl": ttl, "fixed-delay": "10ms"}}
    relay = outbox_database.relay(defaults={"topic": "t", "fixed-delay": "10ms"}, **settings)

    with relay.background():
        eventually(lambda: outbox_database.statuses() == {"PROCESSED": 3})
        age(outbox_database, 7200)
        outbox_database.publish(1)
        eventually(lambda: outbox_database.statuses() == {"PROCESSED": 4})

    assert len(outbox_database.events()) == 4
    assert "cleanup" not in [entry.duty.name for entry in relay.duties._schedule()]


def test_a_running_relay_cleans_up_by_itself(outbox_database):
    deliver(outbox_database, 30)
    age(outbox_database, 7200)
    settings = {"clean_up": {"batch-size": 4, "fixed-delay": "50ms"}}

    with outbox_database.relay(**settings).background():
        eventually(lambda: outbox_database.events() == [])


def test_only_the_holder_of_the_lease_cleans(outbox_database):
    deliver(outbox_database, 3)
    age(outbox_database, 7200)
    relay = outbox_database.relay()
    hold_lease(outbox_database)

    assert relay.duties.cleanup.run_once() == 0
    assert len(outbox_database.events()) == 3

    hold_lease(outbox_database, seconds=-1.0)  # its holder has died, and the lease is over
    assert relay.duties.cleanup.run_once() == 3


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])  # SQLite has one writer at a time
@pytest.mark.timeout(30)
def test_whoever_stands_still_over_the_lease_holds_up_nobody(request, kind):
    # given somebody who took the lease before, and now stands still in the transaction that renews it
    database = request.getfixturevalue(f"{kind}_outbox")
    hold_lease(database, seconds=-1.0)
    with database.engine.begin() as connection:
        assert database.store.state.take_lease(connection, "cleanup", "another", 30.0)

        # when a relay comes for it, then it does not wait
        assert database.relay().duties.cleanup.run_once() == 0


@pytest.mark.parametrize("instances", [8])
def test_many_cleaners_at_once_remove_each_row_once_and_one_at_a_time(outbox_database, instances):
    # given instances with connections of their own, as processes have
    deliver(outbox_database, 200)
    age(outbox_database, 7200)
    deliver(outbox_database, 5)
    store = outbox_database.store
    working, most, lock = 0, 0, threading.Lock()

    def drop(connection, ttl, limit):
        nonlocal working, most
        with lock:
            working += 1
            most = max(most, working)
        try:
            return store.drop_processed(connection, ttl, limit)
        finally:
            with lock:
                working -= 1

    def clean(number):
        engine = make_engine(outbox_database.url, "outbox-publisher")
        transactions = Transactions(engine, store, SystemClock())
        lease = Lease(transactions.run, store.state, "cleanup", f"instance-{number}")
        cleanup = Cleanup(
            "cleanup", transactions, store.has_processed, drop, CleanUpSettings(batch_size=7), lease, SystemClock()
        )
        try:
            return cleanup.run_once() + cleanup.run_to_the_end()
        finally:
            engine.dispose()

    # when all of them clean
    with ThreadPoolExecutor(instances) as pool:
        gone = list(pool.map(clean, range(instances)))

    # then each old row went once, never by two at a time, and the lease is free again
    assert sum(gone) == 200
    assert most == 1
    assert outbox_database.statuses() == {"PROCESSED": 5}
    hold_lease(outbox_database)


def test_the_one_shot_command_cleans_to_the_end(outbox_database):
    deliver(outbox_database, 25)
    age(outbox_database, 7200)

    assert outbox_database.relay(clean_up={"batch-size": 4}).duties.cleanup.run_to_the_end() == 25

    assert outbox_database.events() == []


def test_the_one_shot_command_waits_for_its_turn_and_says_so_when_it_never_comes(outbox_database):
    deliver(outbox_database, 1)
    age(outbox_database, 7200)
    hold_lease(outbox_database, seconds=3600.0)
    clock = HandHeldClock()
    relay = Relay(outbox_database.settings(), engine=outbox_database.engine, sender=MemorySender(), clock=clock)

    with pytest.raises(OutboxError, match="another process is cleaning up"):
        relay.duties.cleanup.run_to_the_end()
    assert len(outbox_database.events()) == 1
    assert clock.elapsed >= 60

    clock.at(clock.elapsed + 5, lambda: hold_lease(outbox_database, seconds=-1.0))
    assert relay.duties.cleanup.run_to_the_end() == 1


def test_heartbeats_of_relays_that_are_long_gone_are_dropped(outbox_database):
    state = outbox_database.store.state
    with outbox_database.engine.begin() as connection:
        for name, seconds in {"gone": -90_000.0, "yesterday": -80_000.0, "living": 10.0}.items():
            state.put(connection, RELAY, name, seconds=seconds)
        state.put(connection, "pause", "type:order-created", seconds=-90_000.0)

    assert outbox_database.relay().duties.state_cleanup.run_once() == 1

    with outbox_database.engine.connect() as connection:
        assert [row.name for row in state.rows(connection, RELAY)] == ["living", "yesterday"]
        assert len(state.rows(connection, "pause")) == 1


def test_a_relay_that_stops_takes_its_heartbeat_along(outbox_database):
    def heartbeats():
        with outbox_database.engine.connect() as connection:
            return [row.name for row in outbox_database.store.state.rows(connection, RELAY)]

    relay = outbox_database.relay()
    with relay.background():
        eventually(lambda: heartbeats() == [relay.name])

    assert heartbeats() == []
