"""The pure decision: what becomes of an event, given what the sender said."""

from datetime import UTC, datetime
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbox_publisher import Event
from outbox_publisher.relay.backoff import pause_after, retry_delay
from outbox_publisher.relay.settlement import EXHAUSTED, REJECTED, clean_error, decide
from outbox_publisher.senders import Position, SendResult
from outbox_publisher.settings import BackoffSettings, DeliverySettings
from outbox_publisher.store import Buried, Delivered, Rescheduled, Settlement

ID = UUID("0190f0f0-0000-7000-8000-000000000001")
THREE_RETRIES = DeliverySettings(max_retries=3, backoff={"delay": "10s", "multiplier": 3})


def event(attempts: int = 0) -> Event:
    return Event(
        id=ID, event_type="t", topic="t", key=None, payload=b"", content_type="x", attempts=attempts,
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
    )  # fmt: skip


def fate(result: SendResult, attempts: int = 0, delivery: DeliverySettings = THREE_RETRIES) -> Settlement:
    return decide([(event(attempts), result)], delivery, chance=lambda: 0.0)


def test_delivered_is_processed_with_its_position():
    assert fate(SendResult.delivered(Position(2, 17))) == Settlement(delivered=[Delivered(ID, 2, 17)])
    assert fate(SendResult.delivered()) == Settlement(delivered=[Delivered(ID)])


@pytest.mark.parametrize(("failed_before", "delay"), [(0, 10.0), (1, 30.0), (2, 90.0)])
def test_a_charged_retry_counts_and_waits_longer_each_time(failed_before, delay):
    result = fate(SendResult.retry("timeout", maybe_sent=True), failed_before)

    assert result == Settlement(rescheduled=[Rescheduled(ID, failed_before + 1, delay, "timeout", maybe_sent=True)])


def test_max_retries_n_is_n_plus_one_sends():
    result = fate(SendResult.retry("timeout"), attempts=3)

    assert result == Settlement(buried=[Buried(ID, 4, EXHAUSTED, "timeout", maybe_sent=False)])


def test_no_retries_means_one_send():
    result = fate(SendResult.retry("timeout"), delivery=DeliverySettings(max_retries=0))

    assert result.buried[0].reason == EXHAUSTED


def test_a_rejected_event_is_buried_at_once():
    assert fate(SendResult.reject("too large")) == Settlement(
        buried=[Buried(ID, 1, REJECTED, "too large", maybe_sent=False)]
    )


@pytest.mark.parametrize("attempts", [0, 3, 99])
def test_an_unavailable_broker_costs_no_attempt_and_keeps_the_due_time(attempts):
    result = fate(SendResult.unavailable("away", maybe_sent=True), attempts)

    assert result == Settlement(rescheduled=[Rescheduled(ID, attempts, None, "away", maybe_sent=True)])


def test_a_grace_costs_no_attempt_and_waits_as_the_sender_says():
    result = fate(SendResult.retry("no topic yet", charged=False, after=1.0), attempts=3)

    assert result == Settlement(rescheduled=[Rescheduled(ID, 3, 1.0, "no topic yet", maybe_sent=False)])


@given(st.text())
def test_every_error_text_becomes_one_that_a_database_stores(text):
    cleaned = clean_error(text)

    assert "\x00" not in cleaned
    assert len(cleaned) <= 2000
    cleaned.encode()


def test_nul_and_surrogates_are_replaced_and_the_rest_is_kept():
    assert clean_error("a\x00b\ud800c") == "a\ufffdb?c"


# backoff


def test_the_multiplier_may_be_a_fraction():
    assert retry_delay(BackoffSettings(delay="1s", multiplier=1.5), 3, chance=0) == 2.25


def test_max_delay_caps_it_also_after_a_thousand_attempts():
    backoff = BackoffSettings(delay="10s", multiplier=3, max_delay="60s", jitter=0)

    assert [retry_delay(backoff, n, chance=1) for n in (1, 2, 3, 1000)] == [10, 30, 60, 60]


def test_a_power_beyond_every_number_is_cut_too():
    assert retry_delay(BackoffSettings(delay="10s", multiplier=5, max_delay="60s", jitter=0), 30_000, chance=0) == 60


def test_a_multiplier_of_one_stays_where_it_is():
    backoff = BackoffSettings(delay="10s", multiplier=1, jitter=0)

    assert {retry_delay(backoff, n, chance=0) for n in (1, 500, 501, 30_000)} == {10}


def test_jitter_adds_up_to_its_share():
    backoff = BackoffSettings(delay="10s", jitter=0.5)

    assert (retry_delay(backoff, 1, chance=0), retry_delay(backoff, 1, chance=1)) == (10, 15)


def test_disabled_backoff_is_a_constant_delay():
    backoff = BackoffSettings(enabled=False, delay="2s", jitter=0)

    assert [retry_delay(backoff, n, chance=0) for n in (1, 2, 9)] == [2, 2, 2]


def test_the_loop_pauses_for_its_delay_and_doubles_to_ten_seconds_while_something_is_away():
    assert pause_after(0, 0.5, chance=0) == 0.5
    assert [pause_after(n, 0.5, chance=0) for n in (1, 2, 3, 4, 5, 60)] == [1, 2, 4, 8, 10, 10]
    assert pause_after(60, 0.5, chance=1) == 8
