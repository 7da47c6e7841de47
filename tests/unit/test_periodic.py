"""Duties on their thread: when they are called, what their failures do, and how they end."""

import threading
import time
from datetime import timedelta

import pytest
from sqlalchemy.exc import OperationalError

from outbox_shared.periodic import Every, Rota
from tests.consuming import eventually

SOON = timedelta(milliseconds=5)
NEVER = timedelta(hours=1)


class Job:
    """A duty that remembers when it was called, and does what it is told: a number is how much was done, an error is raised."""

    def __init__(self, *results, name="job"):
        self.name = name
        self.results = list(results)
        self.calls = []

    def run_once(self):
        self.calls.append(time.monotonic())
        result = self.results.pop(0) if self.results else 0
        if isinstance(result, Exception):
            raise result
        return result


@pytest.fixture
def start():
    """start(*duties) -> a running Rota, stopped at the end."""
    rotas = []

    def run(*duties):
        rota = Rota("test", *duties)
        rotas.append(rota)
        rota.start()
        return rota

    yield run
    for rota in rotas:
        rota.stop()
    assert "outbox-test" not in [thread.name for thread in threading.enumerate()]


def test_a_duty_is_called_again_and_again(start):
    job = Job()

    start(Every(job, SOON))

    eventually(lambda: len(job.calls) >= 5)
    assert all(later - earlier >= 0.005 for earlier, later in zip(job.calls, job.calls[1:], strict=False))


def test_several_duties_share_one_thread_and_each_has_its_own_interval(start):
    often, once = Job(name="often"), Job(name="once")

    start(Every(often, SOON), Every(once, NEVER))

    eventually(lambda: len(often.calls) >= 5)
    assert len(once.calls) == 1
    assert [thread.name for thread in threading.enumerate()].count("outbox-test") == 1


def test_a_duty_waits_its_initial_delay_and_holds_up_no_other(start):
    later, now = Job(name="later"), Job(name="now")
    began = time.monotonic()

    start(Every(later, NEVER, timedelta(milliseconds=100)), Every(now, SOON))

    eventually(lambda: len(later.calls) == 1)
    assert later.calls[0] - began >= 0.1
    assert now.calls[0] < later.calls[0]


def test_one_that_repeats_is_called_until_nothing_is_due(start):
    job = Job(500, 500, 3, 0)

    start(Every(job, NEVER, repeats=True), Every(other := Job(name="other"), SOON))

    eventually(lambda: len(other.calls) >= 10)
    assert len(job.calls) == 4


def test_one_that_does_not_repeat_waits_whatever_it_did(start):
    job = Job(500, 500)

    start(Every(job, NEVER), Every(other := Job(name="other"), SOON))

    eventually(lambda: len(other.calls) >= 10)
    assert len(job.calls) == 1


def test_one_that_always_has_more_to_do_lets_the_others_in(start):
    busy = Job(*[1] * 100_000, name="busy")

    start(Every(busy, NEVER, repeats=True), Every(other := Job(name="other"), SOON))

    eventually(lambda: len(other.calls) >= 5)
    assert len(busy.calls) > 5


@pytest.mark.parametrize(
    "error", [RuntimeError("bug in a duty"), OperationalError("SELECT secret", {}, Exception("server gone"))], ids=repr
)
def test_a_failure_is_logged_and_ends_nothing(start, caplog, error):
    failing, other = Job(error, error, name="failing"), Job(name="other")

    start(Every(failing, SOON, repeats=True), Every(other, SOON))

    eventually(lambda: len(failing.calls) >= 4 and len(other.calls) >= 4)
    assert caplog.text.count("failing failed") == 2
    assert "bug in a duty" in caplog.text or "server gone" in caplog.text
    assert "SELECT secret" not in caplog.text


def test_a_failure_is_no_reason_to_come_back_at_once(start):
    job = Job(RuntimeError("bug"), RuntimeError("bug"))

    start(Every(job, NEVER, repeats=True), Every(other := Job(name="other"), SOON))

    eventually(lambda: len(other.calls) >= 10)
    assert len(job.calls) == 1


def test_stop_lets_the_running_duty_finish_and_starts_no_other():
    entered, let_go, done = threading.Event(), threading.Event(), []

    class Slow(Job):
        def run_once(self):
            entered.set()
            let_go.wait(20)
            done.append(super().run_once())
            return 0

    after = Job(name="after")
    rota = Rota("test", Every(Slow(), NEVER), Every(after, NEVER))
    rota.start()
    assert entered.wait(20)
    stopping = threading.Thread(target=rota.stop)
    stopping.start()
    eventually(rota._stopping.is_set)
    assert stopping.is_alive()

    let_go.set()
    stopping.join(20)

    assert not stopping.is_alive()
    assert (len(done), after.calls) == (1, [])


def test_stop_does_not_wait_for_an_interval_to_end(start):
    job = Job()
    rota = start(Every(job, NEVER))
    eventually(lambda: len(job.calls) == 1)

    rota.stop(timeout=20)

    assert "outbox-test" not in [thread.name for thread in threading.enumerate()]


def test_one_that_was_never_started_can_be_stopped():
    Rota("test", Every(Job(), SOON)).stop()
