"""How long a retry waits, and how long a loop pauses: whatever the settings, within their bounds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbox_publisher.relay.backoff import LONGEST_PAUSE, pause_after, retry_delay
from outbox_publisher.settings import BackoffSettings

chances = st.floats(0, 1)
backoffs = st.builds(
    lambda delay, more, multiplier, jitter: BackoffSettings(
        delay=f"{delay}ms", max_delay=f"{delay + more}ms", multiplier=multiplier, jitter=jitter
    ),
    st.integers(0, 100_000),
    st.integers(0, 10_000_000),
    st.floats(1, 1000),
    st.floats(0, 1),
)


@given(backoffs, st.integers(1, 30_001), chances)
def test_a_retry_never_waits_less_than_its_delay_nor_more_than_max_delay_and_jitter(backoff, attempt, chance):
    waits = retry_delay(backoff, attempt, chance)

    shortest, longest = backoff.delay.total_seconds(), backoff.max_delay.total_seconds()
    assert shortest <= waits * (1 + 1e-9)
    assert waits <= longest * (1 + backoff.jitter) * (1 + 1e-9)


@given(backoffs, st.integers(1, 1000))
def test_a_later_retry_never_waits_less(backoff, attempt):
    assert retry_delay(backoff, attempt + 1, chance=0) >= retry_delay(backoff, attempt, chance=0)


@given(backoffs, st.integers(1, 30_001), chances)
def test_jitter_only_adds_and_adds_at_most_its_share(backoff, attempt, chance):
    plain = retry_delay(backoff, attempt, chance=0)

    assert plain <= retry_delay(backoff, attempt, chance) <= plain * (1 + backoff.jitter) * (1 + 1e-9)


@given(st.integers(1, 30_001))
def test_disabled_backoff_is_a_constant_delay_also_above_max_delay(attempt):
    backoff = BackoffSettings(enabled=False, delay="2h", max_delay="1h", multiplier=3, jitter=0)

    assert retry_delay(backoff, attempt, chance=0.5) == 7200


@pytest.mark.parametrize(("attempt", "delay"), [(1, 0.2), (2, 0.3), (3, 0.45), (4, 0.675)])
def test_fractions_of_a_second_stay_fractions(attempt, delay):
    backoff = BackoffSettings(delay="200ms", multiplier=1.5, jitter=0)

    assert retry_delay(backoff, attempt, chance=1) == pytest.approx(delay)


@given(st.integers(1, 10_000), st.floats(0.01, 3600), chances)
def test_a_pause_is_never_longer_than_ten_seconds_and_up_to_a_fifth_shorter(failures, base, chance):
    longest = min(LONGEST_PAUSE, max(base, 0.1) * 2 ** min(failures, 16))

    assert 0.8 * longest <= pause_after(failures, base, chance) * (1 + 1e-9)
    assert pause_after(failures, base, chance) <= longest <= 10.0


def test_a_relay_that_polls_without_a_pause_still_pauses_when_something_is_away():
    assert [pause_after(n, 0.001, chance=0) for n in (1, 2, 3)] == [0.2, 0.4, 0.8]


@given(st.floats(0.001, 60), chances)
def test_while_all_is_well_the_loop_waits_its_delay_and_up_to_a_tenth_more(base, chance):
    assert base <= pause_after(0, base, chance) <= base * 1.1 * (1 + 1e-9)
