"""Pauses: events are stored and not sent, from within a second after somebody said so until somebody takes it back."""

import time

import pytest
from sqlalchemy import update

from outbox_publisher import Relay, Turn
from outbox_publisher.relay.outlook import pause_name
from outbox_publisher.senders import MemorySender, SendResult
from outbox_shared.state import PAUSE
from tests.clocks import HandHeldClock
from tests.consuming import eventually

OBEYED = 1.0
"""Seconds within which a running relay has seen a pause."""
SILENCE = 2.0
"""Seconds that we listen for what must not be sent: several rounds of a relay."""


def pause(database, **what):
    with database.engine.begin() as connection:
        database.store.state.put(connection, PAUSE, pause_name(**what))


def resume(database, **what):
    with database.engine.begin() as connection:
        assert database.store.state.remove(connection, PAUSE, pause_name(**what))


def publish_without_a_topic(database, event_type="order-created"):
    ids = database.publish(1, event_type)
    events = database.store.tables.events
    with database.engine.begin() as connection:
        connection.execute(update(events).where(events.c.id.in_(ids)).values(topic=None))


@pytest.mark.parametrize(
    ("what", "kind"),
    [({}, "sqlite"), ({"event_type": "order-created"}, "postgresql"), ({"topic": "orders"}, "mariadb")],
    ids=str,
)
def test_a_running_relay_obeys_a_pause_within_a_second_and_goes_on_when_it_ends(request, what, kind):
    """Each kind of pause on one of the databases, since real time passes; what a pause holds back is below, on all of them."""
    # given a relay that runs as it does by default, and relays
    outbox_database = request.getfixturevalue(f"{kind}_outbox")
    sender = MemorySender()
    with outbox_database.relay(sender).background():
        outbox_database.publish(2)
        eventually(lambda: outbox_database.statuses() == {"PROCESSED": 2})

        # when it is paused
        pause(outbox_database, **what)
        time.sleep(OBEYED)
        outbox_database.publish(3)
        time.sleep(SILENCE)

        # then nothing is sent or claimed, and what is published is stored
        assert outbox_database.statuses() == {"PROCESSED": 2, "PENDING": 3}
        assert len(sender.sent) == 2

        # and when the pause ends it is sent
        resume(outbox_database, **what)
        eventually(lambda: outbox_database.statuses() == {"PROCESSED": 5})
    assert len({event.id for event in sender.sent}) == len(sender.sent) == 5


def test_a_relay_in_the_middle_of_a_long_round_obeys_too(outbox_database):
    """It looks again between two types: a round with many types may take long."""
    for number in range(6):
        outbox_database.publish(1, f"type-{number}")
    clock = HandHeldClock()

    def slowly(event):
        clock.sleep(0.3)
        if event.event_type == "type-0":
            pause(outbox_database)

    sender = MemorySender(answer=slowly)
    relay = Relay(outbox_database.settings(), engine=outbox_database.engine, sender=sender, clock=clock)

    relay.run_once()

    assert clock.elapsed <= 1.0
    assert [event.event_type for event in sender.sent] == ["type-0", "type-1"]


def test_a_paused_type_does_not_stop_the_others(outbox_database):
    outbox_database.publish(2, "order-created")
    outbox_database.publish(2, "order-paid")
    pause(outbox_database, event_type="order-created")
    sender = MemorySender()

    assert outbox_database.relay(sender).run_once() == Turn(claimed=2, delivered=2)

    assert {event.event_type for event in sender.sent} == {"order-paid"}
    assert outbox_database.statuses() == {"PENDING": 2, "PROCESSED": 2}


def test_a_paused_topic_does_not_stop_others_of_the_same_type_nor_rows_without_one(outbox_database):
    outbox_database.publish(2, topic="paused")
    outbox_database.publish(2, topic="open")
    publish_without_a_topic(outbox_database)
    pause(outbox_database, topic="paused")
    sender = MemorySender()
    relay = outbox_database.relay(sender)

    assert relay.run_once() == Turn(claimed=3, delivered=3)

    assert sorted(event.topic for event in sender.sent) == ["open", "open", "orders"]
    assert {(row.topic, row.status) for row in outbox_database.events()} == {
        ("paused", "PENDING"),
        ("open", "PROCESSED"),
        (None, "PROCESSED"),
    }


def test_several_pauses_hold_until_the_last_one_ends(outbox_database):
    outbox_database.publish(1)
    pause(outbox_database)
    pause(outbox_database, event_type="order-created")
    pause(outbox_database, topic="orders")
    relay = outbox_database.relay()

    for what in ({}, {"event_type": "order-created"}, {"topic": "orders"}):
        assert relay.run_once() == Turn()
        resume(outbox_database, **what)

    assert outbox_database.relay().run_once() == Turn(claimed=1, delivered=1)


@pytest.mark.parametrize("what", [{}, {"event_type": "order-created"}, {"topic": "orders"}], ids=str)
@pytest.mark.parametrize("scope", ["topic", "sender"])
def test_what_is_paused_is_not_tried_either_while_the_broker_comes_back(outbox_database, what, scope):
    # given a topic, or a broker, that was away; it takes events again, but they are paused meanwhile
    outbox_database.publish(3)
    clock = HandHeldClock()
    sender = MemorySender(answer=lambda _: SendResult.unavailable("away", scope=scope))
    relay = Relay(outbox_database.settings(), engine=outbox_database.engine, sender=sender, clock=clock)
    relay.run_once()
    sender.answer = None
    pause(outbox_database, **what)

    # when the relay goes on
    for _ in range(5):
        clock.sleep(20)
        assert relay.run_once() == Turn()

    # then nothing is sent, not even a single row to try, until the pause ends
    assert sender.sent == []
    resume(outbox_database, **what)
    for _ in range(5):
        clock.sleep(20)
        relay.run_once()
    assert len(sender.sent) == 3


def test_a_dead_topic_opens_for_other_types_while_the_one_that_met_it_is_paused(outbox_database):
    outbox_database.publish(1, "order-created")
    clock = HandHeldClock()
    sender = MemorySender(answer=lambda _: SendResult.unavailable("away", scope="topic"))
    relay = Relay(outbox_database.settings(), engine=outbox_database.engine, sender=sender, clock=clock)
    relay.run_once()
    sender.answer = None
    pause(outbox_database, event_type="order-created")

    outbox_database.publish(5, "order-paid")
    for _ in range(3):
        clock.sleep(20)
        relay.run_once()

    assert [event.event_type for event in sender.sent] == ["order-paid"] * 5
