"""How often and how long a delivery is tried again."""

from datetime import timedelta

from outbox_consumer import EventInProgress
from outbox_consumer.patience import CONFLICT_RETRIES, Patience


class HandClock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_an_error_that_is_no_conflict_comes_out_at_once():
    assert Patience(timedelta(seconds=5)).pause_after(LookupError(), is_conflict=False) is None


def test_conflicts_are_tried_a_few_times_with_growing_pauses():
    patience = Patience(timedelta(seconds=5))

    pauses = [patience.pause_after(LookupError(), is_conflict=True) for _ in range(CONFLICT_RETRIES + 1)]

    assert pauses[-1] is None
    assert all(pause is not None and 0 <= pause <= 0.32 for pause in pauses[:-1])


def test_an_event_in_progress_is_tried_until_the_lock_timeout_is_used_up():
    clock = HandClock()
    patience = Patience(timedelta(seconds=5), now=clock)

    clock.now += 4.9
    assert all(patience.pause_after(EventInProgress(), is_conflict=False) is not None for _ in range(1000))
    clock.now += 0.1
    assert patience.pause_after(EventInProgress(), is_conflict=False) is None
