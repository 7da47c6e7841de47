"""Handlers in the process itself: their time, and the end of those that run, of the sender and of the process."""

import functools
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from outbox_publisher import Event
from outbox_publisher.senders import Kind, SendResult, Stoppable
from tests.consuming import eventually
from tests.contract.test_senders_handlers import TYPE, School, an_event, noted, threads


@pytest.fixture
def school() -> Iterator[School]:
    made = School()
    yield made
    made.sender.close()
    eventually(lambda: not threads())


class Stuck:
    """A handler that hangs at its second event until it is let go."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.hangs, self.go = threading.Event(), threading.Event()

    def __call__(self, event: Event) -> None:
        n = event.json()["n"]
        self.begun.append(n)
        if n == 1:
            self.hangs.set()
            assert self.go.wait(30)


@pytest.fixture
def stuck(school: School) -> Iterator[Stuck]:
    handler = Stuck()
    school.handlers.add(TYPE, handler)
    yield handler
    handler.go.set()


def test_past_the_deadline_the_running_event_is_charged_and_the_others_come_back_unsent(school, stuck):
    flight = school.fly(*(an_event(n) for n in range(4)), seconds=60)
    assert stuck.hangs.wait(10)
    assert not flight.done()

    school.clock.now += 60.0
    results = flight.results()

    assert flight.done()
    assert results[0].kind is Kind.DELIVERED
    assert (results[1].kind, results[1].charged, results[1].maybe_sent) == (Kind.RETRY, True, True)
    assert results[1].reason.startswith("handler still running after the batch's time of 60.0 s")
    assert results[2:] == [SendResult.retry("not begun within the batch's time", charged=False, after=0)] * 2


def test_a_thread_whose_handler_hangs_is_replaced_and_ends_without_another_event(school, stuck):
    flight = school.fly(*(an_event(n) for n in range(4)))
    assert stuck.hangs.wait(10)
    (lost,) = threads()
    school.clock.now += 60.0
    assert flight.done()  # a look is enough

    assert school.send(an_event(7))[0].kind is Kind.DELIVERED
    assert lost in threads()
    results = flight.results()
    stuck.go.set()
    eventually(lambda: lost not in threads())

    assert stuck.begun == [0, 1, 7]
    assert flight.results() == results
    assert len(threads()) == 1


def test_a_flight_that_is_stopped_begins_nothing_more_and_waits_for_what_runs(school, stuck):
    flight = school.fly(*(an_event(n) for n in range(4)))
    assert isinstance(flight, Stoppable)
    assert stuck.hangs.wait(10)

    flight.stop()
    assert not flight.done()
    stuck.go.set()
    results = flight.results()

    assert [result.kind for result in results[:2]] == [Kind.DELIVERED] * 2
    assert results[2:] == [SendResult.retry("the relay is stopping", charged=False, after=0)] * 2
    assert stuck.begun == [0, 1]


def test_a_stopped_flight_waits_no_longer_than_its_deadline(school, stuck):
    flight = school.fly(*(an_event(n) for n in range(3)))
    assert stuck.hangs.wait(10)

    flight.stop()
    school.clock.now += 60.0
    results = flight.results()

    assert [result.charged for result in results] == [False, True, False]
    assert results[2].reason == "the relay is stopping"


def open_files() -> int:
    folder = Path("/proc/self/fd")
    return len(list(folder.iterdir())) if folder.exists() else 0


def test_closing_again_and_again_leaves_no_thread_and_no_loop_behind(school):
    school.handlers.add(TYPE, functools.partial(noted, []))
    before = open_files()

    for _ in range(100):
        assert school.send(an_event())[0].kind is Kind.DELIVERED
        school.sender.close()
        school.sender.close()

    eventually(lambda: not threads())
    assert open_files() < before + 100  # a loop has three


def test_close_lets_the_running_handler_end_and_begins_nothing_more(school, stuck):
    flight = school.fly(*(an_event(n) for n in range(3)))
    assert stuck.hangs.wait(10)

    school.sender.close()
    stuck.go.set()

    assert [result.kind for result in flight.results()] == [Kind.DELIVERED, Kind.DELIVERED, Kind.RETRY]
    eventually(lambda: not threads())


RUNS_ALONE = """
import os, sys, time, threading
sys.path.insert(0, {root!r})
from outbox_publisher import Handlers, HandlerSender
from outbox_publisher.settings import SenderSettings
from tests.contract.test_senders_handlers import TYPE, an_event

handlers = Handlers()
sender = HandlerSender(handlers, SenderSettings())
"""


def run_alone(script: str) -> str:
    code = RUNS_ALONE.format(root=str(Path(__file__).parents[2])) + script
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stderr == ""
    return done.stdout


def test_a_handler_that_hangs_keeps_no_process_alive():
    began = time.monotonic()

    output = run_alone("""
hangs = threading.Event()
handlers.add(TYPE, lambda event: (hangs.set(), time.sleep(300)))
sender.send([an_event()], time.monotonic() + 300)
hangs.wait(10)
print("leaving")
""")

    assert output == "leaving\n"
    assert time.monotonic() - began < 30


def test_a_forked_child_runs_handlers_on_threads_of_its_own():
    output = run_alone("""
handlers.add(TYPE, lambda event: None)
def send():
    return sender.send([an_event()], time.monotonic() + 10).results()[0].kind
parent = send()
pid = os.fork()
if pid == 0:
    os._exit(0 if send() == "delivered" else 1)
print(parent, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), send())
""")

    assert output.split() == ["delivered", "0", "delivered"]
