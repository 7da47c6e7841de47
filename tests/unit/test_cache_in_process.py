"""The cache inside the process: what it knows, for how long, and how many."""

import os
import sys
import threading
from datetime import timedelta

import pytest

from outbox_consumer import ConfigurationError
from outbox_consumer.cache import InProcessCache
from tests.caching import ids
from tests.clocks import HandHeldClock


def test_an_id_is_forgotten_when_its_time_is_over():
    clock = HandHeldClock()
    cache = InProcessCache(ttl="1h", clock=clock)
    one, later = ids(2)
    cache.remember("billing", [one])
    clock.sleep(1800)
    cache.remember("billing", [later])
    assert cache.known("billing", [one, later]) == {one, later}

    clock.sleep(1800)

    assert cache.known("billing", [one, later]) == {later}


def test_a_hit_does_not_prolong_its_time():
    clock = HandHeldClock()
    cache = InProcessCache(ttl="10s", clock=clock)
    (one,) = ids(1)
    cache.remember("billing", [one])

    for _ in range(3):
        assert cache.known("billing", [one])
        clock.sleep(3.0)
    clock.sleep(1.0)

    assert not cache.known("billing", [one])


def test_a_full_cache_lets_go_of_what_was_used_longest_ago():
    cache = InProcessCache(size=3)
    first, second, third, fourth = ids(4)
    cache.remember("billing", [first, second, third])
    assert cache.known("billing", [first]) == {first}

    cache.remember("billing", [fourth])

    assert cache.known("billing", [first, second, third, fourth]) == {first, third, fourth}
    assert len(cache) == 3


def test_many_threads_at_once_keep_it_whole():
    # a plain TTLCache raises KeyError here; threads take turns as often as can be
    cache = InProcessCache(ttl="1ms", size=50)
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    errors, start = [], threading.Barrier(8)

    def work():
        mine = ids(100)
        start.wait()
        try:
            for _ in range(30):
                cache.remember("billing", mine)
                cache.known("billing", mine)
                cache.forget("billing", mine[::2])
        except Exception as error:  # noqa: BLE001
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.setswitchinterval(usual)

    assert errors == []
    assert len(cache) <= 50


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_begins_empty_and_does_not_wait_for_a_thread_of_its_parents():
    # given a fork while another thread holds the lock
    cache = InProcessCache()
    (one,) = ids(1)
    cache.remember("billing", [one])
    with cache._lock:
        child = os.fork()
        if child == 0:
            os._exit(len(cache.known("billing", [one])))

    assert os.waitpid(child, 0)[1] == 0
    assert cache.known("billing", [one]) == {one}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"ttl": 3600}, "ttl: write a duration with its unit"),
        ({"ttl": "0"}, "ttl: write 1ms or more"),
        ({"ttl": timedelta(seconds=-1)}, "negative"),
        ({"size": 0}, "size: a cache has room for one id or more"),
    ],
)
def test_what_cannot_work_is_refused(options, said):
    with pytest.raises(ConfigurationError, match=said):
        InProcessCache(**options)
