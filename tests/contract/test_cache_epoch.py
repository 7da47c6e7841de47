"""The epoch: one for each database, read now and then, and whoever changes it makes every cache forget within ten seconds."""

import asyncio
import os
import signal
import threading

import pytest
from sqlalchemy import create_engine, event, make_url, text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import StaticPool

from outbox_consumer.cache import (
    ConsumerCache,
    Epoch,
    InProcessCache,
    RedisCache,
    TieredCache,
    current_epoch,
    next_epoch,
)
from outbox_consumer.cache.epoch import VALID, engine_beside, read_epoch
from outbox_consumer.schema import create_tables
from outbox_shared.tables import TableNames
from tests.caching import ids
from tests.clocks import HandHeldClock
from tests.consuming import open_database

NAMES = TableNames()


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def engine(request):
    url = request.getfixturevalue(f"fresh_{request.param}")()
    made = open_database(url)
    create_tables(made, NAMES)
    yield made
    made.dispose()


def begin_next_epoch(engine):
    with engine.begin() as connection:
        return next_epoch(connection)


class Statements:
    """Counts what is sent to a database."""

    def __init__(self, engine):
        self.seen = []
        event.listen(engine, "before_cursor_execute", lambda *call: self.seen.append(call[2]))


def test_nobody_has_used_a_cache_with_this_database_yet(engine):
    with engine.connect() as connection:
        assert current_epoch(connection) is None


def test_the_first_who_looks_writes_it_and_all_others_read_the_same(engine):
    made = Epoch(lambda: engine).current()

    assert made
    assert Epoch(lambda: engine).current() == read_epoch(engine, NAMES) == made
    with engine.connect() as connection:
        assert current_epoch(connection) == made


def test_several_who_look_first_at_once_agree(engine):
    start, seen = threading.Barrier(4), []

    def look():
        start.wait()
        seen.append(read_epoch(engine, NAMES))

    threads = [threading.Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(seen) == 4
    assert len(set(seen)) == 1


def test_the_next_one_is_new_and_kept_or_lost_with_its_transaction(engine):
    first = read_epoch(engine, NAMES)
    with engine.connect() as connection:
        next_epoch(connection)
        connection.rollback()
    assert read_epoch(engine, NAMES) == first

    second = begin_next_epoch(engine)

    assert read_epoch(engine, NAMES) == second != first


def test_it_can_be_changed_before_anybody_has_looked(engine):
    epoch = begin_next_epoch(engine)

    assert Epoch(lambda: engine).current() == epoch


def test_a_restored_database_cannot_come_back_to_an_epoch_that_was_used_since(engine):
    """As a number that is counted up would: backup at 1, forget → 2, restore → 1, forget → 2 again, with its old keys."""
    backup = read_epoch(engine, NAMES)
    used = begin_next_epoch(engine)
    with engine.begin() as connection:
        connection.execute(text("UPDATE outbox_state SET value = :value WHERE kind = 'epoch'"), {"value": backup})

    assert begin_next_epoch(engine) not in {backup, used}


def test_a_hit_needs_no_statement_and_the_epoch_one_now_and_then(engine):
    clock = HandHeldClock()
    cache = ConsumerCache(InProcessCache(), "billing", Epoch(lambda: engine, clock=clock))
    (one,) = ids(1)
    cache.remember(cache.look([one]), [one])
    statements = Statements(engine)

    for _ in range(40):
        assert one in cache.look([one]).known
        clock.sleep(0.1)
    assert statements.seen == []

    for _ in range(60):
        cache.look([one])
        clock.sleep(0.1)
    assert len([sql for sql in statements.seen if "outbox_state" in sql]) == 1


def test_every_cache_forgets_within_ten_seconds_of_a_new_epoch(engine, redis_url, prefix):
    # given two processes, the memory of each in front of the same Redis, both of which know an event
    clock = HandHeldClock()
    caches = [
        ConsumerCache(
            TieredCache(InProcessCache(clock=clock), RedisCache(redis_url, prefix=prefix)),
            "billing",
            Epoch(lambda: engine, clock=clock),
        )
        for _ in range(2)
    ]
    (one,) = ids(1)
    caches[0].remember(caches[0].look([one]), [one])
    assert all(one in cache.look([one]).known for cache in caches)

    begin_next_epoch(engine)
    clock.sleep(VALID)

    assert [one in cache.look([one]).known for cache in caches] == [False, False]
    caches[0].remember(caches[0].look([one]), [one])
    assert all(one in cache.look([one]).known for cache in caches)
    for cache in caches:
        cache.close()


def test_what_is_remembered_after_a_new_epoch_of_a_look_before_it_is_known_to_nobody(engine):
    """A process that stood still between COMMIT and cache, while its row was removed and the epoch changed."""
    clock = HandHeldClock()
    cache = ConsumerCache(InProcessCache(clock=clock), "billing", Epoch(lambda: engine, clock=clock))
    (one,) = ids(1)
    before = cache.look([one])

    begin_next_epoch(engine)
    clock.sleep(VALID)
    assert not cache.look([one]).known
    cache.remember(before, [one])

    assert not cache.look([one]).known


def test_without_a_database_to_ask_the_cache_is_not_asked_either(engine, caplog):
    clock = HandHeldClock()
    cache = ConsumerCache(InProcessCache(), "billing", Epoch(lambda: engine, clock=clock))
    (one,) = ids(1)
    cache.remember(cache.look([one]), [one])

    # when the table goes away, as a whole database might
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE outbox_state RENAME TO outbox_elsewhere"))

    # then what was read last counts for ten seconds, nothing after that, and it is said once
    clock.sleep(VALID - 1)
    assert cache.look([one]).known
    for _ in range(5):
        clock.sleep(2)
        assert not cache.look([one]).was_asked
    assert caplog.text.count("epoch of the caches cannot be read") == 1

    # and with the table the cache is back
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE outbox_elsewhere RENAME TO outbox_state"))
    clock.sleep(2)
    assert cache.look([one]).known


def test_two_databases_with_one_redis_keep_their_ids_apart(fresh_sqlite, redis_url, prefix):
    """A database that was made anew, or a copy for a test: the ids of the other one mean nothing there."""
    shared, caches = RedisCache(redis_url, prefix=prefix), []
    for _ in range(2):
        engine = open_database(fresh_sqlite())
        create_tables(engine, NAMES)
        caches.append(ConsumerCache(shared, "billing", Epoch(lambda engine=engine: engine)))
    (one,) = ids(1)

    caches[0].remember(caches[0].look([one]), [one])

    assert [one in cache.look([one]).known for cache in caches] == [True, False]
    shared.close()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_reads_the_epoch_by_itself(fresh_sqlite):
    # given a fork while another thread of the parent is reading
    engine = open_database(fresh_sqlite())
    create_tables(engine, NAMES)
    epoch = Epoch(lambda: engine)
    with epoch._reading:
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            engine.dispose(close=False)
            os._exit(0 if epoch.current() else 1)

    assert os.waitpid(child, 0)[1] == 0
    engine.dispose()


def test_where_a_look_would_be_inside_of_a_users_transaction_there_is_none(fresh_sqlite):
    files, memory = create_engine(fresh_sqlite()), create_engine("sqlite://", poolclass=StaticPool)

    with files.connect() as connection:
        assert engine_beside(connection) is None
    assert engine_beside(memory) is None
    assert engine_beside(None) is None
    assert engine_beside(files) is files

    cache = ConsumerCache(InProcessCache(), "billing", Epoch(lambda: None))
    assert not cache.look(ids(1)).was_asked
    files.dispose()
    memory.dispose()


@pytest.mark.parametrize("driver", ["postgresql+asyncpg", "postgresql+psycopg_async"])
def test_awaited_it_is_read_through_the_async_engine(fresh_postgresql, driver):
    url = fresh_postgresql()
    engine = open_database(url)
    create_tables(engine, NAMES)
    clock = HandHeldClock()

    async def work():
        awaited = create_async_engine(make_url(url).set(drivername=driver))
        epoch = Epoch(lambda: awaited, clock=clock)
        first = await epoch.current_async()
        second = begin_next_epoch(engine)
        clock.sleep(VALID)
        assert [first, second] == [first, await epoch.current_async()]
        await awaited.dispose()
        return first

    assert asyncio.run(work())
    engine.dispose()
