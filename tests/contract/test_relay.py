"""The relay's turn on every database, with the memory sender: claim → send → settle, and what happens when a step fails."""

import threading
import time
from collections import Counter
from uuid import uuid4

import pytest
from sqlalchemy import create_engine, insert, update

from outbox_publisher import Relay, Turn
from outbox_publisher.senders import FinishedFlight, MemorySender, SendResult
from outbox_shared.clock import SystemClock
from outbox_shared.errors import ConfigurationError, MissingTable
from outbox_shared.sqltypes import wall_time_plus
from tests.clocks import HandHeldClock, make_everything_due


def test_every_event_is_sent_once_and_processed(outbox_database):
    ids = outbox_database.publish(10)
    sender = MemorySender()

    turn = outbox_database.relay(sender).run_once()

    assert turn == Turn(claimed=10, delivered=10)
    assert [event.id for event in sender.sent] == ids
    assert outbox_database.statuses() == {"PROCESSED": 10}
    assert outbox_database.relay(sender).run_once() == Turn()


def test_a_sender_gets_what_was_published(outbox_database):
    outbox_database.publish(
        1, key="k", headers={"tenant": "acme"}, aggregate_type="Order", correlation_id="c", version=2
    )
    sender = MemorySender()

    outbox_database.relay(sender).run_once()

    (event,) = sender.sent
    assert (event.topic, event.key, event.payload, event.headers) == ("orders", "k", b'{"n":0}', {"tenant": "acme"})
    assert (event.aggregate_type, event.correlation_id, event.version) == ("Order", "c", 2)


def test_nothing_of_a_rolled_back_transaction_is_ever_sent(outbox_database):
    sender = MemorySender()
    with outbox_database.engine.connect() as connection:
        transaction = connection.begin()
        row = {"lane": 0, "event_type": "t", "topic": "t", "content_type": "x", "payload": b""}
        connection.execute(insert(outbox_database.store.tables.events), {"id": uuid4(), **row})
        transaction.rollback()

    assert outbox_database.relay(sender).run_once() == Turn()
    assert sender.sent == []


def test_every_type_gets_its_turn(outbox_database):
    outbox_database.publish(50, "big")
    outbox_database.publish(2, "small")
    sender = MemorySender()

    turn = outbox_database.relay(sender, defaults={"topic": "t", "batch-size": 10}).run_once()

    assert Counter(event.event_type for event in sender.sent) == {"big": 10, "small": 2}
    assert turn.full


def test_a_failing_event_is_retried_with_backoff_and_then_buried(outbox_database):
    # given an event that never goes through, beside one that does
    outbox_database.publish(2)
    sender = MemorySender(answer=lambda event: SendResult.retry("timeout") if event.key == "key-1" else None)
    relay = outbox_database.relay(sender, events={"order-created": {"topic": "t", "max-retries": 2}})

    # when it is sent as often as the settings allow
    turns = []
    for _ in range(3):
        turns.append(relay.run_once())
        make_everything_due(outbox_database)

    # then the good one is through, and the bad one is a dead letter with its reason
    assert turns == [
        Turn(claimed=2, delivered=1, rescheduled=1),
        Turn(claimed=1, rescheduled=1),
        Turn(claimed=1, buried=1),
    ]
    assert outbox_database.statuses() == {"PROCESSED": 1}
    (dead,) = outbox_database.dead_letters()
    assert (dead.key, dead.reason, dead.last_error, dead.attempts) == ("key-1", "retries exhausted", "timeout", 3)
    assert relay.run_once() == Turn()


def test_a_rejected_event_is_buried_at_once_and_its_neighbours_are_delivered(outbox_database):
    outbox_database.publish(100)
    sender = MemorySender(
        answer=lambda event: SendResult.reject("bad \x00 \ud800 text") if event.key == "key-50" else None
    )

    turn = outbox_database.relay(sender).run_once()

    assert turn == Turn(claimed=100, delivered=99, buried=1)
    (dead,) = outbox_database.dead_letters()
    assert (dead.key, dead.reason, dead.last_error) == ("key-50", "rejected", "bad \ufffd ? text")


def test_an_unavailable_broker_uses_no_attempt(outbox_database):
    # given a broker that is away, and a relay whose clock is in our hands
    outbox_database.publish(3)
    away = MemorySender(answer=lambda _: SendResult.unavailable("connection refused"))
    clock = HandHeldClock()
    settings = outbox_database.settings(events={"order-created": {"topic": "t", "max-retries": 0}})
    relay = Relay(settings, engine=outbox_database.engine, sender=away, clock=clock)

    # when it tries again and again
    turns = []
    for _ in range(20):
        turns.append(relay.run_once())
        clock.sleep(20)

    # then nothing is charged: after the first batch one row at a time finds out
    assert turns[0].claimed == 3
    assert {turn.claimed for turn in turns[1:]} == {1}
    assert all(turn.unavailable for turn in turns)
    assert [(row.status, row.attempts, row.last_error) for row in outbox_database.events()] == [
        ("PENDING", 0, "connection refused")
    ] * 3
    assert outbox_database.dead_letters() == []

    # and when it is back, one row goes first and then the rest
    away.answer = None
    assert relay.run_once() == Turn(claimed=1, delivered=1, full=True)
    assert relay.run_once() == Turn(claimed=2, delivered=2)


def test_a_sender_that_raises_strands_nothing(outbox_database):
    def explode(_event):
        raise RuntimeError("bug in a sender")

    outbox_database.publish(2)

    turn = outbox_database.relay(MemorySender(answer=explode)).run_once()

    assert turn.rescheduled == 2
    assert [(row.status, row.attempts, row.last_error) for row in outbox_database.events()] == [
        ("PENDING", 1, "RuntimeError: bug in a sender")
    ] * 2
    assert all(row.maybe_sent for row in outbox_database.events())


@pytest.mark.parametrize(
    "headers", ["not json", "[1]", '"text"', '{"": "x"}', '{"a": 1}', '{"\\ud800": "x"}', '{"a": "\\ud800"}']
)
def test_headers_that_another_program_wrote_are_refused_for_their_row_alone(outbox_database, headers):
    outbox_database.publish(3, headers={"tenant": "acme"})
    with outbox_database.engine.begin() as connection:
        events = outbox_database.store.tables.events
        connection.execute(update(events).where(events.c.key == "key-1").values(headers=headers))
    sender = MemorySender()

    turn = outbox_database.relay(sender).run_once()

    assert (turn.delivered, turn.buried) == (2, 1)
    assert [event.key for event in sender.sent] == ["key-0", "key-2"]
    assert [(letter.key, letter.reason) for letter in outbox_database.dead_letters()] == [("key-1", "rejected")]


def test_a_sender_that_forgets_a_result_strands_nothing(outbox_database):
    class Forgetful(MemorySender):
        def send(self, events, deadline):
            return FinishedFlight(super().send(events, deadline).results()[1:])

    outbox_database.publish(2)

    assert outbox_database.relay(Forgetful()).run_once().rescheduled == 2
    assert outbox_database.statuses() == {"PENDING": 2}


def test_a_claim_that_took_too_long_is_given_back_unsent(outbox_database):
    class Jumping(SystemClock):
        """Time that passes whenever somebody looks: the claim seems to have taken most of the lease."""

        def monotonic(self):
            self.now = getattr(self, "now", 0.0) + 25.0
            return self.now

    outbox_database.publish(2)
    sender = MemorySender()
    relay = Relay(outbox_database.settings(), engine=outbox_database.engine, sender=sender, clock=Jumping())

    turn = relay.run_once()

    assert (turn.claimed, turn.rescheduled, turn.unavailable, sender.sent) == (2, 2, True, [])
    assert [(row.status, row.attempts, row.last_error) for row in outbox_database.events()] == [
        ("PENDING", 0, None)
    ] * 2
    assert outbox_database.claims() == 0


def test_an_autocommit_engine_is_refused(outbox_database):
    engine = create_engine(outbox_database.url, isolation_level="AUTOCOMMIT")

    with pytest.raises(ConfigurationError, match="needs transactions"):
        Relay(outbox_database.settings(), engine=engine, sender=MemorySender())

    engine.dispose()


def test_a_publisher_that_is_disabled_runs_no_relay(outbox_database):
    with pytest.raises(ConfigurationError, match=r"publisher\.enabled is false"):
        Relay(outbox_database.settings(enabled=False), sender=MemorySender())


def test_a_relay_that_was_overtaken_reports_its_rows_as_fenced(outbox_database):
    # given a relay that stands still in the middle of a send for longer than its lease
    outbox_database.publish(5)
    successor = outbox_database.relay()

    def stand_still(_event):
        with outbox_database.engine.begin() as connection:
            connection.execute(update(outbox_database.store.tables.claims).values(lease_until=wall_time_plus(-1.0)))
        successor.duties.recovery.run_once()
        successor.run_once()

    # when another one recovers and delivers its rows meanwhile
    turn = outbox_database.relay(MemorySender(answer=stand_still)).run_once()

    # then it changes nothing when it comes back
    assert (turn.claimed, turn.fenced) == (5, 5)
    assert outbox_database.statuses() == {"PROCESSED": 5}
    assert {row.lost_claims for row in outbox_database.events()} == {1}


def test_run_relays_what_is_published_while_it_runs_and_stops_when_told(outbox_database):
    sender = MemorySender()
    relay = Relay(outbox_database.settings(defaults={"topic": "t", "fixed-delay": "10ms"}), sender=sender)
    thread = threading.Thread(target=relay.run)
    thread.start()

    outbox_database.publish(20)
    until = time.monotonic() + 20
    while len(sender.sent) < 20 and time.monotonic() < until:
        time.sleep(0.01)
    relay.stop()
    thread.join(20)

    assert not thread.is_alive()
    assert len(sender.sent) == 20
    assert outbox_database.statuses() == {"PROCESSED": 20}
    assert outbox_database.claims() == 0


def test_a_relay_creates_the_tables_that_are_missing(outbox_database):
    Relay(outbox_database.settings(tables={"prefix": "fresh_"}), sender=MemorySender()).close()

    relay = Relay(outbox_database.settings(tables={"prefix": "fresh_", "auto_create": False}), sender=MemorySender())
    assert relay.run_once() == Turn()
    relay.close()


def test_without_auto_create_missing_tables_are_named(outbox_database):
    with pytest.raises(MissingTable, match=r"none_events.*run `outbox-publisher init-db`"):
        Relay(outbox_database.settings(tables={"prefix": "none_", "auto_create": False}), sender=MemorySender())


def test_a_relay_without_a_sender_names_the_key(outbox_database):
    with pytest.raises(ConfigurationError, match=r"set outbox\.publisher\.sender\.type"):
        Relay(outbox_database.settings())


def test_a_long_backlog_of_one_type_does_not_starve_another(outbox_database):
    # given far more of one type than of two others, one before and one behind it in the alphabet
    outbox_database.publish(100, "m-many")
    outbox_database.publish(1, "a-few")
    outbox_database.publish(1, "z-few")
    sender = MemorySender()
    relay = outbox_database.relay(sender, defaults={"topic": "orders", "batch-size": 10})

    # when a relay has looked once
    relay.run_once()

    # then each has had one batch
    assert Counter(event.event_type for event in sender.sent) == {"a-few": 1, "m-many": 10, "z-few": 1}
