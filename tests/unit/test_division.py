"""Which types each worker of a relay serves."""

import pytest

from outbox_publisher import PublisherSettings
from outbox_publisher.relay.division import divide

EVENTS = {
    "plain": {"topic": "a"},
    "patient": {"max-retries": 9},
    "slow": {"fixed-delay": "10s"},
    "small": {"batch-size": 5},
    "both": {"batch-size": 5, "fixed-delay": "1s"},
}


def shares(threads, events=EVENTS):
    return divide(PublisherSettings(database_url="sqlite:///x.db", events=events).events, threads)


def test_a_type_with_a_rhythm_of_its_own_has_a_worker_of_its_own():
    rest, *own = shares(5)

    assert [sorted(share.types) for share in own] == [["both"], ["slow"], ["small"]]
    assert [rest.has(name) for name in (*EVENTS, "never heard of")] == [True, True, False, False, False, True]


@pytest.mark.parametrize("threads", [1, 2, 3, 4, 5])
def test_every_type_is_served_by_one_worker(threads):
    found = shares(threads)

    assert len(found) == min(threads, 4)
    for name in (*EVENTS, "never heard of"):
        assert sum(share.has(name) for share in found) == 1


def test_without_such_types_one_worker_does_it_all():
    (only,) = shares(5, events={"plain": {"topic": "a"}})

    assert only.has("plain")
    assert only.has("never heard of")


def test_workers_have_names_for_the_log():
    assert len({share.name for share in shares(5)}) == 4
