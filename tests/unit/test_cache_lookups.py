"""How a consumer uses a cache, sync and async: what is asked, under which name, and what errors and threads are kept away from it."""

import asyncio
import os
import threading

import pytest

from outbox_consumer.cache import ConsumerCache, InProcessCache, TieredCache
from tests.caching import ids


class FixedEpoch:
    value = "cafe0123"

    def current(self):
        return self.value

    async def current_async(self):
        return self.value


class Spy:
    """A cache that somebody else wrote: it says neither a ttl nor what of it is immediate."""

    def __init__(self):
        self.calls, self.threads, self.within = [], [], InProcessCache()

    def __getattr__(self, name):
        if name in {"immediate", "ttl"}:
            raise AttributeError(name)

        def call(*arguments):
            self.calls.append((name, *arguments))
            self.threads.append(threading.current_thread())
            return getattr(self.within, name)(*arguments)

        return call


class Broken:
    def known(self, consumer, ids):
        raise RuntimeError("no")

    remember = forget = known

    def close(self):
        raise RuntimeError("no")


@pytest.fixture
def epoch():
    return FixedEpoch()


def test_ids_are_kept_under_epoch_and_consumer(epoch):
    spy, (one,) = Spy(), ids(1)
    cache = ConsumerCache(spy, "billing", epoch)

    look = cache.look([one])
    cache.remember(look, [one])
    cache.forget([one])

    assert spy.calls == [(name, "cafe0123:billing", [one]) for name in ("known", "remember", "forget")]


def test_without_a_cache_or_an_epoch_or_ids_nothing_is_asked_and_nothing_remembered(epoch):
    spy, some = Spy(), ids(2)
    none = ConsumerCache(None, "billing", epoch)
    none.remember(none.look(some), some)
    none.forget(some)
    none.close()

    cache = ConsumerCache(spy, "billing", epoch)
    assert not cache.look([]).was_asked
    cache.remember(cache.look(some), [])
    epoch.value = None
    look = cache.look(some)
    assert (look.was_asked, list(look.known)) == (False, [])
    cache.remember(look, some)
    cache.forget(some)

    assert [call[0] for call in spy.calls] == ["known"]


def test_a_cache_that_raises_is_told_of_once_and_costs_nothing_else(epoch, caplog):
    cache, some = ConsumerCache(Broken(), "billing", epoch), ids(2)

    for _ in range(3):
        look = cache.look(some)
        assert list(look.known) == []
        cache.remember(look, some)
        cache.forget(some)
    cache.close()

    assert caplog.text.count("which none may") == 1


def test_awaited_the_part_in_the_process_answers_on_the_loop(epoch):
    near, far, (one, other) = InProcessCache(), Spy(), ids(2)
    cache = ConsumerCache(TieredCache(near, far), "billing", epoch)

    async def work():
        await cache.remember_async(await cache.look_async([one]), [one])
        far.calls.clear()
        assert set((await cache.look_async([one])).known) == {one}
        assert far.calls == []
        assert set((await cache.look_async([one, other])).known) == {one}

    asyncio.run(work())

    assert far.calls == [("known", "cafe0123:billing", [other])]
    assert all(thread.name.startswith("outbox-cache") for thread in far.threads)


def test_awaited_a_cache_without_io_needs_no_thread(epoch, monkeypatch):
    monkeypatch.setattr("outbox_consumer.cache.lookups._in_a_thread", None)
    cache, (one,) = ConsumerCache(InProcessCache(), "billing", epoch), ids(1)

    async def work():
        await cache.remember_async(await cache.look_async([one]), [one])
        return await cache.look_async([one])

    assert set(asyncio.run(work()).known) == {one}


def test_awaited_an_unknown_cache_is_asked_in_a_thread_while_the_loop_goes_on(epoch):
    spy, (one,), came_on = Spy(), ids(1), threading.Event()
    slow = spy.within.known
    spy.within.known = lambda *call: came_on.wait(20) and slow(*call)
    cache = ConsumerCache(spy, "billing", epoch)

    async def work():
        looking = asyncio.create_task(cache.look_async([one]))
        await asyncio.sleep(0)
        came_on.set()  # nobody could do this if the loop stood still
        return await looking

    assert asyncio.run(work()).was_asked
    assert threading.current_thread() not in spy.threads


def test_awaited_without_a_cache_or_an_epoch_nothing_is_asked(epoch):
    spy, some = Spy(), ids(1)
    epoch.value = None

    async def work():
        for cache in (ConsumerCache(spy, "billing", epoch), ConsumerCache(None, "billing", epoch)):
            look = await cache.look_async(some)
            assert not look.was_asked
            await cache.remember_async(look, some)

    asyncio.run(work())
    assert spy.calls == []


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_has_threads_of_its_own(epoch):
    spy, some = Spy(), ids(1)
    cache = ConsumerCache(spy, "billing", epoch)
    asyncio.run(cache.look_async(some))

    child = os.fork()
    if child == 0:
        looked = asyncio.run(asyncio.wait_for(cache.look_async(some), 20))
        os._exit(0 if looked.was_asked else 1)

    assert os.waitpid(child, 0)[1] == 0
