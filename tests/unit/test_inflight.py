"""Batches on their way, and the one that must be alone."""

from outbox_publisher.relay.inflight import InFlight
from tests.clocks import HandHeldClock


def never():
    return False


def test_batches_set_out_together():
    inflight = InFlight(HandHeldClock())

    assert inflight.enter()
    assert inflight.enter()


def test_while_one_is_alone_no_other_sets_out():
    inflight = InFlight(HandHeldClock())

    with inflight.alone(5, never) as alone:
        assert alone
        assert inflight.enter(alone=True)
        assert not inflight.enter()
        inflight.leave()

    assert inflight.enter()


def test_whoever_wants_to_be_alone_waits_for_those_on_their_way_and_lets_no_other_set_out():
    clock = HandHeldClock()
    inflight = InFlight(clock)
    assert inflight.enter()
    refused = []
    clock.at(1, lambda: refused.append(not inflight.enter()))
    clock.at(2, inflight.leave)

    with inflight.alone(5, never) as alone:
        assert alone

    assert refused == [True]
    assert 2 <= clock.elapsed < 5


def test_where_they_do_not_arrive_in_time_it_is_not_alone():
    clock = HandHeldClock()
    inflight = InFlight(clock)
    assert inflight.enter()

    with inflight.alone(5, never) as alone:
        assert not alone

    assert clock.elapsed >= 5
    assert inflight.enter()


def test_two_cannot_be_alone():
    inflight = InFlight(HandHeldClock())

    with inflight.alone(5, never) as first, inflight.alone(5, never) as second:
        assert (first, second) == (True, False)
        assert not inflight.enter()


def test_leases_are_renewed_of_what_is_held_and_young_enough():
    clock = HandHeldClock()
    inflight = InFlight(clock)
    inflight.hold("old", clock.monotonic())
    clock.sleep(50)
    inflight.hold("young", clock.monotonic())
    inflight.hold("settled", clock.monotonic())
    inflight.release("settled")

    assert inflight.younger_than(40) == ["young"]
    assert inflight.younger_than(60) == ["old", "young"]
