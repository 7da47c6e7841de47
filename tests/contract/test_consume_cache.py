"""A cache in front of the table makes duplicates cheap, and can never make an event lost."""

import contextlib
from typing import Any

import pytest
from sqlalchemy import event, text
from sqlalchemy.orm import Session, sessionmaker

from outbox_consumer import IdempotentConsumer, Status
from tests.consuming import ConsumingDatabase, FakeCache, a_message, book, book_all


def knows_duplicates(database: ConsumingDatabase) -> bool:
    """Whether a duplicate that the table knew may be remembered: InnoDB shows rows that are not on the disk yet."""
    return database.engine.dialect.name != "mysql"


def test_a_hit_answers_without_the_database(database: ConsumingDatabase):
    cache, message = FakeCache(), a_message()
    consumer = database.consumer(cache=cache)
    consumer.consume(message, book)
    statements: list[str] = []
    engine = consumer.engine.sync_engine if database.is_async else database.engine
    event.listen(engine, "before_cursor_execute", lambda *args: statements.append(args[2]))
    event.listen(engine, "checkout", lambda *args: statements.append("a connection"))

    again = consumer.consume(message, book)

    assert (again.status, again.from_cache, bool(again)) == (Status.DUPLICATE, True, False)
    assert again.event_type == "order-created"
    assert statements == []
    assert len(database.effects()) == 1


def test_it_is_told_when_the_commit_has_returned_and_not_before(database: ConsumingDatabase):
    cache, message, seen = FakeCache(), a_message(), []
    consumer = database.consumer(cache=cache)
    # then whoever looks from outside sees effect and mark at that moment
    cache.before_remembering = lambda: seen.append((database.effects(), len(database.marks())))

    def handler(session, message):
        book(session, message)
        assert cache.ids == set()

    consumer.consume(message, handler)

    assert seen == [([message["outbox_event_id"]], 1)]
    assert len(cache.ids) == 1


def test_what_was_rolled_back_is_not_remembered(database: ConsumingDatabase):
    cache, message = FakeCache(), a_message()
    consumer = database.consumer(cache=cache)

    def fails(session, message):
        book(session, message)
        raise LookupError

    def commits(session, message):
        session.commit()

    for handler in (fails, commits):
        with contextlib.suppress(Exception):
            consumer.consume(message, handler)
        with contextlib.suppress(Exception):
            consumer.consume_batch([message, a_message()], handler)

    assert cache.ids == set()
    assert consumer.consume(message, book)
    assert len(database.effects()) == 1


def test_a_commit_that_fails_is_not_remembered(database: ConsumingDatabase):
    """The usual mistake: told before the COMMIT, a cache hides an event that nobody has consumed."""
    with database.engine.begin() as connection:
        connection.execute(text("CREATE TABLE once (id int PRIMARY KEY)"))
        connection.execute(text("INSERT INTO once VALUES (1)"))
    cache, message = FakeCache(), a_message()
    consumer = database.consumer(cache=cache)

    def fails_at_the_commit(session, message):
        book(session, message)
        event.listen(session, "before_commit", lambda s: s.execute(text("INSERT INTO once VALUES (1)")))

    with pytest.raises(Exception, match=r"(?i)unique|duplicate"):
        consumer.consume(message, fails_at_the_commit)

    assert cache.ids == set()
    assert database.effects() == []
    assert consumer.consume(message, book)


def test_a_batch_asks_and_tells_once(database: ConsumingDatabase):
    cache, messages = FakeCache(), [a_message() for _ in range(5)]
    consumer = database.consumer(cache=cache)
    consumer.consume_batch(messages[:2], book_all)
    cache.calls.clear()
    ran: list[int] = []

    def handler(session, fresh):
        ran.append(len(fresh))

    outcomes = consumer.consume_batch([*messages, messages[0]], handler)

    assert [outcome.from_cache for outcome in outcomes] == [True, True, False, False, False, True]
    assert ran == [3]
    assert cache.calls == [("known", 5), ("remember", 3)]
    assert len(cache.ids) == 5


def test_a_bisected_batch_remembers_what_is_committed_only(database: ConsumingDatabase):
    cache, messages = FakeCache(), [a_message() for _ in range(5)]
    consumer = database.consumer(cache=cache)

    def fails_on_one(session, fresh):
        book_all(session, fresh)
        if messages[3] in fresh:
            raise LookupError

    consumer.consume_batch(messages, fails_on_one, on_error="bisect")

    assert {str(event_id) for _, event_id in cache.ids} == {
        m["outbox_event_id"] for m in messages if m is not messages[3]
    }


def test_a_duplicate_that_the_table_knew_is_remembered_where_it_is_certain(database: ConsumingDatabase):
    cache, message = FakeCache(), a_message()
    database.consumer().consume(message, book)
    consumer = database.consumer(cache=cache)

    first, second = consumer.consume(message, book), consumer.consume(message, book)

    assert (first.status, first.from_cache) == (Status.DUPLICATE, False)
    assert (second.status, second.from_cache) == (Status.DUPLICATE, knows_duplicates(database))


def test_two_consumers_may_share_a_cache(database: ConsumingDatabase):
    cache, message = FakeCache(), a_message()

    assert database.consumer("billing", cache=cache).consume(message, book)
    assert database.consumer("shipping", cache=cache).consume(message, book)
    assert len(database.effects()) == 2


def test_an_outer_transaction_is_never_remembered(sync_database: ConsumingDatabase):
    database, cache, message = sync_database, FakeCache(), a_message()
    database.consumer()
    with database.engine.connect() as connection, connection.begin() as outer:
        for mode in ("conditional_savepoint", "create_savepoint"):
            inside = IdempotentConsumer(
                sessionmaker(connection, join_transaction_mode=mode),  # type: ignore[arg-type]
                name=mode,
                cache=cache,
            )
            assert inside.consume(message, book)
            assert not inside.consume(message, book)
            inside.consume_batch([message, a_message()], book_all)
        outer.rollback()

    assert cache.ids == set()
    assert database.effects() == []


def test_claims_neither_ask_nor_tell(sync_database: ConsumingDatabase):
    database, cache, message = sync_database, FakeCache(), a_message()
    consumer = database.consumer(cache=cache)
    with Session(database.engine) as session, session.begin():
        assert consumer.claim(session, message)
        assert consumer.claim_batch(session, [message]) == []
        session.rollback()

    assert cache.calls == []


class Broken:
    def known(self, *_: Any) -> Any:
        raise RuntimeError("not today")

    remember = forget = known


def test_a_cache_that_raises_changes_nothing(database: ConsumingDatabase, caplog: pytest.LogCaptureFixture):
    consumer, message = database.consumer(cache=Broken()), a_message()

    assert consumer.consume(message, book)
    assert not consumer.consume(message, book)
    assert len(database.effects()) == 1
    assert [record.getMessage() for record in caplog.records if "raised, which none may" in record.getMessage()] == [
        "a cache of type Broken raised, which none may; told once"
    ]


def test_a_given_cache_is_its_makers_to_close(sync_database: ConsumingDatabase):
    cache = FakeCache()

    with sync_database.consumer(cache=cache) as consumer:
        consumer.consume(a_message(), book)

    assert ("close", 0) not in cache.calls
