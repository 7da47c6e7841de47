"""What becomes of claims whose relay died or is too slow, of rows that kill relays, and who gets a turn: on every database."""

from collections import Counter

import pytest
from sqlalchemy import delete, select, update
from sqlalchemy.exc import OperationalError

from outbox_publisher import Relay, Turn
from outbox_publisher.senders import MemorySender, SendResult
from outbox_shared.sqltypes import wall_time_plus
from outbox_shared.state import RELAY, SUSPECTS
from tests.clocks import HandHeldClock, expire_leases, make_everything_due


class Killed(BaseException):
    """A process that dies runs nothing any more, not even an `except Exception`."""


class DeadlySender(MemorySender):
    """Its process dies over some events: all of them, or those with this key. `batches` are the keys that it was given."""

    def __init__(self, poison=None):
        super().__init__()
        self.poison = poison
        self.batches = []

    def send(self, events, deadline):
        keys = [event.key for event in events]
        self.batches.append(keys)
        if self.poison is None or self.poison in keys:
            raise Killed
        return super().send(events, deadline)


def die_over_a_batch(database, sender=None, **settings):
    """A relay that claims and is never heard of again; returns it."""
    relay = database.relay(sender or DeadlySender(), **settings)
    with pytest.raises(Killed):
        relay.run_once()
    return relay


def make_suspects(database, keys, lost=1):
    events = database.store.tables.events
    with database.engine.begin() as connection:
        connection.execute(update(events).where(events.c.key.in_(keys)).values(lost_claims=lost))
        database.store.state.put(connection, SUSPECTS, "order-created")


def suspect_types(database):
    with database.engine.connect() as connection:
        return [row.name for row in database.store.state.rows(connection, SUSPECTS)]


# Claims whose relay did not finish.


def test_rows_of_a_dead_relay_come_back_uncharged_and_the_lost_claim_is_counted(outbox_database):
    outbox_database.publish(3)
    die_over_a_batch(outbox_database)
    sender = MemorySender()
    successor = outbox_database.relay(sender)
    assert successor.duties.recovery.run_once() == 0  # not before the lease is over
    assert successor.run_once() == Turn()

    expire_leases(outbox_database)
    assert successor.duties.recovery.run_once() == 3

    rows = [(row.status, row.attempts, row.lost_claims, row.maybe_sent) for row in outbox_database.events()]
    assert rows == [("PENDING", 0, 1, True)] * 3
    assert {row.claim_token for row in outbox_database.events()} == {None}
    assert outbox_database.claims() == 0
    while successor.run_once().claimed:
        pass
    assert outbox_database.statuses() == {"PROCESSED": 3}
    assert sorted(event.key for event in sender.sent) == ["key-0", "key-1", "key-2"]


def test_more_claims_than_one_transaction_takes_all_come_back(outbox_database):
    outbox_database.publish(30)
    for _ in range(30):
        die_over_a_batch(outbox_database, defaults={"topic": "t", "batch-size": 1})
    expire_leases(outbox_database)

    relay = outbox_database.relay(**{"stuck-recovery": {"batch-size": 7}})

    assert relay.duties.recovery.run_once() == 30
    assert (outbox_database.statuses(), outbox_database.claims()) == ({"PENDING": 30}, 0)


@pytest.mark.parametrize(("promise", "lost"), [(15.0, 0), (-2.0, 1)])
def test_a_lost_claim_counts_only_where_its_relay_has_not_been_heard_of_since(outbox_database, promise, lost):
    outbox_database.publish(3)
    relay = die_over_a_batch(outbox_database)
    expire_leases(outbox_database)
    with outbox_database.engine.begin() as connection:
        outbox_database.store.state.put(connection, RELAY, relay.name, seconds=promise)

    assert outbox_database.relay().duties.recovery.run_once() == 3

    rows = [(row.status, row.attempts, row.lost_claims, row.maybe_sent) for row in outbox_database.events()]
    assert rows == [("PENDING", 0, lost, True)] * 3
    assert suspect_types(outbox_database) == (["order-created"] if lost else [])


def test_a_dead_relays_last_heartbeat_is_over_before_its_last_lease(outbox_database):
    """Else its kill would not be counted: the beat and the claim at the same moment are the worst case."""
    outbox_database.publish(1)
    relay = outbox_database.relay(DeadlySender())
    with pytest.raises(Killed):
        relay.run_once()
    relay.duties.heartbeat.run_once()

    state, claims = outbox_database.store.tables.state, outbox_database.store.tables.claims
    with outbox_database.engine.connect() as connection:
        until = connection.execute(select(state.c.until).where(state.c.kind == RELAY)).scalar_one()
        lease_until = connection.execute(select(claims.c.lease_until)).scalar_one()
    assert until < lease_until


def test_a_heartbeat_keeps_a_long_batch_until_emergency_timeout_and_no_longer(outbox_database):
    # given a batch that takes long, while the lease that it began with is over
    outbox_database.publish(1)
    clock = HandHeldClock()
    seen = []

    def take_long(_event):
        for elapsed in (0.0, 119.0, 2.0):  # emergency-timeout is 120 s
            clock.now += elapsed
            expire_leases(outbox_database)
            renewed = relay.duties.heartbeat.run_once()
            seen.append((renewed, other.duties.recovery.run_once()))

    # when its relay beats, and another one recovers
    other = outbox_database.relay()
    relay = Relay(
        outbox_database.settings(), engine=outbox_database.engine, sender=MemorySender(take_long), clock=clock
    )
    turn = relay.run_once()

    # then it is renewed, and nobody takes it, until it has had emergency-timeout; a living relay has killed nobody
    assert seen == [(1, 0), (1, 0), (0, 1)]
    assert turn.fenced == 1
    assert [(row.status, row.lost_claims) for row in outbox_database.events()] == [("PENDING", 0)]


def test_one_beat_renews_all_batches_of_the_relay_and_nobody_elses(outbox_database):
    outbox_database.publish(2, "mine")
    outbox_database.publish(2, "theirs")
    die_over_a_batch(outbox_database, events={"mine": {"initial-delay": "1h"}})
    renewed = []
    relay = outbox_database.relay(MemorySender(lambda _: renewed.append(relay.duties.heartbeat.run_once())))
    expire_leases(outbox_database)

    relay.run_once()

    assert renewed == [1, 1]
    assert outbox_database.relay().duties.recovery.run_once() == 2
    assert {row.event_type for row in outbox_database.events() if row.status == "PENDING"} == {"theirs"}


@pytest.mark.parametrize(("age", "back"), [(299.0, 0), (301.0, 2)])
def test_max_batch_processing_time_caps_everything(outbox_database, age, back):
    outbox_database.publish(2)
    die_over_a_batch(outbox_database)
    with outbox_database.engine.begin() as connection:  # a lease that is renewed for ever
        far = {"claimed_at": wall_time_plus(-age), "lease_until": wall_time_plus(20.0)}
        connection.execute(update(outbox_database.store.tables.claims).values(far))

    assert outbox_database.relay().duties.recovery.run_once() == back

    assert outbox_database.statuses() == ({"PENDING": 2} if back else {"IN_PROCESS": 2})


def test_a_living_relay_that_is_cut_off_at_the_cap_has_killed_nobody(outbox_database):
    outbox_database.publish(2)
    relay = die_over_a_batch(outbox_database)
    with outbox_database.engine.begin() as connection:
        far = {"claimed_at": wall_time_plus(-301.0), "lease_until": wall_time_plus(20.0)}
        connection.execute(update(outbox_database.store.tables.claims).values(far))
    relay.duties.heartbeat.run_once()

    assert outbox_database.relay().duties.recovery.run_once() == 2

    assert [(row.status, row.lost_claims) for row in outbox_database.events()] == [("PENDING", 0)] * 2


def test_rows_that_no_claim_knows_of_come_back(outbox_database):
    outbox_database.publish(4)
    die_over_a_batch(outbox_database, defaults={"topic": "t", "batch-size": 2})
    with outbox_database.engine.begin() as connection:
        connection.execute(delete(outbox_database.store.tables.claims))
    die_over_a_batch(outbox_database, defaults={"topic": "t", "batch-size": 2})
    relay = outbox_database.relay()
    assert relay.duties.recovery.run_once() == 0  # it goes by the claims

    assert relay.duties.orphans.run_once() == 2

    rows = {row.key: (row.status, row.attempts, row.lost_claims, row.maybe_sent) for row in outbox_database.events()}
    assert rows["key-0"] == rows["key-1"] == ("PENDING", 0, 0, True)
    assert rows["key-2"][0] == rows["key-3"][0] == "IN_PROCESS"  # a claim that is there is left alone


def test_one_relay_at_a_time_looks_for_orphans(outbox_database):
    first, second = outbox_database.relay(), outbox_database.relay()
    first.duties.orphans.run_once()
    outbox_database.publish(1)
    die_over_a_batch(outbox_database)
    with outbox_database.engine.begin() as connection:
        connection.execute(delete(outbox_database.store.tables.claims))

    assert [second.duties.orphans.run_once(), first.duties.orphans.run_once()] == [0, 1]


# Rows that kill their relays.


def test_a_row_that_kills_its_relay_is_found_and_takes_no_neighbour_along(outbox_database):
    # given 200 events, one of which kills whatever process sends it
    outbox_database.publish(200)
    told, sizes, deaths = [], [], 0
    settings = outbox_database.settings(defaults={"topic": "t", "batch-size": 128})

    # when relays start again and again
    for _ in range(100):
        sender = DeadlySender("key-13")
        relay = Relay(settings, engine=outbox_database.engine, sender=sender, on_dead_letter=told.extend)
        try:
            turn = relay.run_once()
        except Killed:
            deaths += 1
            expire_leases(outbox_database)
            relay.duties.recovery.run_once()
            turn = None
        sizes += [len(keys) for keys in sender.batches if "key-13" in keys]
        if turn == Turn() and outbox_database.statuses() == {"PROCESSED": 199}:
            break

    # then it killed five, in ever smaller company: a batch, an eighth, a 64th, and twice alone
    assert deaths == 5
    assert sizes == [128, 16, 2, 1, 1]

    # and it is a dead letter, told of once, and all the others are delivered
    (letter,) = outbox_database.dead_letters()
    assert (letter.key, letter.reason, letter.attempts, letter.maybe_sent) == ("key-13", "kills its relay", 0, True)
    assert "5 relays died" in letter.last_error
    assert [event.key for event in told] == ["key-13"]
    assert outbox_database.statuses() == {"PROCESSED": 199}


def test_without_dead_letters_such_a_row_fails_where_it_is(outbox_database):
    outbox_database.publish(1)
    make_suspects(outbox_database, ["key-0"], lost=4)
    die_over_a_batch(outbox_database, dlq={"enabled": False})
    expire_leases(outbox_database)
    told = []

    def relay(**settings):
        return Relay(outbox_database.settings(**settings), engine=outbox_database.engine, sender=MemorySender(),
                     on_dead_letter=told.append)  # fmt: skip

    relay(dlq={"enabled": False}).duties.recovery.run_once()

    assert outbox_database.statuses() == {"FAILED": 1}
    assert (outbox_database.dead_letters(), told) == ([], [])
    relay().duties.sweep.run_once()
    assert [len(events) for events in told] == [1]
    assert len(outbox_database.dead_letters()) == 1


def test_the_first_four_deaths_condemn_nobody(outbox_database):
    outbox_database.publish(1)

    for lost in range(1, 5):
        die_over_a_batch(outbox_database)
        expire_leases(outbox_database)
        outbox_database.relay().duties.recovery.run_once()
        assert [(row.status, row.lost_claims) for row in outbox_database.events()] == [("PENDING", lost)]

    assert outbox_database.relay().run_once().delivered == 1
    assert outbox_database.dead_letters() == []


def test_suspects_and_others_are_never_in_one_batch(outbox_database):
    outbox_database.publish(30)
    make_suspects(outbox_database, [f"key-{n}" for n in range(10)], lost=1)
    make_suspects(outbox_database, ["key-10", "key-11"], lost=2)
    sender = DeadlySender("nobody")
    relay = outbox_database.relay(sender, defaults={"topic": "t", "batch-size": 64})

    while relay.run_once().claimed:
        pass

    groups = [{0 if int(key[4:]) > 11 else 1 if int(key[4:]) < 10 else 2 for key in keys} for keys in sender.batches]
    assert all(len(group) == 1 for group in groups)
    assert outbox_database.statuses() == {"PROCESSED": 30}


def test_suspects_get_one_turn_in_four_and_nobody_starves(outbox_database):
    # given suspects that are older than many others
    outbox_database.publish(100)
    suspects = {f"key-{n}" for n in range(16)}
    make_suspects(outbox_database, suspects)
    sender = DeadlySender("nobody")
    relay = outbox_database.relay(sender, defaults={"topic": "t", "batch-size": 8})

    # when there is more than enough of both
    for _ in range(12):
        assert relay.run_once().claimed

    # then every fourth batch is one of suspects, an eighth as large
    kinds = ["suspect" if set(keys) <= suspects else "other" for keys in sender.batches]
    assert kinds == ["other", "other", "other", "suspect"] * 3
    assert [len(keys) for keys in sender.batches] == [8, 8, 8, 1] * 3

    # and when the others are through, suspects are sent one after the other
    while relay.run_once().claimed:
        pass
    assert outbox_database.statuses() == {"PROCESSED": 100}


def test_when_no_suspects_are_left_nobody_looks_for_them_any_more(outbox_database):
    """On MariaDB such a look reads every open row."""
    # given a suspect that has to wait, beside others that never end
    outbox_database.publish(1, key="suspect")
    make_suspects(outbox_database, ["suspect"])
    clock = HandHeldClock()
    answers = [SendResult.retry("timeout")]
    sender = MemorySender(answer=lambda event: answers.pop() if event.key == "suspect" and answers else None)
    relay = Relay(outbox_database.settings(), engine=outbox_database.engine, sender=sender, clock=clock)

    def go_on():
        for _ in range(8):
            outbox_database.publish(1)
            relay.run_once()
            clock.sleep(5.0)

    # when it waits
    relay.run_once()
    go_on()
    assert suspect_types(outbox_database) == ["order-created"]

    # and then is through
    make_everything_due(outbox_database)
    go_on()

    # then the type is as any other again
    assert outbox_database.statuses() == {"PROCESSED": 17}
    assert suspect_types(outbox_database) == []


# Who gets a turn, and how much of it.


def test_a_batch_is_bounded_in_bytes(outbox_database):
    outbox_database.publish(10, headers={})
    with outbox_database.engine.begin() as connection:
        connection.execute(update(outbox_database.store.tables.events).values(payload=b"x" * 1000))
    sender = DeadlySender("nobody")
    relay = outbox_database.relay(sender, max_batch_bytes=3000)

    while relay.run_once().claimed:
        pass

    assert [len(keys) for keys in sender.batches] == [3, 3, 3, 1]
    assert sender.batches[0] == ["key-0", "key-1", "key-2"]


def test_an_oversized_row_is_still_sent_and_alone_where_it_is_first(outbox_database):
    outbox_database.publish(5)
    events = outbox_database.store.tables.events
    with outbox_database.engine.begin() as connection:
        connection.execute(update(events).values(payload=b"x" * 1000))
        connection.execute(update(events).where(events.c.key == "key-0").values(payload=b"x" * 100_000))
    sender = DeadlySender("nobody")
    relay = outbox_database.relay(sender, max_batch_bytes=4000)

    while relay.run_once().claimed:
        pass

    assert sender.batches == [["key-0"], ["key-1", "key-2", "key-3", "key-4"]]
    assert [len(event.payload) for event in sender.sent] == [100_000, 1000, 1000, 1000, 1000]


def test_a_batch_overshoots_its_bytes_by_no_more_than_its_last_row(outbox_database):
    outbox_database.publish(6)
    events = outbox_database.store.tables.events
    sizes = {"key-0": 10, "key-1": 50_000, "key-2": 10, "key-3": 3_000, "key-4": 900, "key-5": 200}
    with outbox_database.engine.begin() as connection:
        for key, size in sizes.items():
            connection.execute(update(events).where(events.c.key == key).values(payload=b"x" * size))
    sender = DeadlySender("nobody")
    relay = outbox_database.relay(sender, max_batch_bytes=4000)

    while relay.run_once().claimed:
        pass

    for keys in sender.batches:
        assert sum(sizes[key] for key in keys[:-1]) < 4000
    assert outbox_database.statuses() == {"PROCESSED": 6}


def test_each_type_keeps_its_own_fixed_delay_and_holds_up_no_other(outbox_database):
    # given a type that is looked at every 10 s, and one that is looked at always
    clock = HandHeldClock()
    sender = MemorySender()
    settings = outbox_database.settings(events={"slow": {"fixed-delay": "10s"}, "fast": {}})
    relay = Relay(settings, engine=outbox_database.engine, sender=sender, clock=clock)
    sent_at = {"slow": [], "fast": []}

    # when both have something due all the time
    for _ in range(40):
        outbox_database.publish(1, "slow")
        outbox_database.publish(1, "fast")
        before = Counter(event.event_type for event in sender.sent)
        relay.run_once()
        for name, count in (Counter(event.event_type for event in sender.sent) - before).items():
            sent_at[name].append((round(clock.elapsed), count))
        clock.sleep(1.0)

    # then each is sent in its own time
    assert sent_at["fast"] == [(second, 1) for second in range(40)]
    assert sent_at["slow"] == [(0, 1), (10, 10), (20, 10), (30, 10)]


def test_a_type_waits_its_initial_delay_and_the_others_do_not(outbox_database):
    clock = HandHeldClock()
    sender = MemorySender()
    settings = outbox_database.settings(events={"late": {"initial-delay": "3s"}})
    relay = Relay(settings, engine=outbox_database.engine, sender=sender, clock=clock)
    outbox_database.publish(1, "late")
    outbox_database.publish(1, "prompt")

    relay.run_once()
    assert [event.event_type for event in sender.sent] == ["prompt"]
    clock.sleep(2.9)
    relay.run_once()
    assert len(sender.sent) == 1
    clock.sleep(0.2)
    relay.run_once()

    assert [event.event_type for event in sender.sent] == ["prompt", "late"]


# Rows without a topic.


def take_topics_away(database):
    with database.engine.begin() as connection:
        connection.execute(update(database.store.tables.events).values(topic=None))


def test_a_row_without_a_topic_and_of_an_unknown_type_waits_and_is_then_a_dead_letter(outbox_database):
    outbox_database.publish(1, "unknown")
    take_topics_away(outbox_database)
    clock = HandHeldClock()
    sender = MemorySender()
    relay = Relay(outbox_database.settings(defaults={}), engine=outbox_database.engine, sender=sender, clock=clock)

    for _ in range(10):
        assert relay.run_once() == Turn(claimed=1, rescheduled=1)
        assert [(row.status, row.attempts) for row in outbox_database.events()] == [("PENDING", 0)]
        make_everything_due(outbox_database)
        clock.sleep(0.99)
    clock.sleep(0.2)
    assert relay.run_once() == Turn(claimed=1, buried=1)

    assert sender.sent == []
    (letter,) = outbox_database.dead_letters()
    assert letter.reason == "rejected"
    assert "the settings name none for event type 'unknown'" in letter.last_error


def test_a_row_without_a_topic_is_sent_where_the_settings_name_one(outbox_database):
    outbox_database.publish(1, "known")
    take_topics_away(outbox_database)
    sender = MemorySender()

    outbox_database.relay(sender, defaults={}, events={"known": {"topic": "from-settings"}}).run_once()

    assert [event.topic for event in sender.sent] == ["from-settings"]
    assert outbox_database.statuses() == {"PROCESSED": 1}


def test_rows_without_a_topic_do_not_hide_that_the_broker_is_away(outbox_database):
    """They are refused by the relay itself: that says nothing about the broker."""
    outbox_database.publish(2)
    take_topics_away(outbox_database)
    outbox_database.publish(2, topic="orders")
    sender = MemorySender(answer=lambda _: SendResult.unavailable("connection refused"))
    sender.trouble = "connection refused"
    relay = Relay(
        outbox_database.settings(defaults={}), engine=outbox_database.engine, sender=sender, clock=HandHeldClock()
    )

    relay.run_once()
    make_everything_due(outbox_database)

    assert relay.run_once() == Turn(unavailable=True)


# After an outage of the database every lease is over, and every relay lives.


def test_a_relay_that_was_silent_itself_says_that_it_lives_before_it_takes_anything_away(outbox_database):
    # given a relay that could not say anything for longer than its promise, and leases that have ended meanwhile
    outbox_database.publish(3)
    die_over_a_batch(outbox_database)
    clock = HandHeldClock()
    relay = Relay(outbox_database.settings(), engine=outbox_database.engine, sender=MemorySender(), clock=clock)
    relay.duties.heartbeat.run_once()
    clock.sleep(16)
    expire_leases(outbox_database)
    with outbox_database.engine.begin() as connection:
        connection.execute(update(outbox_database.store.tables.state).values(until=wall_time_plus(-1.0)))

    # when it comes to recovery, then it speaks first
    assert relay.duties.recovery.run_once() == 0
    with outbox_database.engine.connect() as connection:
        assert [row.alive for row in outbox_database.store.state.rows(connection, RELAY) if row.name == relay.name] == [
            1
        ]

    # and only the next time takes what nobody has claimed to be alive for
    assert relay.duties.recovery.run_once() == 3


def test_a_claim_whose_answer_was_lost_is_put_back_by_its_relay_and_not_by_recovery(outbox_database, monkeypatch):
    # given a relay whose claim is committed, and that hears of an error instead
    outbox_database.publish(5)
    sender = MemorySender()
    relay = outbox_database.relay(sender)
    (rounds,) = relay._workers.values()
    transactions = rounds._flights._settler._transactions
    run = transactions.run

    def lose_the_answer(work, **options):
        run(work, **options)
        monkeypatch.undo()
        raise OperationalError("COMMIT", {}, Exception("the connection is gone"))

    monkeypatch.setattr(transactions, "run", lose_the_answer)
    with pytest.raises(OperationalError):
        relay.run_once()
    assert (outbox_database.statuses(), outbox_database.claims()) == ({"IN_PROCESS": 5}, 1)
    assert sender.sent == []

    # when it goes on, then it claims them anew at once, and nothing is known to have been sent before
    assert relay.run_once().claimed == 0  # what it looked at was still claimed
    assert relay.run_once() == Turn(claimed=5, delivered=5)
    rows = {(row.status, row.attempts, row.lost_claims, row.maybe_sent) for row in outbox_database.events()}
    assert rows == {("PROCESSED", 0, 0, False)}
    assert outbox_database.claims() == 0
