"""Where the next claim of a type begins."""

from datetime import UTC, datetime, timedelta
from uuid import uuid4

from outbox_publisher import Event
from outbox_publisher.relay.hints import CARE, Hints
from outbox_publisher.store import Place

DUE = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)
A = "order-created"


def events(*seqs):
    """Rows that are due one second after the other."""
    return [
        Event(
            id=uuid4(), event_type=A, topic=None, key=None, payload=b"", content_type="x", created_at=DUE,
            seq=seq, next_retry_at=DUE + timedelta(seconds=seq),
        )
        for seq in seqs
    ]  # fmt: skip


def claimed(hints, rows, *, full, at=0.0, took=0.0, from_the_start=False):
    hints.claimed(A, rows, full=full, began=at - took, now=at, from_the_start=from_the_start)


def test_the_first_claim_begins_at_the_start():
    assert Hints().behind(A, now=0.0) is None


def test_a_full_batch_is_followed_exactly_behind_it():
    hints = Hints()

    claimed(hints, events(1, 2, 3), full=True, from_the_start=True)

    assert hints.behind(A, now=0.5) == Place(DUE + timedelta(seconds=3), 3)


def test_a_short_batch_is_followed_a_little_before_its_newest_row():
    hints = Hints()

    claimed(hints, events(1, 2, 30), full=False, from_the_start=True)

    assert hints.behind(A, now=0.5) == Place(DUE + timedelta(seconds=30) - CARE, 0)


def test_a_claim_that_finds_nothing_keeps_what_is_known():
    hints = Hints()
    claimed(hints, events(10), full=False, from_the_start=True)

    claimed(hints, [], full=False)

    assert hints.behind(A, now=0.5) == Place(DUE + timedelta(seconds=10) - CARE, 0)


def test_each_second_a_claim_begins_at_the_start_again():
    hints = Hints()
    claimed(hints, events(1), full=True, at=10.0, from_the_start=True)

    # claims from the place do not put it off
    claimed(hints, events(2), full=True, at=10.9)

    assert hints.behind(A, now=10.99) is not None
    assert hints.behind(A, now=11.0) is None


def test_where_a_look_from_the_start_takes_long_it_costs_a_tenth_of_the_time():
    hints = Hints()

    claimed(hints, events(1), full=True, at=10.0, took=0.7, from_the_start=True)

    assert hints.behind(A, now=16.9) is not None
    assert hints.behind(A, now=17.0) is None


def test_rows_that_were_given_back_are_looked_for_at_once():
    hints = Hints()
    claimed(hints, events(1), full=True, from_the_start=True)

    hints.forget(A)

    assert hints.behind(A, now=0.1) is None


def test_each_type_has_a_place_of_its_own():
    hints = Hints()
    claimed(hints, events(1), full=True, from_the_start=True)

    assert hints.behind("line-added", now=0.1) is None
