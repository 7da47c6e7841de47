"""Two deliveries of one event at the same time: one runs, the other learns of its fate."""

import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session, sessionmaker

from outbox_consumer import EventInProgress, IdempotentConsumer, Outcome, Status
from tests.consuming import ConsumingDatabase, a_message, book, eventually, lock_waits, open_database


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as pool:
        yield pool


class HeldHandler:
    """Does its work, then stands still in its transaction until it is let go."""

    def __init__(self, error: Exception | None = None) -> None:
        self.entered = threading.Event()
        self.go_on = threading.Event()
        self.error = error

    def __call__(self, session: Session, message: dict[str, str]) -> None:
        book(session, message)
        self.entered.set()
        assert self.go_on.wait(60)
        if self.error is not None:
            raise self.error


def start_twins(
    threads: ThreadPoolExecutor, database: ConsumingDatabase, consumer: IdempotentConsumer, first: HeldHandler
) -> tuple["Future[Outcome[None]]", "Future[Outcome[str]]"]:
    """The first delivery stands in its handler, and the database says that the second waits for it."""
    message = a_message()
    one = threads.submit(consumer.consume, message, first)
    assert first.entered.wait(20)
    other = threads.submit(consumer.consume, message, book)
    eventually(lambda: lock_waits(database.engine) == 1)
    return one, other


@pytest.mark.parametrize("isolation", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
def test_the_second_waits_and_reports_a_duplicate(
    consuming_on_postgresql: ConsumingDatabase, threads: ThreadPoolExecutor, isolation: str
):
    database, first = consuming_on_postgresql, HeldHandler()
    engine = open_database(database.url, isolation_level=isolation)
    consumer = IdempotentConsumer(sessionmaker(engine), name="billing")
    one, other = start_twins(threads, database, consumer, first)

    first.go_on.set()

    assert one.result(20).status is Status.CONSUMED
    assert other.result(20).status is Status.DUPLICATE
    assert len(database.effects()) == 1
    engine.dispose()


@pytest.mark.parametrize("isolation", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
def test_the_second_runs_when_the_first_rolled_back(
    consuming_on_postgresql: ConsumingDatabase, threads: ThreadPoolExecutor, isolation: str
):
    database, first = consuming_on_postgresql, HeldHandler(LookupError("first"))
    engine = open_database(database.url, isolation_level=isolation)
    consumer = IdempotentConsumer(sessionmaker(engine), name="billing")
    one, other = start_twins(threads, database, consumer, first)

    first.go_on.set()

    with pytest.raises(LookupError):
        one.result(20)
    assert other.result(20).status is Status.CONSUMED
    assert len(database.effects()) == 1
    engine.dispose()


def test_other_events_and_other_consumers_do_not_wait(
    consuming_on_postgresql: ConsumingDatabase, threads: ThreadPoolExecutor
):
    database, first, message = consuming_on_postgresql, HeldHandler(), a_message()
    billing, shipping = database.consumer("billing"), database.consumer("shipping")
    one = threads.submit(billing.consume, message, first)
    assert first.entered.wait(20)

    assert billing.consume(a_message(), book)
    assert shipping.consume(message, book)

    first.go_on.set()
    assert one.result(20)


def test_a_wait_longer_than_the_lock_timeout_is_an_event_in_progress(
    consuming_on_postgresql: ConsumingDatabase, threads: ThreadPoolExecutor
):
    database, first, message = consuming_on_postgresql, HeldHandler(), a_message()
    patient, hasty = database.consumer(), database.consumer(lock_timeout="50ms")
    one = threads.submit(patient.consume, message, first)
    assert first.entered.wait(20)

    started = time.monotonic()
    with pytest.raises(EventInProgress, match="50ms"):
        hasty.consume(message, book)
    assert time.monotonic() - started < 4, "it did not wait for the default"
    with Session(database.engine) as session, session.begin():
        with pytest.raises(EventInProgress):
            hasty.claim(session, message)
        session.rollback()

    # then it is retryable: once the first is done, it is a plain duplicate
    first.go_on.set()
    assert one.result(20)
    assert not hasty.consume(message, book)
    assert len(database.effects()) == 1


@pytest.mark.parametrize(("before", "seen"), [(None, "0"), ("7s", "7s")])
def test_the_lock_timeout_does_not_leak(consuming_on_postgresql: ConsumingDatabase, before: str | None, seen: str):
    database = consuming_on_postgresql
    options = f"-c lock_timeout={before}" if before else ""
    engine = create_engine(database.url, connect_args={"options": options}, pool_size=1, max_overflow=0)
    consumer = IdempotentConsumer(engine, name="billing")
    message = a_message()

    def show(session: Session) -> str:
        shown: str = session.execute(text("SHOW lock_timeout")).scalar_one()
        return shown

    # into the handler, after a fresh mark
    assert consumer.consume(message, show).result == seen

    # into the caller's transaction, after a fresh mark, a duplicate, and in and after a savepoint
    with Session(engine) as session, session.begin():
        assert consumer.claim(session, a_message())
        assert show(session) == seen
        assert not consumer.claim(session, message)
        assert show(session) == seen
        with session.begin_nested():
            assert consumer.claim(session, a_message())
            assert show(session) == seen
        assert show(session) == seen
        session.execute(text("SET LOCAL lock_timeout = '3s'"))
        assert consumer.claim(session, a_message())
        assert show(session) == "3s"

    # onto the pooled connection
    with Session(engine) as session:
        assert show(session) == seen
    engine.dispose()


def test_the_lock_timeout_does_not_leak_from_a_wait_that_was_given_up(
    consuming_on_postgresql: ConsumingDatabase, threads: ThreadPoolExecutor
):
    database, first, message = consuming_on_postgresql, HeldHandler(), a_message()
    consumer, hasty = database.consumer(), database.consumer(lock_timeout="20ms")
    one = threads.submit(consumer.consume, message, first)
    assert first.entered.wait(20)

    with Session(database.engine) as session, session.begin():
        with pytest.raises(EventInProgress), session.begin_nested():
            hasty.claim(session, message)
        assert session.execute(text("SHOW lock_timeout")).scalar_one() == "0"

    first.go_on.set()
    assert one.result(20)


def test_a_deadlock_between_handlers_is_run_again(
    consuming_on_postgresql: ConsumingDatabase, threads: ThreadPoolExecutor
):
    # given two handlers that lock the same two rows in opposite order, and meet in the middle the first time
    database = consuming_on_postgresql
    with database.engine.begin() as connection:
        connection.execute(text("CREATE TABLE accounts (id int PRIMARY KEY, booked int NOT NULL)"))
        connection.execute(text("INSERT INTO accounts VALUES (1, 0), (2, 0)"))
    both_hold_one, runs = threading.Barrier(2), []

    def transfer(first: int, second: int) -> Callable[..., None]:
        met = False

        def handler(session, message):
            nonlocal met
            runs.append(first)
            session.execute(text("UPDATE accounts SET booked = booked + 1 WHERE id = :id"), {"id": first})
            if not met:
                met = True
                both_hold_one.wait(20)
            session.execute(text("UPDATE accounts SET booked = booked + 1 WHERE id = :id"), {"id": second})

        return handler

    consumer = database.consumer()

    # when both run
    one = threads.submit(consumer.consume, a_message(), transfer(1, 2))
    other = threads.submit(consumer.consume, a_message(), transfer(2, 1))

    # then the victim was begun again (once more where it came back before the other had woken up), and each effect is there once
    assert one.result(30)
    assert other.result(30)
    assert len(runs) >= 3
    with database.engine.connect() as connection:
        assert connection.execute(text("SELECT booked FROM accounts")).scalars().all() == [2, 2]


def test_a_serialization_failure_at_commit_is_run_again(
    consuming_on_postgresql: ConsumingDatabase, threads: ThreadPoolExecutor
):
    # given two handlers that each count the effects and add one: serial order is visible
    database = consuming_on_postgresql
    engine = open_database(database.url, isolation_level="SERIALIZABLE")
    consumer = IdempotentConsumer(sessionmaker(engine), name="billing")
    both_have_read, runs = threading.Barrier(2), []

    def handler(session, message):
        count = session.execute(text("SELECT count(*) FROM effects")).scalar_one()
        runs.append(count)
        if len(runs) <= 2:
            both_have_read.wait(20)
        book(session, {"outbox_event_id": f"after-{count}"})

    outcomes = [threads.submit(consumer.consume, a_message(), handler) for _ in range(2)]

    assert all(outcome.result(30) for outcome in outcomes)
    assert len(runs) >= 3
    assert database.effects() == ["after-0", "after-1"]
    engine.dispose()


def test_a_conflict_that_never_ends_comes_out_as_it_is(consuming_on_postgresql: ConsumingDatabase):
    database, runs = consuming_on_postgresql, []

    def always_conflicts(session, message):
        runs.append(message)
        book(session, message)
        session.execute(text("DO $$ BEGIN RAISE EXCEPTION 'again' USING ERRCODE = '40001'; END $$"))

    with pytest.raises(OperationalError, match="again"):
        database.consumer().consume(a_message(), always_conflicts)

    assert 2 <= len(runs) <= 10
    assert database.effects() == []
    assert database.marks() == []


def test_a_conflict_inside_the_callers_transaction_is_the_callers(consuming_on_postgresql: ConsumingDatabase):
    database, runs = consuming_on_postgresql, []
    database.consumer()

    def conflicts(session, message):
        runs.append(message)
        session.execute(text("DO $$ BEGIN RAISE EXCEPTION 'again' USING ERRCODE = '40001'; END $$"))

    with database.engine.connect() as connection, connection.begin():
        consumer = IdempotentConsumer(sessionmaker(connection), name="billing")
        with pytest.raises(OperationalError, match="again"):
            consumer.consume(a_message(), conflicts)

    assert len(runs) == 1


def test_a_busy_sqlite_is_an_event_in_progress(consuming_on_sqlite: ConsumingDatabase):
    database = consuming_on_sqlite
    database.consumer()
    hasty = create_engine(database.url, connect_args={"timeout": 0})
    consumer = IdempotentConsumer(hasty, name="billing", settings=database.consumer(lock_timeout="30ms").settings)
    message = a_message()

    with Session(database.engine) as session, session.begin():
        book(session, a_message())
        with pytest.raises(EventInProgress, match="SQLite"):
            consumer.consume(message, book)

    assert consumer.consume(message, book)
    hasty.dispose()


def test_a_sqlite_that_is_busy_for_a_while_is_waited_for(
    consuming_on_sqlite: ConsumingDatabase, threads: ThreadPoolExecutor
):
    # given a driver that does not wait by itself, and a writer that is in the way
    database, first = consuming_on_sqlite, HeldHandler()
    consumer = database.consumer()
    engine = create_engine(database.url, connect_args={"timeout": 0})
    impatient = IdempotentConsumer(engine, name="billing", settings=database.consumer(lock_timeout="30s").settings)
    one = threads.submit(consumer.consume, a_message(), first)
    assert first.entered.wait(20)

    # when the writer ends a little later
    other = threads.submit(impatient.consume, a_message(), book)
    threading.Timer(0.1, first.go_on.set).start()

    assert one.result(20)
    assert other.result(30)
    assert len(database.effects()) == 2
    engine.dispose()


def test_many_threads_and_copies_have_each_effect_once(database: ConsumingDatabase, threads: ThreadPoolExecutor):
    """The small twin of the proof: every event three times, in any order, with a handler that fails now and then."""
    consumer = database.consumer(lock_timeout="60s")
    messages = [a_message() for _ in range(40)]
    deliveries = messages * 3
    random.Random(7).shuffle(deliveries)
    chance = random.Random(11)

    def unreliable(session, message):
        book(session, message)
        if chance.random() < 0.1:
            raise LookupError

    def deliver(message) -> bool:
        while True:
            try:
                return bool(consumer.consume(message, unreliable))
            except LookupError:
                continue  # the broker delivers again

    ran = list(threads.map(deliver, deliveries, timeout=120))

    assert sum(ran) == len(messages)
    assert database.effects() == sorted(message["outbox_event_id"] for message in messages)
