"""Processes that die or stand still inside a guard: the event is somebody else's when the lease is over, not before and not never."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from outbox_consumer import EventInProgress, RedisIdempotency
from tests.caching import ids
from tests.consuming import eventually

LEASE = "1500ms"


class Worker:
    """A process that is in the middle of its work on one event."""

    def __init__(self, url, prefix, event_id):
        script = str(Path(__file__).with_name("guarded.py"))
        self.process = subprocess.Popen(
            [sys.executable, script, url, prefix, LEASE, str(event_id)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self.heard() == b"w"

    def heard(self):
        return self.process.stdout.read(1)

    def finish(self):
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()
        return self.heard()

    def close(self):
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def event_id():
    return ids(1)[0]


@pytest.fixture
def worker(redis_url, prefix, event_id):
    made = Worker(redis_url, prefix, event_id)
    yield made
    made.close()


@pytest.fixture
def other(redis_url, prefix):
    made = RedisIdempotency(redis_url, "billing", prefix=prefix, lease=LEASE)
    yield made
    made.close()


@pytest.fixture
def lease_over(redis_client, prefix, event_id):
    return lambda: redis_client.get(f"{prefix}:billing:{event_id}") is None


def refused(other, event_id):
    with pytest.raises(EventInProgress), other.guard(event_id):
        pytest.fail("two at once")


def work(other, event_id):
    with other.guard(event_id) as fresh:
        return bool(fresh)


def test_a_killed_process_keeps_its_event_until_the_lease_is_over(worker, other, event_id, lease_over):
    worker.process.send_signal(signal.SIGKILL)
    worker.process.wait()
    refused(other, event_id)

    eventually(lease_over)

    assert work(other, event_id) is True
    assert work(other, event_id) is False


def test_a_process_that_works_for_longer_than_its_lease_keeps_it(worker, other, event_id, redis_client, prefix):
    key = f"{prefix}:billing:{event_id}"
    renewed, last = 0, redis_client.pttl(key)
    while renewed < 6:  # twice the lease
        left = redis_client.pttl(key)
        assert left > 0
        renewed, last = renewed + (left > last), left

    refused(other, event_id)
    assert worker.finish() == b"d"
    assert work(other, event_id) is False


def test_a_process_that_stood_still_hears_that_another_has_done_its_work(worker, other, event_id, lease_over):
    # given a process that stops in the middle of its work, and another one that does it when the lease is over
    worker.process.send_signal(signal.SIGSTOP)
    eventually(lease_over)
    assert work(other, event_id) is True

    # when the first one goes on
    worker.process.send_signal(signal.SIGCONT)

    # then it is told, and the mark of the other stays
    assert worker.finish() == b"l"
    assert work(other, event_id) is False


def test_a_process_that_stood_still_and_was_not_missed_records_its_work(worker, other, event_id, lease_over):
    worker.process.send_signal(signal.SIGSTOP)
    eventually(lease_over)
    worker.process.send_signal(signal.SIGCONT)

    assert worker.finish() == b"d"
    assert work(other, event_id) is False
