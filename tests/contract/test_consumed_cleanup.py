"""Consumed rows go when their ttl is over, in bounded batches, one cleaner at a time; whoever consumes starts that, and close() ends it."""

import gc
import itertools
import logging
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import create_engine, event, text
from sqlalchemy.pool import QueuePool, StaticPool

from outbox_consumer.cleaning import duty, threads
from outbox_consumer.cleaning.duty import Cleaning, Undisturbed
from outbox_consumer.cleanup import keep_clean
from outbox_shared.clock import SystemClock
from outbox_shared.database import make_engine
from outbox_shared.tables import TableNames
from tests.clocks import HandHeldClock
from tests.consuming import eventually

SOON = {"fixed-delay": "20ms"}


def cleaning(database, clock=None, tell=lambda _count: None, **settings):
    clean_up = database.settings(clean_up=settings).clean_up
    return Cleaning(lambda: database.engine, TableNames(), lambda: clean_up, clock or SystemClock(), tell)


def cleaners():
    return [thread.name for thread in threading.enumerate()].count(f"outbox-{threads.THREAD}")


@pytest.fixture(autouse=True)
def _no_cleaner_is_left():
    yield
    assert cleaners() == 0


# The work.


def test_rows_go_after_their_ttl_and_no_others_whosoever_they_are(consumed_database):
    # given rows of two consumers, and failures that nobody came back for, on both sides of seven days
    kept = {name: set(consumed_database.consumed(3, days=6.9, consumer=name)) for name in ("billing", "mailing")}
    consumed_database.consumed(4, days=7.1)
    consumed_database.consumed(2, days=700, consumer="mailing")
    consumed_database.failed(3, days=7.1)
    consumed_database.failed(2, days=6.9)
    told = []

    it = cleaning(consumed_database, tell=told.append)

    assert [it.run_once(), it.run_once()] == [9, 0]
    assert sum(told) == 6  # the consumed ones
    assert {name: consumed_database.ids(name) for name in kept} == kept
    assert consumed_database.rows("attempts") == 2
    assert consumed_database.leases() == []


def test_rows_go_in_bounded_batches(consumed_database):
    consumed_database.consumed(25, days=8)
    sizes = []

    cleaning(consumed_database, tell=sizes.append, **{"batch-size": 10}).run_once()

    assert sizes == [10, 10, 5]
    assert consumed_database.rows() == 0


def test_rows_of_one_moment_go_in_bounded_batches_too(consumed_database):
    # given a batch of messages, whose rows were written in the same microsecond
    table = consumed_database.upkeep.consumed.name
    consumed_database.consumed(25, days=8)
    with consumed_database.engine.begin() as connection:
        newest = connection.execute(text(f"SELECT max(consumed_at) FROM {table}")).scalar_one()
        connection.execute(text(f"UPDATE {table} SET consumed_at = :newest"), {"newest": newest})
    sizes = []

    cleaning(consumed_database, tell=sizes.append, **{"batch-size": 10}).run_once()

    assert sizes == [10, 10, 5]


def test_between_two_batches_everybody_else_gets_the_database(consumed_database):
    consumed_database.consumed(6, days=8)
    clock = HandHeldClock()
    began = []

    @event.listens_for(consumed_database.engine, "before_cursor_execute")
    def _work(_connection, _cursor, statement, *_):
        if "DELETE" in statement and "consumed_events" in statement:
            began.append(clock.elapsed)
            clock.now += 0.1

    cleaning(consumed_database, clock, **{"batch-size": 2}).run_once()

    pauses = [later - earlier - 0.1 for earlier, later in itertools.pairwise(began)]
    assert len(began) >= 3
    assert all(pause == pytest.approx(0.1 * duty.REST) for pause in pauses)


def test_a_row_that_was_committed_late_is_found_within_a_minute(consumed_database):
    # given a cleaner that has cleaned up to now
    clock = HandHeldClock()
    it = cleaning(consumed_database, clock)
    consumed_database.consumed(3, days=8)
    assert it.run_once() == 3

    # when a row appears before the place where it ended
    consumed_database.consumed(1, days=9)
    found = [it.run_once()]
    clock.now += duty.FROM_THE_START
    found.append(it.run_once())

    assert found[-1] == 1 or found[0] == 1  # what is deleted on SQLite is gone, and it looks at the start each time
    assert consumed_database.rows() == 0


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_a_batch_begins_where_the_last_one_ended(request, kind, monkeypatch):
    """What is deleted stays in the index for as long as anybody's transaction sees it."""
    database = request.getfixturevalue(f"consumed_on_{kind}")
    database.consumed(30, days=8)
    expired = database.upkeep.expired_events
    begins, drop = [], type(expired).drop

    def note(self, connection, ttl, limit, behind):
        begins.append(behind)
        return drop(self, connection, ttl, limit, behind)

    monkeypatch.setattr(type(expired), "drop", note)
    it = cleaning(database, HandHeldClock(), **{"batch-size": 10})

    assert it.run_once() == 30
    assert len(set(begins)) == len(begins) >= 3
    assert sorted(begins) == begins


def test_only_the_holder_of_the_lease_cleans(consumed_database):
    consumed_database.consumed(3, days=8)
    consumed_database.hold_lease()
    it = cleaning(consumed_database)

    assert it.run_once() == 0
    assert consumed_database.rows() == 3

    consumed_database.hold_lease(seconds=-1.0)  # its holder has died, and the lease is over
    assert it.run_once() == 3


def test_where_nothing_is_due_nothing_is_written(consumed_database):
    consumed_database.consumed(3, days=1)
    seen = []
    event.listen(
        consumed_database.engine, "before_cursor_execute", lambda _c, _k, statement, *_: seen.append(statement)
    )

    cleaning(consumed_database).run_once()

    assert len(seen) >= 2
    assert [
        statement for statement in seen if not statement.lstrip().startswith(("SELECT", "BEGIN", "SET SESSION"))
    ] == []


def test_many_cleaners_at_once_remove_each_row_once_and_one_at_a_time(consumed_database):
    # given instances with connections of their own, as processes have
    consumed_database.consumed(200, days=8)
    consumed_database.consumed(5, days=1)
    working, most, lock = 0, 0, threading.Lock()
    engines = [make_engine(consumed_database.url, "outbox-consumer") for _ in range(6)]

    def clean(engine):
        nonlocal working, most
        clean_up = consumed_database.settings(clean_up={"batch-size": 7}).clean_up
        it = Cleaning(lambda: engine, TableNames(), lambda: clean_up, SystemClock(), lambda _count: None)

        @event.listens_for(engine, "before_cursor_execute")
        def _begin(_connection, _cursor, statement, *_):
            nonlocal working, most
            if "DELETE" in statement and "consumed_events" in statement:
                with lock:
                    working += 1
                    most = max(most, working)

        @event.listens_for(engine, "after_cursor_execute")
        def _end(_connection, _cursor, statement, *_):
            nonlocal working
            if "DELETE" in statement and "consumed_events" in statement:
                with lock:
                    working -= 1

        return it.run_once() + sum(it.run_to_the_end())

    with ThreadPoolExecutor(6) as pool:
        gone = list(pool.map(clean, engines))
    for engine in engines:
        engine.dispose()

    assert (sum(gone), most) == (200, 1)
    assert consumed_database.rows() == 5
    assert consumed_database.leases() == []


@pytest.mark.parametrize("level", ["SERIALIZABLE", "REPEATABLE READ"])
@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_an_application_at_a_strict_isolation_is_cleaned_and_stays_there(request, kind, level):
    database = request.getfixturevalue(f"consumed_on_{kind}")
    database.consumed(3, days=8)
    engine = create_engine(database.engine.url, isolation_level=level)
    levels = []

    @event.listens_for(engine, "before_cursor_execute")
    def _look(connection, _cursor, statement, *_):
        if "DELETE" in statement and "consumed_events" in statement:
            levels.append(connection.get_isolation_level())

    settings = database.settings().clean_up
    Cleaning(lambda: engine, TableNames(), lambda: settings, SystemClock(), lambda _count: None).run_once()

    assert set(levels) == {"READ COMMITTED"}
    with engine.connect() as connection:
        assert connection.get_isolation_level() == level
    engine.dispose()


# Who does it, and when.


def test_whoever_consumes_cleans_until_it_is_closed(consumed_database):
    consumed_database.consumed(30, days=8)
    consumed_database.consumed(2, days=1)

    keeping = keep_clean(consumed_database.engine, consumed_database.settings(clean_up={"batch-size": 4, **SOON}))
    eventually(lambda: consumed_database.rows() == 2)
    consumed_database.consumed(3, days=9)
    keeping.close()

    assert (cleaners(), keeping.ended) == (0, True)
    consumed_database.consumed(1, days=8)
    assert consumed_database.leases() == []
    keeping.close()  # as often as one likes


def test_one_thread_cleans_for_all_consumers_of_a_database_and_the_last_one_ends_it(consumed_database):
    # given consumers with engines of their own, in one process
    engines = [make_engine(consumed_database.url, "outbox-consumer") for _ in range(2)]
    settings = consumed_database.settings(clean_up=SOON)
    first, second, third = (keep_clean(engine, settings) for engine in (*engines, engines[0]))
    assert cleaners() == 1

    # when those go whose engine it has used
    first.close()
    third.close()
    engines[0].dispose()
    assert cleaners() == 1

    # then the other one's is used
    consumed_database.consumed(3, days=8)
    eventually(lambda: consumed_database.rows() == 0)
    second.close()
    assert cleaners() == 0
    engines[1].dispose()


def test_of_several_consumers_in_a_process_the_longest_ttl_counts(consumed_database):
    long, short = (consumed_database.settings(clean_up={"ttl": ttl, **SOON}) for ttl in ("7d", "1d"))
    keepings = [keep_clean(consumed_database.engine, settings) for settings in (long, short)]
    kept = set(consumed_database.consumed(3, days=2))
    consumed_database.consumed(3, days=8)

    eventually(lambda: consumed_database.ids() == kept)
    for keeping in keepings:
        keeping.close()


def test_different_tables_are_cleaned_apart(consumed_on_sqlite):
    other = consumed_on_sqlite.settings(tables={"prefix": "other_"}, clean_up=SOON)
    keepings = [keep_clean(consumed_on_sqlite.engine, it) for it in (consumed_on_sqlite.settings(), other)]

    assert cleaners() == 2

    for keeping in keepings:
        keeping.close()


def test_a_consumer_that_nobody_closed_ends_its_cleaner_when_it_is_collected(consumed_on_sqlite):
    keeping = keep_clean(consumed_on_sqlite.engine, consumed_on_sqlite.settings())
    assert cleaners() == 1

    del keeping
    gc.collect()

    eventually(lambda: cleaners() == 0)


def test_a_cleaner_keeps_no_engine_alive(consumed_on_sqlite):
    engine = create_engine(consumed_on_sqlite.url)
    keeping = keep_clean(engine, consumed_on_sqlite.settings(clean_up=SOON))
    engine.dispose()
    eventually(lambda: cleaners() == 0)

    del engine
    gc.collect()

    assert keeping._user.engine() is None


def test_an_engine_that_is_disposed_of_is_not_opened_again_and_cleaning_is_asked_for_anew(consumed_database):
    engine = make_engine(consumed_database.url, "outbox-consumer")
    settings = consumed_database.settings(clean_up={"fixed-delay": "1ms"})
    keeping = keep_clean(engine, settings)
    eventually(lambda: engine.pool.checkedin() > 0)

    engine.dispose()

    assert (keeping.ended, cleaners(), engine.pool.checkedin()) == (True, 0, 0)
    again = keep_clean(engine, settings)
    assert (again.ended, cleaners()) == (False, 1)
    again.close()
    engine.dispose()


def test_what_is_collected_late_does_not_end_its_successor(consumed_on_sqlite):
    # given a keeping whose cleaner ended with its engine, and another one in its place
    settings = consumed_on_sqlite.settings()
    late = keep_clean(consumed_on_sqlite.engine, settings)
    consumed_on_sqlite.engine.dispose()
    keeping = keep_clean(consumed_on_sqlite.engine, settings)

    del late
    gc.collect()

    another = keep_clean(consumed_on_sqlite.engine, settings)
    assert (cleaners(), another._cleaner is keeping._cleaner) == (1, True)
    keeping.close()
    another.close()


def test_a_process_that_may_have_no_more_threads_goes_on_without(consumed_on_sqlite, monkeypatch):
    def refuse(_thread):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        keeping = keep_clean(consumed_on_sqlite.engine, consumed_on_sqlite.settings())

    assert keeping.ended
    keeping.close()
    again = keep_clean(consumed_on_sqlite.engine, consumed_on_sqlite.settings())
    assert (again.ended, cleaners()) == (False, 1)
    again.close()


def test_clean_up_can_be_turned_off(consumed_on_sqlite):
    keeping = keep_clean(consumed_on_sqlite.engine, consumed_on_sqlite.settings(clean_up={"enabled": False}))

    assert (cleaners(), keeping.ended) == (0, False)
    keeping.close()


@pytest.mark.parametrize(
    "engine",
    [
        create_engine("sqlite://"),
        create_engine("sqlite:///file.db", poolclass=StaticPool),
        create_engine("sqlite:///file:shared?mode=memory&uri=true", poolclass=QueuePool),
    ],
    ids=["in memory", "one connection for all", "shared memory"],
)
def test_nothing_is_cleaned_where_a_commit_would_be_the_users(consumed_on_sqlite, engine):
    keeping = keep_clean(engine, consumed_on_sqlite.settings())

    assert cleaners() == 0
    keeping.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_cleans_by_itself_once_it_asks(consumed_database):
    # given a process that cleans
    settings = consumed_database.settings(clean_up=SOON)
    keeping = keep_clean(consumed_database.engine, settings)
    eventually(lambda: cleaners() == 1)
    reading, writing = os.pipe()

    # when it forks
    child = os.fork()
    if child == 0:
        try:
            told = [keeping.ended, threading.active_count()]
            consumed_database.engine.dispose(close=False)
            again = keep_clean(consumed_database.engine, settings)
            told.append(cleaners())
            again.close()
            told.append(cleaners())
            os.write(writing, repr(told).encode())
        finally:
            os._exit(0)

    # then the child has no thread until it asks, and the parent's goes on
    os.close(writing)
    with os.fdopen(reading) as pipe:
        told = pipe.read()
    os.waitpid(child, 0)
    assert told == repr([True, 1, 1, 0])
    assert (keeping.ended, cleaners()) == (False, 1)
    keeping.close()


# When something is wrong.


def test_an_error_is_told_once_and_the_next_run_tries_again(consumed_database, caplog):
    consumed_database.consumed(3, days=8)
    state = consumed_database.upkeep.state_table.name
    with consumed_database.engine.begin() as connection:
        connection.execute(text(f"ALTER TABLE {state} RENAME TO elsewhere"))
    caplog.set_level(logging.INFO, "outbox_consumer")
    it = Undisturbed(cleaning(consumed_database))

    assert [it.run_once() for _ in range(3)] == [0, 0, 0]

    said = [record.getMessage() for record in caplog.records if record.name == "outbox_consumer.cleaning.duty"]
    assert len(said) == 1
    assert "run `outbox-consumer init-db` once" in said[0]
    assert "SELECT" not in said[0]
    with consumed_database.engine.begin() as connection:
        connection.execute(text(f"ALTER TABLE elsewhere RENAME TO {state}"))
    assert it.run_once() == 3
    assert "cleaned up again" in caplog.text


def test_a_thread_survives_a_database_that_is_away(consumed_on_postgresql, caplog):
    # given an engine that finds no server at first
    away = [True]
    engine = make_engine(consumed_on_postgresql.url, "outbox-consumer")

    @event.listens_for(engine, "do_connect")
    def _connect(_dialect, _record, _arguments, _keywords):
        if away:
            raise OSError("the network is down")

    consumed_on_postgresql.consumed(3, days=8)
    keeping = keep_clean(engine, consumed_on_postgresql.settings(clean_up=SOON))
    eventually(lambda: "the network is down" in caplog.text)

    away.clear()

    eventually(lambda: consumed_on_postgresql.rows() == 0)
    assert caplog.text.count("the network is down") == 1
    keeping.close()
    engine.dispose()


def test_an_application_that_uses_all_of_its_pool_hears_no_complaint(consumed_on_postgresql, caplog):
    engine = create_engine(consumed_on_postgresql.engine.url, pool_size=1, max_overflow=0, pool_timeout=0.01)
    consumed_on_postgresql.consumed(1, days=8)
    settings = consumed_on_postgresql.settings().clean_up
    it = Undisturbed(Cleaning(lambda: engine, TableNames(), lambda: settings, SystemClock(), lambda _count: None))

    with engine.connect():
        assert it.run_once() == 0
    assert it.run_once() == 1
    assert caplog.records == []
    engine.dispose()


def test_a_program_that_ends_while_it_cleans_ends_at_once_and_gives_the_lease_back(consumed_database):
    consumed_database.consumed(300, days=8)
    program = """
import sys
from outbox_consumer import ConsumerSettings
from outbox_consumer.cleanup import keep_clean
from outbox_shared.database import make_engine
engine = make_engine(sys.argv[1], "outbox-consumer")
keeping = keep_clean(engine, ConsumerSettings(clean_up={"batch-size": 1}))
print("cleaning", flush=True)
"""

    ended = subprocess.run(
        [sys.executable, "-c", program, consumed_database.url], capture_output=True, text=True, timeout=30, check=False
    )

    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "cleaning\n", "")
    assert consumed_database.leases() == []
