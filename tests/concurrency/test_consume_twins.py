"""Two deliveries of one event at the same time: one runs, the other learns of its fate."""

import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from sqlalchemy import create_engine, event, text
from sqlalchemy.engine import Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, sessionmaker

from outbox_consumer import ConsumerSettings, EventInProgress, IdempotentConsumer, Outcome, Status
from outbox_consumer.store.mysql import MysqlConsumed
from tests.consuming import ConsumingDatabase, a_message, book, book_all, eventually, lock_waits


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
    consumer.consume(a_message(), lambda session: None)  # creates the tables
    one = threads.submit(consumer.consume, message, first)
    assert first.entered.wait(20)
    other = threads.submit(consumer.consume, message, book)
    eventually(lambda: lock_waits(database.engine) == 1)
    return one, other


ISOLATION = pytest.mark.parametrize("isolation", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])


@ISOLATION
def test_the_second_waits_and_reports_a_duplicate(
    on_a_server: ConsumingDatabase, threads: ThreadPoolExecutor, isolation: str
):
    database, first = on_a_server, HeldHandler()
    consumer = database.consumer(engine_options={"isolation_level": isolation})
    one, other = start_twins(threads, database, consumer, first)

    first.go_on.set()

    assert one.result(20).status is Status.CONSUMED
    assert other.result(20).status is Status.DUPLICATE
    assert len(database.effects()) == 1


@ISOLATION
def test_the_second_runs_when_the_first_rolled_back(
    on_a_server: ConsumingDatabase, threads: ThreadPoolExecutor, isolation: str
):
    database, first = on_a_server, HeldHandler(LookupError("first"))
    consumer = database.consumer(engine_options={"isolation_level": isolation})
    one, other = start_twins(threads, database, consumer, first)

    first.go_on.set()

    with pytest.raises(LookupError):
        one.result(20)
    assert other.result(20).status is Status.CONSUMED
    assert len(database.effects()) == 1


def test_of_three_copies_one_runs_when_the_first_rolled_back(
    on_a_server: ConsumingDatabase, threads: ThreadPoolExecutor
):
    """On MariaDB the two that wait deadlock with each other, most of the time: the victim begins again."""
    database, consumer = on_a_server, on_a_server.consumer()
    for _ in range(3):
        first, message = HeldHandler(LookupError("first")), a_message()
        one = threads.submit(consumer.consume, message, first)
        assert first.entered.wait(20)
        others = [threads.submit(consumer.consume, message, book) for _ in range(2)]
        eventually(lambda: lock_waits(database.engine) == 2)
        first.go_on.set()

        with pytest.raises(LookupError):
            one.result(20)
        assert sorted(bool(other.result(20)) for other in others) == [False, True]

    assert len(database.effects()) == 3


def test_other_events_and_other_consumers_do_not_wait(on_a_server: ConsumingDatabase, threads: ThreadPoolExecutor):
    database, first, message = on_a_server, HeldHandler(), a_message()
    billing, shipping = database.consumer("billing"), database.consumer("shipping")
    one = threads.submit(billing.consume, message, first)
    assert first.entered.wait(20)

    assert billing.consume(a_message(), book)
    assert shipping.consume(message, book)
    assert billing.consume_batch([a_message(), a_message()], book_all)

    first.go_on.set()
    assert one.result(20)


def test_a_batch_waits_for_the_one_event_that_is_in_progress(
    on_a_server: ConsumingDatabase, threads: ThreadPoolExecutor
):
    database, first, message = on_a_server, HeldHandler(), a_message()
    consumer, others = database.consumer(), [a_message() for _ in range(4)]
    one = threads.submit(consumer.consume, message, first)
    assert first.entered.wait(20)
    batch = threads.submit(consumer.consume_batch, [*others[:2], message, *others[2:]], book_all)
    eventually(lambda: lock_waits(database.engine) == 1)

    first.go_on.set()

    assert one.result(20)
    assert [bool(outcome) for outcome in batch.result(20)] == [True, True, False, True, True]
    assert len(database.effects()) == 5


def test_batches_that_overlap_in_any_order_neither_deadlock_nor_repeat(
    on_a_server: ConsumingDatabase, threads: ThreadPoolExecutor
):
    """Sorted ids: whoever comes second waits at the first common one, and holds nothing that the first still needs."""
    database, conflicts = on_a_server, []
    consumer, messages = database.consumer(lock_timeout="60s"), [a_message() for _ in range(60)]
    consumer.consume(a_message(), lambda session: None)
    chance = random.Random(3)

    def deliver(seed: int) -> int:
        part = random.Random(seed).sample(messages, 30)
        return sum(map(bool, consumer.consume_batch(part, book_all)))

    @event.listens_for(Engine, "handle_error")
    def _count(context) -> None:
        if any(word in str(context.original_exception).lower() for word in ("deadlock", "1213")):
            conflicts.append(context.original_exception)

    try:
        ran = sum(threads.map(deliver, [chance.random() for _ in range(40)], timeout=120))
    finally:
        event.remove(Engine, "handle_error", _count)

    assert ran == len(database.effects()) == len(set(database.effects()))
    assert conflicts == []


def test_a_wait_longer_than_the_lock_timeout_is_an_event_in_progress(
    on_a_server: ConsumingDatabase, threads: ThreadPoolExecutor
):
    database, first, message = on_a_server, HeldHandler(), a_message()
    patient, hasty = database.consumer(), database.consumer(lock_timeout="50ms")
    one = threads.submit(patient.consume, message, first)
    assert first.entered.wait(20)

    started = time.monotonic()
    with pytest.raises(EventInProgress, match="50ms"):
        hasty.consume(message, book)
    assert time.monotonic() - started < 4, "it did not wait for the default"
    with pytest.raises(EventInProgress, match="one of the batch's 2 events"):
        hasty.consume_batch([a_message(), message], book_all, on_error="bisect")

    # then it is retryable: once the first is done, it is a plain duplicate
    first.go_on.set()
    assert one.result(20)
    assert not hasty.consume(message, book)
    assert len(database.effects()) == 1


def test_a_claim_gives_up_the_wait_too(threads: ThreadPoolExecutor, sync_server: ConsumingDatabase):
    database, first, message = sync_server, HeldHandler(), a_message()
    one = threads.submit(database.consumer().consume, message, first)
    assert first.entered.wait(20)
    hasty = database.consumer(lock_timeout="50ms")

    with Session(database.engine) as session, session.begin():
        with pytest.raises(EventInProgress):
            hasty.claim(session, message)
        session.rollback()

    first.go_on.set()
    assert one.result(20)


@pytest.fixture(params=["postgresql", "mariadb"])
def sync_server(request: pytest.FixtureRequest) -> ConsumingDatabase:
    database: ConsumingDatabase = request.getfixturevalue(f"consuming_on_{request.param}")
    return database


def show_postgresql(session: Session) -> str:
    shown: str = session.execute(text("SHOW lock_timeout")).scalar_one()
    return shown


def show_mariadb(session: Session) -> int:
    shown: int = session.execute(text("SELECT @@SESSION.innodb_lock_wait_timeout")).scalar_one()
    return shown


@pytest.mark.parametrize(("before", "seen"), [(None, "0"), ("7s", "7s")])
def test_the_lock_timeout_does_not_leak_on_postgresql(
    consuming_on_postgresql: ConsumingDatabase, before: str | None, seen: str
):
    database, show = consuming_on_postgresql, show_postgresql
    options = f"-c lock_timeout={before}" if before else ""
    engine = create_engine(database.url, connect_args={"options": options}, pool_size=1, max_overflow=0)
    consumer = IdempotentConsumer(engine, name="billing")
    message = a_message()

    # into the handler, after a fresh mark, and after those of a batch
    assert consumer.consume(message, show).result == seen
    assert consumer.consume_batch([a_message(), a_message()], show)[0].result == seen

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


@pytest.mark.parametrize("as_mysql", [False, True], ids=["mariadb's form", "mysql's form"])
def test_the_lock_timeout_does_not_leak_on_mariadb(
    consuming_on_mariadb: ConsumingDatabase,
    threads: ThreadPoolExecutor,
    monkeypatch: pytest.MonkeyPatch,
    as_mysql: bool,
):
    """MySQL's form is valid here too, and this is where it can be run."""
    if as_mysql:
        monkeypatch.setattr(MysqlConsumed, "_is_mariadb", False)
    database, show, seen, message = consuming_on_mariadb, show_mariadb, 37, a_message()
    engine = database.open_engine(pool_size=1, max_overflow=0)
    event.listen(engine, "connect", lambda raw, _: raw.query("SET SESSION innodb_lock_wait_timeout = 37"))
    consumer = IdempotentConsumer(engine, name="billing")
    hasty = IdempotentConsumer(engine, name="billing", settings=ConsumerSettings(lock_timeout="1s"))

    # into the handler, and into the caller's transaction, after fresh marks and duplicates
    assert consumer.consume(message, show).result == seen
    assert consumer.consume_batch([a_message(), a_message()], show)[0].result == seen
    with Session(engine) as session, session.begin():
        for claim in (a_message(), message):
            consumer.claim(session, claim)
            assert show(session) == seen
        consumer.claim_batch(session, [a_message(), message])
        assert show(session) == seen

    # after a wait that was given up, which took no longer than it should
    first, held = HeldHandler(), a_message()
    one = threads.submit(database.consumer().consume, held, first)
    assert first.entered.wait(20)
    with Session(engine) as session, session.begin():
        with pytest.raises(EventInProgress):
            hasty.claim(session, held)
        assert show(session) == seen
        session.rollback()
    first.go_on.set()
    assert one.result(20)
    assert not hasty.consume(held, book)


def test_mysql_and_mariadb_are_told_apart_once(consuming_on_mariadb: ConsumingDatabase):
    consumer, statements = consuming_on_mariadb.consumer(), []
    event.listen(consuming_on_mariadb.engine, "before_cursor_execute", lambda *args: statements.append(args[2]))

    for _ in range(3):
        consumer.consume(a_message(), lambda session: None)

    assert [s for s in statements if "VERSION" in s] == ["SELECT VERSION()"]
    assert sum(s.startswith("SET STATEMENT innodb_lock_wait_timeout = 5 FOR INSERT") for s in statements) == 3


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


def transfers(database: ConsumingDatabase, runs: list[int], *, hides_errors: bool) -> list[Callable[..., None]]:
    """Two handlers that lock the same two rows in opposite order, and meet in the middle the first time."""
    with database.engine.begin() as connection:
        connection.execute(text("CREATE TABLE accounts (id int PRIMARY KEY, booked int NOT NULL)"))
        connection.execute(text("INSERT INTO accounts VALUES (1, 0), (2, 0)"))
    both_hold_one = threading.Barrier(2)
    book_one = text("UPDATE accounts SET booked = booked + 1 WHERE id = :id")

    def transfer(first: int, second: int) -> Callable[..., None]:
        met = False

        def handler(session, message):
            nonlocal met
            runs.append(first)
            session.execute(book_one, {"id": first})
            if not met:
                met = True
                both_hold_one.wait(20)
            with contextlib.suppress(DBAPIError) if hides_errors else contextlib.nullcontext():
                session.execute(book_one, {"id": second})
            with contextlib.suppress(DBAPIError) if hides_errors else contextlib.nullcontext():
                book(session, message)

        return handler

    return [transfer(1, 2), transfer(2, 1)]


@pytest.mark.parametrize("hides_errors", [False, True], ids=["open", "hidden"])
def test_a_deadlock_between_handlers_is_run_again(
    on_a_server: ConsumingDatabase, threads: ThreadPoolExecutor, hides_errors: bool
):
    """Also where the victim hides the error: on MariaDB its mark is gone, and what it wrote afterwards would stay."""
    database, runs = on_a_server, []
    one_way, other_way = transfers(database, runs, hides_errors=hides_errors)
    consumer, messages = database.consumer(), [a_message(), a_message()]
    consumer.consume(a_message(), lambda session: None)

    # when both run
    one = threads.submit(consumer.consume, messages[0], one_way)
    other = threads.submit(consumer.consume, messages[1], other_way)

    # then the victim was begun again (once more where it came back before the other had woken up), and each effect is there once
    assert one.result(30)
    assert other.result(30)
    assert len(runs) >= 3
    with database.engine.connect() as connection:
        assert connection.execute(text("SELECT booked FROM accounts")).scalars().all() == [2, 2]
    assert database.effects() == sorted(message["outbox_event_id"] for message in messages)
    assert len(database.marks()) == 3


def test_a_lock_timeout_of_the_handlers_own_may_be_handled(
    consuming_on_mariadb: ConsumingDatabase, threads: ThreadPoolExecutor
):
    """It undoes one statement, and neither mark nor transaction."""
    database = consuming_on_mariadb
    with database.engine.begin() as connection:
        connection.execute(text("CREATE TABLE accounts (id int PRIMARY KEY, booked int NOT NULL)"))
        connection.execute(text("INSERT INTO accounts VALUES (1, 0)"))
    consumer, runs = database.consumer(), []

    def skips_what_is_locked(session, message):
        runs.append(message)
        session.execute(text("SET SESSION innodb_lock_wait_timeout = 1"))
        with pytest.raises(DBAPIError):
            session.execute(text("UPDATE accounts SET booked = 1 WHERE id = 1"))
        book(session, message)

    with Session(database.engine) as session, session.begin():
        session.execute(text("UPDATE accounts SET booked = 2 WHERE id = 1"))
        assert consumer.consume(a_message(), skips_what_is_locked)

    assert len(runs) == len(database.effects()) == len(database.marks()) == 1


def test_a_serialization_failure_at_commit_is_run_again(on_a_server: ConsumingDatabase, threads: ThreadPoolExecutor):
    # given two handlers that each count the effects and add one: serial order is visible
    database = on_a_server
    consumer = database.consumer(engine_options={"isolation_level": "SERIALIZABLE"})
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


CONFLICTS = {
    "postgresql": "DO $$ BEGIN RAISE EXCEPTION 'again' USING ERRCODE = '40001'; END $$",
    "mysql": "SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213, MESSAGE_TEXT = 'again'",
}


@pytest.mark.parametrize("wrapped", [False, True], ids=["as it is", "wrapped"])
def test_a_conflict_that_never_ends_comes_out_as_it_is(on_a_server: ConsumingDatabase, wrapped: bool):
    database, runs = on_a_server, []

    def always_conflicts(session, message):
        runs.append(message)
        book(session, message)
        try:
            session.execute(text(CONFLICTS[database.engine.dialect.name]))
        except DBAPIError as error:
            if wrapped:
                raise LookupError("again") from error
            raise

    with pytest.raises(LookupError if wrapped else DBAPIError, match="again"):
        database.consumer().consume(a_message(), always_conflicts)

    assert 2 <= len(runs) <= 10
    assert database.effects() == []
    assert database.marks() == []


def test_a_conflict_inside_the_callers_transaction_is_the_callers(sync_server: ConsumingDatabase):
    database, runs = sync_server, []
    database.consumer()

    def conflicts(session, message):
        runs.append(message)
        session.execute(text(CONFLICTS[database.engine.dialect.name]))

    with database.engine.connect() as connection, connection.begin():
        consumer = IdempotentConsumer(sessionmaker(connection), name="billing")
        with pytest.raises(DBAPIError, match="again"):
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
