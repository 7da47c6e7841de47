"""Breakers, without time and without chance: what opens them, when the broker is asked, and what closes them."""

from datetime import UTC, datetime
from uuid import uuid4

import pytest

from outbox_publisher.event import Event
from outbox_publisher.relay.breaker import Breaker, Breakers, State
from outbox_publisher.senders import SendResult

NOW = 1000.0
AWAY = SendResult.unavailable("connection refused")
NO_LEADER = SendResult.unavailable("no leader", scope="topic")
DELIVERED = SendResult.delivered()
RETRY = SendResult.retry("timeout")
GRACE = SendResult.retry("no such topic", charged=False, after=1.0)
UNSENT = SendResult.retry("stopped", charged=False, after=0)
REJECT = SendResult.reject("too large")

SOME_EVENT = Event(
    id=uuid4(),
    event_type="order-created",
    topic="orders",
    key=None,
    payload=b"",
    headers={},
    content_type="application/json",
    created_at=datetime(2000, 1, 1, tzinfo=UTC),
)  # fmt: skip


def an_event(topic="orders", event_type="order-created"):
    return SOME_EVENT._replace(id=uuid4(), topic=topic, event_type=event_type)


def breakers_after(*batches, now=NOW):
    """Breakers that have seen these batches; each is a list of results, or of (topic, result)."""
    breakers = Breakers(0.5)
    for batch in batches:
        told = [("orders", one) if isinstance(one, SendResult) else one for one in batch]
        breakers.note([(an_event(topic), result) for topic, result in told], now, chance=0.0)
    return breakers


# One breaker.


def test_a_new_breaker_is_closed_and_asks_nothing():
    breaker = Breaker(0.5)

    assert (breaker.state, breaker.asks(NOW)) == (State.CLOSED, False)


def test_it_asks_when_its_pause_is_over_and_not_before():
    breaker = Breaker(0.5)
    breaker.fail("away", NOW, chance=0.0)

    assert breaker.state is State.OPEN
    assert [breaker.asks(NOW + after) for after in (0.0, 0.99, 1.0, 50.0)] == [False, False, True, True]


def test_its_pauses_double_to_ten_seconds():
    breaker = Breaker(0.5)
    pauses = []
    for _ in range(7):
        breaker.fail("away", NOW, chance=0.0)
        pauses.append(breaker.until - NOW)

    assert pauses == [1.0, 2.0, 4.0, 8.0, 10.0, 10.0, 10.0]


def test_a_failed_try_goes_on_where_the_pauses_were():
    breaker = Breaker(0.5)
    for _ in range(3):
        breaker.fail("away", NOW, chance=0.0)
    breaker.answered()
    assert (breaker.state, breaker.asks(NOW + 100)) == (State.TRYING, False)

    breaker.fail("away after all", NOW, chance=0.0)

    assert (breaker.state, breaker.until - NOW, breaker.reason) == (State.OPEN, 8.0, "away after all")


def test_a_closed_one_begins_anew():
    breaker = Breaker(0.5)
    for _ in range(5):
        breaker.fail("away", NOW, chance=0.0)
    breaker.close()
    assert (breaker.state, breaker.reason) == (State.CLOSED, "")

    breaker.fail("away", NOW, chance=0.0)

    assert breaker.until - NOW == 1.0


# What a batch says.


def test_a_broker_that_takes_nothing_is_away():
    breakers = breakers_after([AWAY, AWAY])

    assert (breakers.sender.state, breakers.sender.failures, breakers.sender.reason) == (
        State.OPEN,
        1,
        "connection refused",
    )
    assert breakers.blocked() == frozenset()


@pytest.mark.parametrize("answer", [DELIVERED, RETRY, GRACE])
def test_a_broker_that_answered_anything_is_there(answer):
    assert breakers_after([AWAY, answer]).sender.state is State.CLOSED
    assert breakers_after([AWAY], [answer]).sender.state is State.CLOSED


@pytest.mark.parametrize("silence", [REJECT, UNSENT])
def test_what_the_broker_had_no_part_in_says_nothing_about_it(silence):
    assert breakers_after([AWAY, silence]).sender.state is State.OPEN
    assert breakers_after([AWAY], [silence]).sender.state is State.OPEN
    assert breakers_after([silence]).sender.state is State.CLOSED


def test_a_dead_topic_blocks_itself_alone():
    breakers = breakers_after([("ill", NO_LEADER), ("healthy", DELIVERED)])

    assert breakers.sender.state is State.CLOSED
    assert breakers.blocked() == {"ill"}
    assert breakers.topics["ill"].event_type == "order-created"


def test_a_topic_of_which_something_went_through_is_not_dead():
    assert breakers_after([("ill", NO_LEADER), ("ill", DELIVERED)]).blocked() == frozenset()
    assert breakers_after([("ill", NO_LEADER)], [("ill", DELIVERED)]).blocked() == frozenset()


def test_one_topics_answer_does_not_open_another():
    assert breakers_after([("ill", NO_LEADER)], [("healthy", DELIVERED)]).blocked() == {"ill"}


def test_a_broker_that_knows_its_topic_to_be_dead_is_there_itself():
    assert breakers_after([AWAY], [NO_LEADER]).sender.state is State.CLOSED


def test_a_batch_may_find_both_away():
    breakers = breakers_after([("ill", NO_LEADER), ("healthy", AWAY)])

    assert breakers.sender.state is State.OPEN
    assert breakers.blocked() == {"ill"}


def test_an_empty_batch_says_nothing():
    assert breakers_after([AWAY], []).sender.state is State.OPEN
    assert breakers_after([("ill", NO_LEADER)], []).blocked() == {"ill"}


def test_every_batch_that_fails_counts_once():
    breakers = breakers_after([AWAY] * 500, [AWAY] * 500)

    assert breakers.sender.failures == 2
