"""A circuit, without time: what opens it, who tries again and when, and what closes it."""

from outbox_consumer.cache.circuit import FIRST_PAUSE, LONGEST_PAUSE, Circuit


def opened(now=0.0):
    circuit = Circuit()
    assert circuit.failed(circuit.let_through(now), now)
    return circuit


def test_closed_everything_passes():
    circuit = Circuit()

    assert [circuit.let_through(0.0) is not None for _ in range(3)] == [True] * 3
    assert not circuit.succeeded(circuit.let_through(0.0))


def test_the_first_failure_opens_it_and_nothing_passes_until_the_pause_is_over():
    circuit = opened(now=5.0)

    assert circuit.is_open
    assert circuit.let_through(5.0) is None
    assert circuit.let_through(5.0 + FIRST_PAUSE - 0.01) is None
    assert circuit.let_through(5.0 + FIRST_PAUSE) is not None


def test_one_call_tries_it_again_while_the_others_pass_by():
    circuit = opened()

    assert circuit.let_through(FIRST_PAUSE) is not None
    assert circuit.let_through(FIRST_PAUSE) is None


def test_its_success_closes_the_circuit_and_is_told_once():
    circuit = opened()
    trial = circuit.let_through(FIRST_PAUSE)

    assert circuit.succeeded(trial)
    assert not circuit.succeeded(trial)
    assert not circuit.is_open
    assert circuit.let_through(FIRST_PAUSE) is not None


def test_its_failure_doubles_the_pause_up_to_a_limit():
    circuit, now, pauses = opened(), 0.0, []
    for _ in range(7):
        began = now
        while (trial := circuit.let_through(now)) is None:
            now += 0.25
        pauses.append(now - began)
        assert not circuit.failed(trial, now)

    assert pauses == [1.0, 2.0, 4.0, 8.0, LONGEST_PAUSE, LONGEST_PAUSE, LONGEST_PAUSE]


def test_the_pauses_begin_anew_with_the_next_outage():
    circuit = opened()
    for now in (1.0, 3.0):
        circuit.failed(circuit.let_through(now), now)
    circuit.succeeded(circuit.let_through(7.0))

    circuit.failed(circuit.let_through(8.0), 8.0)

    assert circuit.let_through(9.0) is not None


def test_a_trial_whose_thread_died_does_not_keep_it_open_for_ever():
    circuit = opened()
    assert circuit.let_through(1.0) is not None

    assert circuit.let_through(2.0) is not None


def test_calls_from_before_the_change_tell_nothing_new():
    # given two calls that were under way when a third one failed
    circuit = Circuit()
    slow, slower, failing = (circuit.let_through(0.0) for _ in range(3))
    circuit.failed(failing, 0.0)

    # then neither the success of one closes the circuit, nor is the failure of the other told again
    assert not circuit.succeeded(slow)
    assert circuit.is_open
    assert not circuit.failed(slower, 0.5)

    # and one that failed before Redis came back does not open it anew
    late = circuit.let_through(1.0)
    circuit.succeeded(circuit.let_through(2.0))
    assert not circuit.failed(late, 2.0)
    assert not circuit.is_open
