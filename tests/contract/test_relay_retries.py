"""When a failed event is sent again, and how often: by the settings of its type, on every database."""

import time
from datetime import timedelta

import pytest

from outbox_publisher import Turn
from outbox_publisher.senders import MemorySender, SendResult
from tests.clocks import make_everything_due, time_of
from tests.consuming import eventually

MILLISECOND = timedelta(milliseconds=1)
"""What SQLite's times may be rounded by."""


def failing(reason="timeout", **more):
    return MemorySender(answer=lambda _: SendResult.retry(reason, **more))


def delays_of(database, backoff, times, **sender):
    """Seconds until the next send after each of so many failed ones: the shortest and the longest that it may have been."""
    database.publish(1)
    relay = database.relay(
        failing(**sender), events={"order-created": {"topic": "t", "max-retries": 100, "backoff": backoff}}
    )
    found = []
    for _ in range(times):
        before = time_of(database)
        assert relay.run_once() == Turn(claimed=1, rescheduled=1)
        after = time_of(database)
        (row,) = database.events()
        found.append((row.next_retry_at - after - MILLISECOND, row.next_retry_at - before + MILLISECOND))
        make_everything_due(database)
    return found


def assert_delays(found, expected):
    for (shortest, longest), seconds in zip(found, expected, strict=True):
        assert shortest <= timedelta(seconds=seconds) <= longest, (found, expected)


@pytest.mark.parametrize(("retries", "sends"), [(0, 1), (1, 2), (4, 5)])
def test_max_retries_n_is_n_plus_one_sends(outbox_database, retries, sends):
    outbox_database.publish(1)
    sent = []
    sender = MemorySender(answer=lambda event: sent.append(event.id) or SendResult.retry("timeout"))
    relay = outbox_database.relay(sender, events={"order-created": {"topic": "t", "max-retries": retries}})

    for _ in range(8):
        relay.run_once()
        make_everything_due(outbox_database)

    assert len(sent) == sends
    assert outbox_database.events() == []
    (letter,) = outbox_database.dead_letters()
    assert (letter.attempts, letter.reason) == (sends, "retries exhausted")


def test_each_type_has_its_own_number_of_retries(outbox_database):
    outbox_database.publish(1, "patient")
    outbox_database.publish(1, "hasty")
    relay = outbox_database.relay(failing(), events={"hasty": {"max-retries": 0}, "patient": {"max-retries": 1}})

    assert relay.run_once() == Turn(claimed=2, rescheduled=1, buried=1)

    assert [letter.event_type for letter in outbox_database.dead_letters()] == ["hasty"]
    assert [(row.event_type, row.attempts) for row in outbox_database.events()] == [("patient", 1)]


def test_a_multiplier_of_one_and_a_half_is_one_and_a_half(outbox_database):
    found = delays_of(outbox_database, {"delay": "10s", "multiplier": 1.5, "jitter": 0}, times=4)

    assert_delays(found, [10, 15, 22.5, 33.75])


def test_max_delay_caps_what_the_multiplier_makes(outbox_database):
    found = delays_of(outbox_database, {"delay": "10s", "multiplier": 3, "max-delay": "40s", "jitter": 0}, times=4)

    assert_delays(found, [10, 30, 40, 40])


def test_without_backoff_the_delay_is_always_the_same(outbox_database):
    found = delays_of(outbox_database, {"enabled": False, "delay": "7s", "multiplier": 3, "jitter": 0}, times=3)

    assert_delays(found, [7, 7, 7])


def test_a_delay_below_a_second_is_kept_as_it_is(outbox_database):
    found = delays_of(outbox_database, {"delay": "200ms", "multiplier": 1.5, "jitter": 0}, times=3)

    assert_delays(found, [0.2, 0.3, 0.45])


def test_jitter_adds_up_to_its_share_and_spreads_the_events(outbox_database):
    outbox_database.publish(60)
    backoff = {"delay": "100s", "jitter": 0.5}
    relay = outbox_database.relay(failing(), events={"order-created": {"topic": "t", "backoff": backoff}})

    before = time_of(outbox_database)
    relay.run_once()
    after = time_of(outbox_database)

    due = [row.next_retry_at for row in outbox_database.events()]
    assert min(due) >= before + timedelta(seconds=100) - MILLISECOND
    assert max(due) <= after + timedelta(seconds=150) + MILLISECOND
    assert max(due) - min(due) > timedelta(seconds=20)


def test_an_uncharged_retry_waits_as_long_as_the_sender_says_and_is_never_counted(outbox_database):
    found = delays_of(outbox_database, {"delay": "100s"}, times=5, charged=False, after=1.5)

    assert_delays(found, [1.5] * 5)
    assert [(row.attempts, row.status) for row in outbox_database.events()] == [(0, "PENDING")]


def test_an_event_that_waits_is_not_sent_before_its_time(outbox_database):
    outbox_database.publish(1)
    relay = outbox_database.relay(failing())
    relay.run_once()

    assert [relay.run_once() for _ in range(3)] == [Turn()] * 3


def test_a_running_relay_sends_again_after_a_fraction_of_a_second(outbox_database):
    # given an event that goes through at the third try, 200 ms and 300 ms later
    outbox_database.publish(1)
    sends = []

    def third_time(_event):
        sends.append(time.monotonic())
        return SendResult.retry("timeout") if len(sends) < 3 else None

    delivery = {"fixed-delay": "50ms", "backoff": {"delay": "200ms", "multiplier": 1.5, "jitter": 0}}
    relay = outbox_database.relay(MemorySender(answer=third_time), defaults={"topic": "t", **delivery})

    # when a relay runs
    with relay.background():
        eventually(lambda: outbox_database.statuses() == {"PROCESSED": 1})

    # then it was not early, and late by no more than a busy machine is
    first, second = sends[1] - sends[0], sends[2] - sends[1]
    assert 0.2 - 0.005 <= first < 0.2 + 5
    assert 0.3 - 0.005 <= second < 0.3 + 5
    assert len(sends) == 3
