"""The same cleaning as a task of the running loop, through async drivers."""

import asyncio
import functools
import gc
import time

from sqlalchemy import event
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from outbox_consumer.cleaning import tasks
from outbox_consumer.cleanup import keep_clean_async
from outbox_shared.sqlite import configure_sqlite

DRIVERS = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+asyncpg", "mysql": "mysql+asyncmy"}
SOON = {"fixed-delay": "20ms"}


def async_engine(database) -> AsyncEngine:
    url = make_url(database.url)
    engine = create_async_engine(url.set(drivername=DRIVERS[url.get_backend_name().replace("mariadb", "mysql")]))
    if url.get_backend_name() == "sqlite":
        configure_sqlite(engine.sync_engine)
    return engine


async def eventually(condition, within=20.0) -> None:
    """Looks from another thread: whoever blocked the loop would keep a cleaner from its commit, and SQLite's writers from theirs."""
    until = time.monotonic() + within
    while not await asyncio.to_thread(condition):
        assert time.monotonic() < until, "it did not happen in time"
        await asyncio.sleep(0.005)


def in_a_loop(test):
    """A coroutine function as a test of its own."""

    @functools.wraps(test)
    def run(**given):
        asyncio.run(test(**given))

    return run


def running() -> list[str]:
    return [task.get_name() for task in asyncio.all_tasks() if "cleanup" in task.get_name()]


@in_a_loop
async def test_whoever_consumes_cleans_until_it_is_closed(consumed_database):
    await asyncio.to_thread(consumed_database.consumed, 30, days=8)
    await asyncio.to_thread(consumed_database.consumed, 2, days=1)
    await asyncio.to_thread(consumed_database.failed, 3, days=8)
    engine = async_engine(consumed_database)

    keeping = keep_clean_async(engine, consumed_database.settings(clean_up={"batch-size": 4, **SOON}))
    await eventually(lambda: consumed_database.rows() == 2)
    await eventually(lambda: consumed_database.rows("attempts") == 0)
    await asyncio.to_thread(consumed_database.consumed, 3, days=8)
    await eventually(lambda: consumed_database.rows() == 2)
    await keeping.close()

    assert (running(), keeping.ended) == ([], True)
    assert consumed_database.leases() == []
    await asyncio.to_thread(consumed_database.consumed, 1, days=8)
    await asyncio.sleep(0.1)
    assert consumed_database.rows() == 3
    await keeping.close()
    await engine.dispose()


@in_a_loop
async def test_the_loop_goes_on_while_rows_are_cleaned(consumed_on_postgresql):
    await asyncio.to_thread(consumed_on_postgresql.consumed, 200, days=8)
    engine = async_engine(consumed_on_postgresql)
    turns = 0

    keeping = keep_clean_async(engine, consumed_on_postgresql.settings(clean_up={"batch-size": 10, **SOON}))
    while await asyncio.to_thread(consumed_on_postgresql.rows) > 0:
        turns += 1
        await asyncio.sleep(0)
    await keeping.close()
    await engine.dispose()

    assert turns > 20


@in_a_loop
async def test_one_task_cleans_for_all_consumers_of_a_loop_and_the_last_one_ends_it(consumed_database):
    engine = async_engine(consumed_database)
    settings = consumed_database.settings(clean_up=SOON)
    first, second = keep_clean_async(engine, settings), keep_clean_async(engine, settings)
    assert first._cleaner is second._cleaner

    await first.close()
    await asyncio.to_thread(consumed_database.consumed, 3, days=8)
    await eventually(lambda: consumed_database.rows() == 0)
    await second.close()

    assert running() == []
    await engine.dispose()


@in_a_loop
async def test_an_engine_that_is_disposed_of_is_not_opened_again_and_cleaning_is_asked_for_anew(consumed_database):
    engine = async_engine(consumed_database)
    opened: list[int] = []
    event.listen(engine.sync_engine, "connect", lambda *_: opened.append(1))
    settings = consumed_database.settings(clean_up={"fixed-delay": "1ms"})
    keeping = keep_clean_async(engine, settings)
    await eventually(lambda: len(opened) > 0)

    await engine.dispose()

    # a connection that was left open would be complained about when it is collected
    assert (keeping.ended, running()) == (True, [])
    gc.collect()
    again = keep_clean_async(engine, settings)
    assert not again.ended
    await asyncio.to_thread(consumed_database.consumed, 1, days=8)
    await eventually(lambda: consumed_database.rows() == 0)
    await again.close()
    await engine.dispose()


@in_a_loop
async def test_a_consumer_that_nobody_closed_ends_its_task_when_it_is_collected(consumed_on_sqlite):
    engine = async_engine(consumed_on_sqlite)
    keeping = keep_clean_async(engine, consumed_on_sqlite.settings(clean_up=SOON))
    cleaner = keeping._cleaner
    await eventually(lambda: cleaner._timer is not None and cleaner._task is None)

    del keeping
    gc.collect()

    await eventually(lambda: cleaner._timer is None and cleaner._task is None)
    await engine.dispose()


def test_a_loop_that_ends_ends_the_cleaning_and_the_next_loop_asks_anew(consumed_database):
    # given a consumer of a loop that nobody closes
    kept = []

    async def use() -> None:
        engine = async_engine(consumed_database)
        await asyncio.to_thread(consumed_database.consumed, 2, days=8)
        keeping = keep_clean_async(engine, consumed_database.settings(clean_up=SOON))
        kept.append(keeping)
        await eventually(lambda: consumed_database.rows() == 0)
        await engine.dispose()

    # when loops follow each other
    asyncio.run(use())
    asyncio.run(use())

    # then nothing of an old one is left
    assert all(keeping.ended for keeping in kept)
    asyncio.run(use())
    assert len([loop for loop in tasks._cleaners if loop.is_closed()]) <= 1


@in_a_loop
async def test_clean_up_can_be_turned_off(consumed_on_sqlite):
    engine = async_engine(consumed_on_sqlite)
    keeping = keep_clean_async(engine, consumed_on_sqlite.settings(clean_up={"enabled": False}))

    assert not keeping.ended
    await keeping.close()
    await engine.dispose()
