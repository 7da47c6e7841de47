"""Finding the bad ones of a batch, and what became of each message: without a database."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbox_consumer import MissingEventId, Outcome, Status
from outbox_consumer.batches import Batch
from outbox_consumer.bisection import Refused, find_bad
from outbox_shared.ids import new_event_id


@given(st.lists(st.booleans(), max_size=40))
def test_exactly_the_bad_ones_are_found_in_order_and_the_others_pass_once(bad: list[bool]):
    passed: list[int] = []
    attempts = 0

    def attempt(part: Sequence[int]) -> Refused[int] | None:
        nonlocal attempts
        attempts += 1
        assert list(part) == sorted(part)
        if any(bad[n] for n in part):
            return Refused(part, LookupError(part))
        passed.extend(part)
        return None

    found = find_bad(range(len(bad)), attempt)

    assert [n for n, _ in found] == [n for n, is_bad in enumerate(bad) if is_bad]
    assert all(error.args == ([n],) or list(error.args[0]) == [n] for n, error in found)
    assert passed == [n for n, is_bad in enumerate(bad) if not is_bad]
    assert attempts <= 1 + 2 * sum(bad) * max(1, len(bad).bit_length())


def test_only_suspects_are_looked_at_again():
    parts: list[list[int]] = []

    def attempt(part: Sequence[int]) -> Refused[int] | None:
        parts.append(list(part))
        suspects = [n for n in part if n % 2]  # the even ones turned out to be duplicates
        return Refused(suspects, LookupError()) if 3 in suspects else None

    assert [n for n, _ in find_bad(range(6), attempt)] == [3]
    assert parts == [[0, 1, 2, 3, 4, 5], [1], [3, 5], [3], [5]]


def test_a_part_whose_suspects_have_all_become_duplicates_is_done():
    assert find_bad([1, 2], lambda part: Refused([], LookupError())) == []


def test_an_error_of_the_attempt_itself_comes_out():
    def attempt(part: Sequence[int]) -> None:
        raise ConnectionError

    with pytest.raises(ConnectionError):
        find_bad([1], attempt)


def messages(*ids: object) -> list[dict[str, str]]:
    return [{"outbox_event_id": str(event_id), "n": str(n)} for n, event_id in enumerate(ids)]


def test_a_batch_keeps_order_and_the_first_of_each_event():
    one, two = new_event_id(), new_event_id()
    given = messages(two, one, two, one)

    batch = Batch.of(iter(given))

    assert [identity.event_id for identity in batch.firsts()] == [two, one]
    assert batch.with_ids({one, two}) == given[:2]
    assert batch.with_ids([one]) == [given[1]]


def test_copies_are_duplicates_of_what_was_consumed_and_share_a_failure():
    good, bad = new_event_id(), new_event_id()
    batch = Batch.of(messages(bad, good, good, bad))
    fates = {
        good: Outcome(Status.CONSUMED, good, None, 7),
        bad: Outcome(Status.FAILED, bad, None, error=LookupError()),
    }

    assert [(o.status.value, o.result) for o in batch.outcomes(fates)] == [
        ("failed", None), ("consumed", 7), ("duplicate", None), ("failed", None)
    ]  # fmt: skip


def test_the_first_bad_message_is_named():
    with pytest.raises(MissingEventId, match="message number 1 of the batch, counted from 0") as raised:
        Batch.of([*messages(new_event_id()), {}, {}])

    assert raised.value.index == 1
