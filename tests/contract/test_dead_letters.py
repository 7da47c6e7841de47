"""Dead letters: how events get there, how people send them back, and what the database may refuse on the way."""

import logging
from datetime import timedelta

import pytest
from sqlalchemy import event, select, text, update
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from outbox_publisher import Outbox, Relay, Turn
from outbox_publisher.event import Event
from outbox_publisher.senders import MemorySender, SendResult
from outbox_shared.sqltypes import wall_time_plus
from tests.clocks import HandHeldClock, expire_leases, make_everything_due, time_of
from tests.consuming import eventually


def rejecting(*keys):
    return MemorySender(answer=lambda event: SendResult.reject("no good") if event.key in keys else None)


def fail_one(database, **options):
    """One event that has become a dead letter; returns its id."""
    (one,) = database.publish(1, **options)
    database.relay(rejecting(options.get("key", "key-0"))).run_once()
    return one


def set_letters(database, **values):
    """What a person does with SQL, or a command for them."""
    with database.engine.begin() as connection:
        connection.execute(update(database.store.tables.dead_letters).values(values))


def relay_with_hook(database, hook, sender=None, **settings):
    return Relay(database.settings(**settings), engine=database.engine, sender=sender, on_dead_letter=hook)


# Into the dead letters.


def test_an_exhausted_event_moves_whole_and_in_one_transaction(outbox_database):
    # given a hook that looks at the database, as anybody else would
    outbox_database.publish(1, headers={"tenant": "acme"}, aggregate_type="Order", correlation_id="c", version=2)
    (row,) = outbox_database.events()
    seen = []

    def look(events):
        letters = [letter.id for letter in outbox_database.dead_letters()]
        seen.append(([event.id for event in events], letters, outbox_database.events(), outbox_database.claims()))

    # when the event dies
    sender = MemorySender(answer=lambda _: SendResult.retry("timeout", maybe_sent=True))
    turn = relay_with_hook(outbox_database, look, sender, defaults={"topic": "t", "max-retries": 0}).run_once()

    # then by the time the hook is called it is in one place only
    assert turn == Turn(claimed=1, buried=1)
    assert seen == [([row.id], [row.id], [], 0)]
    (letter,) = outbox_database.dead_letters()
    same = ("id", "lane", "event_type", "topic", "key", "payload", "headers", "aggregate_type", "correlation_id")
    same += ("version", "created_at", "occurred_at", "content_type", "replays")
    assert [getattr(letter, name) for name in same] == [getattr(row, name) for name in same]
    assert (letter.dlq_status, letter.reason, letter.last_error) == ("MOVED", "retries exhausted", "timeout")
    assert (letter.attempts, letter.maybe_sent, letter.note) == (1, True, None)


def test_nobody_ever_sees_an_event_in_neither_or_both_tables(outbox_database):
    """Every commit of the relay is looked at: the move has no half."""
    outbox_database.publish(3)
    counts = []
    relay = outbox_database.relay(rejecting("key-0", "key-2"))

    @event.listens_for(outbox_database.engine, "commit")
    def _count(connection):
        events, letters = outbox_database.store.tables.events, outbox_database.store.tables.dead_letters
        in_events = set(connection.execute(select(events.c.id)).scalars())
        in_letters = set(connection.execute(select(letters.c.id)).scalars())
        counts.append((len(in_events | in_letters), len(in_events & in_letters)))

    relay.run_once()
    event.remove(outbox_database.engine, "commit", _count)

    assert set(counts) == {(3, 0)}
    assert len(outbox_database.dead_letters()) == 2


def test_an_id_that_is_a_dead_letter_already_is_overwritten(outbox_database):
    # given a letter that was dealt with, and whose event was published again under the same id
    one = fail_one(outbox_database)
    set_letters(outbox_database, dlq_status="RESOLVED", note="fixed by hand", moved_at=wall_time_plus(-9999.0))
    with Session(outbox_database.engine) as session, session.begin():
        Outbox(outbox_database.settings()).publish(session, "order-created", {"second": 2}, key="k", event_id=one)
    outbox_database.publish(5)

    # when it dies again
    turn = outbox_database.relay(rejecting("k")).run_once()

    # then the letter is the new one, and the others of its batch are not disturbed
    assert turn == Turn(claimed=6, delivered=5, buried=1)
    (letter,) = outbox_database.dead_letters()
    assert (letter.id, letter.dlq_status, letter.payload, letter.key) == (one, "MOVED", b'{"second":2}', "k")
    assert time_of(outbox_database) - letter.moved_at < timedelta(minutes=10)
    assert outbox_database.statuses() == {"PROCESSED": 5}


def test_without_dead_letters_a_failed_event_stays_where_it_is(outbox_database):
    told = []
    outbox_database.publish(2)
    relay = relay_with_hook(outbox_database, told.append, rejecting("key-0"), dlq={"enabled": False})

    assert relay.run_once() == Turn(claimed=2, delivered=1, buried=1)

    assert outbox_database.statuses() == {"FAILED": 1, "PROCESSED": 1}
    assert (outbox_database.dead_letters(), outbox_database.claims(), told) == ([], 0, [])
    make_everything_due(outbox_database)
    assert relay.run_once() == Turn()


def test_failed_events_move_when_dead_letters_are_switched_on_again(outbox_database):
    # given rows that failed without a place to go, more than one sweep takes
    told = []
    ids = outbox_database.publish(5)
    outbox_database.relay(rejecting(*(f"key-{n}" for n in range(5))), dlq={"enabled": False}).run_once()
    relay = relay_with_hook(outbox_database, told.append, MemorySender(), dlq={"batch-size": 3})

    # when relays with dead letters sweep
    swept = [relay.duties.sweep.run_once() for _ in range(3)]

    # then all are letters, and the hook was told of each once
    assert swept == [3, 2, 0]
    assert outbox_database.events() == []
    letters = outbox_database.dead_letters()
    assert {letter.id for letter in letters} == set(ids)
    assert {(letter.dlq_status, letter.reason, letter.last_error) for letter in letters} == {
        ("MOVED", "failed before", "no good")
    }
    assert sorted(event.id for events in told for event in events) == sorted(ids)
    assert all(isinstance(event, Event) for events in told for event in events)


def test_a_sweep_overwrites_an_older_letter(outbox_database):
    one = fail_one(outbox_database)
    with Session(outbox_database.engine) as session, session.begin():
        Outbox(outbox_database.settings()).publish(session, "order-created", {"second": 2}, key="k", event_id=one)
    outbox_database.relay(rejecting("k"), dlq={"enabled": False}).run_once()

    assert outbox_database.relay().duties.sweep.run_once() == 1

    (letter,) = outbox_database.dead_letters()
    assert (letter.id, letter.payload, letter.dlq_status) == (one, b'{"second":2}', "MOVED")
    assert outbox_database.events() == []


# The hook.


def test_the_hook_is_told_once_of_each_event_with_all_there_is_to_know(outbox_database):
    told = []
    outbox_database.publish(4, headers={"tenant": "acme"})
    relay = relay_with_hook(outbox_database, told.append, rejecting("key-1", "key-3"))

    for _ in range(3):
        relay.run_once()
    relay.duties.sweep.run_once()
    relay.duties.recovery.run_once()

    (events,) = told
    assert [(event.key, event.event_type, event.topic, event.headers) for event in events] == [
        ("key-1", "order-created", "orders", {"tenant": "acme"}),
        ("key-3", "order-created", "orders", {"tenant": "acme"}),
    ]


def test_a_hook_that_raises_is_logged_and_changes_nothing(outbox_database, caplog):
    def explode(_events):
        raise RuntimeError("bug in a hook")

    outbox_database.publish(3)
    relay = relay_with_hook(outbox_database, explode, rejecting("key-1"))

    assert relay.run_once() == Turn(claimed=3, delivered=2, buried=1)

    assert "the dead-letter hook failed on 1 events" in caplog.text
    assert "bug in a hook" in caplog.text
    assert [letter.key for letter in outbox_database.dead_letters()] == ["key-1"]
    assert outbox_database.statuses() == {"PROCESSED": 2}
    assert relay.run_once() == Turn()


def test_a_hook_that_raises_harms_neither_sweep_nor_recovery(outbox_database, caplog):
    def explode(_events):
        raise RuntimeError("bug in a hook")

    outbox_database.publish(1)
    outbox_database.relay(rejecting("key-0"), dlq={"enabled": False}).run_once()
    relay = relay_with_hook(outbox_database, explode, MemorySender())

    assert relay.duties.sweep.run_once() == 1

    assert len(outbox_database.dead_letters()) == 1
    assert "bug in a hook" in caplog.text


def test_where_no_hook_is_given_dead_letters_are_logged(outbox_database, caplog):
    with caplog.at_level(logging.ERROR):
        one = fail_one(outbox_database)

    assert f"dead letter: event {one} of type order-created for orders" in caplog.text


# Back out of them.


def test_a_letter_to_retry_comes_back_with_a_fresh_budget_and_is_delivered(outbox_database):
    # given a dead letter that somebody wants sent again
    one = fail_one(outbox_database, key="k", headers={"tenant": "acme"}, correlation_id="c", version=2)
    (before,) = outbox_database.dead_letters()
    assert before.attempts == 1
    set_letters(outbox_database, dlq_status="TO_RETRY", lost_claims=3)
    sender = MemorySender()
    relay = outbox_database.relay(sender)

    # when the duty runs once
    assert relay.duties.replays.run_once() == 1

    # then the event is as new, and due now
    assert outbox_database.dead_letters() == []
    (row,) = outbox_database.events()
    assert (row.id, row.status, row.attempts, row.lost_claims, row.replays) == (one, "PENDING", 0, 0, 1)
    assert (row.last_error, row.claim_token, row.processed_at, row.failed) == (None, None, None, False)
    assert row.next_retry_at <= time_of(outbox_database)
    same = ("lane", "event_type", "topic", "key", "payload", "headers", "correlation_id", "version", "content_type")
    same += ("created_at", "occurred_at", "maybe_sent")
    assert [getattr(row, name) for name in same] == [getattr(before, name) for name in same]

    # and it is delivered
    assert relay.run_once() == Turn(claimed=1, delivered=1)
    assert [(event.id, event.key, event.payload, event.headers) for event in sender.sent] == [
        (one, "k", b'{"n":0}', {"tenant": "acme"})
    ]


def test_an_event_may_be_sent_back_again_and_again(outbox_database):
    one = fail_one(outbox_database)
    relay = outbox_database.relay(rejecting("key-0"))

    for times in (1, 2, 3):
        set_letters(outbox_database, dlq_status="TO_RETRY")
        assert relay.duties.replays.run_once() == 1
        assert relay.run_once() == Turn(claimed=1, buried=1)
        (letter,) = outbox_database.dead_letters()
        assert (letter.id, letter.dlq_status, letter.replays, letter.attempts) == (one, "MOVED", times, 1)


def test_only_letters_to_retry_come_back(outbox_database):
    fail_one(outbox_database)
    relay = outbox_database.relay()

    for status in ("MOVED", "RESOLVED"):
        set_letters(outbox_database, dlq_status=status)
        assert relay.duties.replays.run_once() == 0

    assert (outbox_database.events(), len(outbox_database.dead_letters())) == ([], 1)


@pytest.mark.parametrize("note", [None, "asked Ann"])
def test_a_letter_whose_event_was_published_again_is_resolved(outbox_database, note):
    # given letters to retry, one of which was published again meanwhile
    outbox_database.publish(3)
    outbox_database.relay(rejecting("key-0", "key-1", "key-2")).run_once()
    set_letters(outbox_database, dlq_status="TO_RETRY", note=note)
    again = outbox_database.dead_letters()[1]
    with Session(outbox_database.engine) as session, session.begin():
        Outbox(outbox_database.settings()).publish(session, "order-created", {"again": 1}, event_id=again.id)

    # when they are taken back
    assert outbox_database.relay().duties.replays.run_once() == 3

    # then it is resolved, its new event is left alone, and the others are not held up
    (letter,) = outbox_database.dead_letters()
    assert (letter.id, letter.dlq_status) == (again.id, "RESOLVED")
    assert letter.note == ("published again" if note is None else "asked Ann; published again")
    rows = {row.id: (row.replays, row.payload) for row in outbox_database.events()}
    assert len(rows) == 3
    assert rows.pop(again.id) == (0, b'{"again":1}')
    assert [replays for replays, _ in rows.values()] == [1, 1]


def test_a_running_relay_brings_letters_back_by_itself(outbox_database):
    fail_one(outbox_database)
    set_letters(outbox_database, dlq_status="TO_RETRY")
    sender = MemorySender()
    settings = {"defaults": {"topic": "t", "fixed-delay": "20ms"}, "dlq": {"transfer-from-fixed-delay": "20ms"}}

    with outbox_database.relay(sender, **settings).background():
        eventually(lambda: outbox_database.statuses() == {"PROCESSED": 1})

    assert len(sender.sent) == 1
    assert outbox_database.dead_letters() == []


def test_resolved_letters_go_after_their_ttl_and_no_others(outbox_database):
    # given old letters of every status, and one that was resolved just now
    outbox_database.publish(4)
    outbox_database.relay(rejecting(*(f"key-{n}" for n in range(4)))).run_once()
    dead = outbox_database.store.tables.dead_letters
    long_ago = wall_time_plus(-31 * 86_400.0)
    with outbox_database.engine.begin() as connection:
        connection.execute(update(dead).values(moved_at=long_ago, status_at=long_ago))
        for key, values in {
            "key-1": {"dlq_status": "RESOLVED"},
            "key-2": {"dlq_status": "RESOLVED", "status_at": wall_time_plus(-29 * 86_400.0)},
            "key-3": {"dlq_status": "TO_RETRY"},
        }.items():
            connection.execute(update(dead).where(dead.c.key == key).values(values))

    assert outbox_database.relay().duties.dead_letter_cleanup.run_once() == 1

    left = sorted((letter.key, letter.dlq_status) for letter in outbox_database.dead_letters())
    assert left == [("key-0", "MOVED"), ("key-2", "RESOLVED"), ("key-3", "TO_RETRY")]
    assert outbox_database.relay(dlq={"clean-up": {"ttl": "1d"}}).duties.dead_letter_cleanup.run_once() == 1


# What the database itself refuses.

REFUSE = {
    "sqlite": [
        """CREATE TRIGGER refuse BEFORE {what} ON {table} WHEN NEW.key = 'key-1' AND {when}
        BEGIN SELECT RAISE(ABORT, 'refused by a trigger'); END"""
    ],
    "postgresql": [
        """CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF NEW.key = 'key-1' AND {when}
        THEN RAISE EXCEPTION 'refused by a trigger'; END IF; RETURN NEW; END $$""",
        "CREATE TRIGGER refuse BEFORE {what} ON {table} FOR EACH ROW EXECUTE FUNCTION refuse()",
    ],
    "mysql": [
        """CREATE TRIGGER refuse BEFORE {what} ON {table} FOR EACH ROW IF NEW.`key` = 'key-1' AND {when}
        THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'refused by a trigger'; END IF"""
    ],
}


def refuse(database, what, table, when):
    """Let the database refuse one row, key-1, whoever writes it."""
    with database.engine.begin() as connection:
        for statement in REFUSE[connection.dialect.name]:
            connection.exec_driver_sql(statement.format(what=what, table=table, when=when))


def refuse_no_more(database, table):
    with database.engine.begin() as connection:
        on_table = f" ON {table}" if connection.dialect.name == "postgresql" else ""
        connection.execute(text(f"DROP TRIGGER refuse{on_table}"))


def answer_each_kind(one):
    """Of six events two are delivered, two have to wait, and two are refused."""
    number = int(one.key.removeprefix("key-"))
    return [SendResult.retry("timeout"), None, SendResult.reject("no good")][number % 3]


@pytest.mark.parametrize(
    ("status", "answer"),
    [
        ("PENDING", SendResult.retry("timeout")),
        ("PROCESSED", None),
        ("FAILED", SendResult.reject("no good")),
    ],
)
def test_a_row_that_the_database_refuses_to_settle_holds_nobody_else(outbox_database, caplog, status, answer):
    # given a batch with every kind of outcome, and a database that refuses what shall become of one row
    outbox_database.publish(6)
    refuse(outbox_database, "UPDATE", "outbox_events", f"NEW.status = '{status}'")
    told = []
    sender = MemorySender(answer=lambda one: answer if one.key == "key-1" else answer_each_kind(one))
    relay = relay_with_hook(outbox_database, told.extend, sender)

    # when the batch is settled
    turn = relay.run_once()

    # then all the others are settled, and that row alone is still claimed
    rows = {row.key: (row.status, row.attempts) for row in outbox_database.events()}
    assert rows == {
        "key-0": ("PENDING", 1),
        "key-1": ("IN_PROCESS", 0),
        "key-3": ("PENDING", 1),
        "key-4": ("PROCESSED", 0),
    }
    assert sorted(letter.key for letter in outbox_database.dead_letters()) == ["key-2", "key-5"]
    assert sorted(event.key for event in told) == ["key-2", "key-5"]
    assert (turn.claimed, turn.fenced, outbox_database.claims()) == (6, 1, 1)
    assert "refused by a trigger" in caplog.text

    # and it comes back when the lease is over and the database has changed its mind
    refuse_no_more(outbox_database, "outbox_events")
    expire_leases(outbox_database)
    assert relay.duties.recovery.run_once() == 1
    assert {row.key: row.status for row in outbox_database.events()}["key-1"] == "PENDING"
    assert outbox_database.claims() == 0


def test_a_database_that_goes_away_between_the_pieces_of_a_settle_is_waited_for(outbox_database, monkeypatch):
    # given a batch that must be settled in pieces, and a database that goes away in their middle for a moment
    outbox_database.publish(6)
    refuse(outbox_database, "UPDATE", "outbox_events", "NEW.key = 'key-1' AND NEW.status = 'PROCESSED'")
    sender, clock = MemorySender(), HandHeldClock()
    relay = Relay(outbox_database.settings(), engine=outbox_database.engine, sender=sender, clock=clock)
    (rounds,) = relay._workers.values()
    claims = rounds._flights._settler._claims
    settle, pieces = claims.settle, []

    def go_away_at_the_fourth(connection, batch, fate, **options):
        pieces.append(fate)
        if len(pieces) == 6:  # two attempts at the whole batch, one at all that was delivered, and two rows
            raise OperationalError("UPDATE", {}, Exception("gone"), connection_invalidated=True)
        return settle(connection, batch, fate, **options)

    monkeypatch.setattr(claims, "settle", go_away_at_the_fourth)

    # when it is settled
    turn = relay.run_once()

    # then every row but the refused one is done, and none was settled, counted or sent twice
    assert len(pieces) > 6
    assert {row.key: row.status for row in outbox_database.events()} == {
        f"key-{n}": "IN_PROCESS" if n == 1 else "PROCESSED" for n in range(6)
    }
    assert (turn.claimed, turn.fenced, outbox_database.claims()) == (6, 1, 1)
    assert len(sender.sent) == 6


def test_a_letter_that_the_database_refuses_stays_an_event(outbox_database, caplog):
    # given a dead-letter table that will not have one row
    outbox_database.publish(6)
    refuse(outbox_database, "INSERT", "outbox_dlq_events", "1 = 1")
    sender = MemorySender(
        answer=lambda one: SendResult.reject("no good") if one.key == "key-1" else answer_each_kind(one)
    )
    told = []
    relay = relay_with_hook(outbox_database, told.extend, sender)

    # when its batch is settled
    relay.run_once()

    # then it is still an event, and the others are where they belong
    rows = {row.key: (row.status, row.attempts, row.failed) for row in outbox_database.events()}
    assert rows == {
        "key-0": ("PENDING", 1, False),
        "key-1": ("IN_PROCESS", 0, False),
        "key-3": ("PENDING", 1, False),
        "key-4": ("PROCESSED", 0, False),
    }
    assert sorted(letter.key for letter in outbox_database.dead_letters()) == ["key-2", "key-5"]
    assert sorted(event.key for event in told) == ["key-2", "key-5"]

    # and it dies properly when it is let
    refuse_no_more(outbox_database, "outbox_dlq_events")
    expire_leases(outbox_database)
    relay.duties.recovery.run_once()
    relay.run_once()
    relay.run_once()
    assert sorted(letter.key for letter in outbox_database.dead_letters()) == ["key-1", "key-2", "key-5"]
    assert sorted(event.key for event in told) == ["key-1", "key-2", "key-5"]


NASTY = '\x00 \ud800 \udfff \'; DROP \\ "quoted" \u2028 \U0001f600 ü \t\n' + "x" * 5000 + "the end"


@pytest.mark.parametrize("kind", ["retry", "reject", "unavailable"])
def test_whatever_a_broker_says_is_stored_cleaned_and_cut(outbox_database, kind):
    outbox_database.publish(1)
    result = {
        "retry": SendResult.retry(NASTY),
        "reject": SendResult.reject(NASTY),
        "unavailable": SendResult.unavailable(NASTY),
    }[kind]

    outbox_database.relay(MemorySender(answer=lambda _: result)).run_once()

    (row,) = outbox_database.dead_letters() if kind == "reject" else outbox_database.events()
    said = '\ufffd ? ? \'; DROP \\ "quoted" \u2028 \U0001f600 ü \t\n'
    assert row.last_error == said + "x" * (2000 - len(said))
    assert outbox_database.claims() == 0
