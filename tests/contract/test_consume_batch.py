"""A batch is one transaction: the handler gets what is new, in the broker's order, and every message has its outcome."""

import random
from typing import Any

import pytest
from sqlalchemy import event, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import sessionmaker

from outbox_consumer import (
    ConfigurationError,
    HandlerEndedTransaction,
    IdempotentConsumer,
    MalformedEventId,
    MissingEventId,
    Status,
)
from outbox_consumer.store import consumed
from tests.consuming import ConsumingDatabase, a_message, book, book_all


class BadMessage(Exception):
    pass


def ids(messages: Any) -> list[str]:
    return [message["outbox_event_id"] for message in messages]


def statuses(outcomes: Any) -> list[str]:
    return [outcome.status.value for outcome in outcomes]


def shuffled(count: int) -> list[dict[str, str]]:
    messages = [a_message() for _ in range(count)]
    random.Random(5).shuffle(messages)
    return messages


def test_new_events_are_handled_at_once_in_the_brokers_order(database: ConsumingDatabase):
    consumer, messages, calls = database.consumer(), shuffled(20), []

    def handler(session, fresh):
        calls.append(ids(fresh))
        return book_all(session, fresh)

    outcomes = consumer.consume_batch(messages, handler)

    assert calls == [ids(messages)]
    assert [str(outcome.event_id) for outcome in outcomes] == ids(messages)
    assert [(o.status, o.result, o.event_type, o.error) for o in outcomes] == [
        (Status.CONSUMED, 20, "order-created", None)
    ] * 20
    assert all(outcomes)
    assert database.effects() == sorted(ids(messages))
    assert len(database.marks()) == 20


def test_duplicates_are_filtered_in_the_batch_and_against_the_table(database: ConsumingDatabase):
    consumer = database.consumer()
    old, new, other = a_message(), a_message(), a_message()
    consumer.consume(old, book)

    outcomes = consumer.consume_batch([new, old, other, new, old, new], book_all)

    assert statuses(outcomes) == ["consumed", "duplicate", "consumed", "duplicate", "duplicate", "duplicate"]
    assert outcomes[3].result is None
    assert database.effects() == sorted(ids([old, new, other]))


def test_the_handler_is_not_called_where_nothing_is_new(database: ConsumingDatabase):
    consumer, messages = database.consumer(), shuffled(3)
    consumer.consume_batch(messages, book_all)
    ran = []

    outcomes = consumer.consume_batch(messages[::-1], lambda session: ran.append("ran"))

    assert statuses(outcomes) == ["duplicate"] * 3
    assert [str(outcome.event_id) for outcome in outcomes] == ids(messages[::-1])
    assert consumer.consume_batch([], lambda session: ran.append("ran")) == []
    assert ran == []
    assert len(database.effects()) == 3


def test_one_and_many_know_the_same_marks(database: ConsumingDatabase):
    consumer, message, other = database.consumer(), a_message(), a_message()

    assert consumer.consume_batch([message], book_all)[0]
    assert not consumer.consume(message, book)
    assert statuses(database.consumer("shipping").consume_batch([message, other], book_all)) == ["consumed"] * 2
    assert statuses(consumer.consume_batch([message, other], book_all)) == ["duplicate", "consumed"]


def test_a_handlers_exception_leaves_nothing_of_the_batch(database: ConsumingDatabase):
    consumer, messages, error = database.consumer(), shuffled(5), BadMessage()

    def fails(session, fresh):
        book_all(session, fresh)
        raise error

    with pytest.raises(BadMessage) as raised:
        consumer.consume_batch(messages, fails)

    assert raised.value is error
    assert database.effects() == []
    assert database.marks() == []
    assert all(consumer.consume_batch(messages, book_all))


def test_a_handler_that_ends_the_transaction_is_told(database: ConsumingDatabase):
    consumer, messages = database.consumer(), shuffled(3)

    def commits(session, fresh):
        book_all(session, fresh)
        session.commit()

    with pytest.raises(HandlerEndedTransaction):
        consumer.consume_batch(messages, commits)

    assert database.effects() == []
    assert database.marks() == []


@pytest.mark.parametrize(
    ("bad", "error"), [({"other": "header"}, MissingEventId), ({"outbox_event_id": "17"}, MalformedEventId)]
)
@pytest.mark.parametrize("on_error", ["raise", "bisect"])
def test_a_bad_id_is_an_error_that_names_its_index_before_anything_is_marked(
    database: ConsumingDatabase, bad: dict[str, str], error: type[Exception], on_error: str
):
    consumer, ran = database.consumer(), []

    with pytest.raises(error, match="message number 2 of the batch") as raised:
        consumer.consume_batch([a_message(), a_message(), bad], lambda s: ran.append("ran"), on_error=on_error)

    assert raised.value.index == 2  # type: ignore[attr-defined]
    assert ran == []
    assert database.marks() == []


def test_what_is_no_batch_is_refused(sync_database: ConsumingDatabase):
    consumer = sync_database.consumer()

    for given in (a_message(), "text", 7, None):
        with pytest.raises(TypeError, match=r"write \[message\]"):
            consumer.consume_batch(given, book_all)
    with pytest.raises(ValueError, match='"raise" or "bisect"'):
        consumer.consume_batch([a_message()], book_all, on_error="skip")
    with pytest.raises(TypeError, match=r"def handler\(session, messages\)"):
        consumer.consume_batch([a_message()], [].append)


def test_a_batch_larger_than_one_statement_holds(database: ConsumingDatabase, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(consumed, "ROWS_AT_ONCE", 7)
    consumer, messages = database.consumer(), shuffled(20)
    consumer.consume_batch(messages[:5], book_all)

    outcomes = consumer.consume_batch(messages, book_all)

    assert statuses(outcomes) == ["duplicate"] * 5 + ["consumed"] * 15
    assert len(database.effects()) == 20


@pytest.mark.slow
def test_a_batch_of_twenty_thousand(sync_database: ConsumingDatabase):
    consumer, messages = sync_database.consumer(), shuffled(20_000)

    assert sum(map(bool, consumer.consume_batch(messages, lambda session: None))) == 20_000
    assert not any(consumer.consume_batch(messages[::-1], lambda session: None))


def test_odd_types_are_stored_in_a_batch_too(database: ConsumingDatabase):
    consumer = database.consumer()
    messages = [{**a_message(), "outbox_event_type": odd} for odd in ("x" * 5000, "a\x00b", "\ud800", "grün", b"\xff")]

    assert all(consumer.consume_batch([*messages, {"outbox_event_id": a_message()["outbox_event_id"]}], lambda s: None))


# on_error="bisect"


def failing_on(bad: list[dict[str, str]], calls: list[list[str]]) -> Any:
    def handler(session, fresh):
        calls.append(ids(fresh))
        book_all(session, fresh)
        for message in fresh:
            if message in bad:
                raise BadMessage(message["outbox_event_id"])
        return len(fresh)

    return handler


def test_bisect_puts_the_bad_message_aside_and_commits_the_others(database: ConsumingDatabase):
    consumer, messages, calls = database.consumer(), shuffled(10), []
    bad = messages[6]

    outcomes = consumer.consume_batch(messages, failing_on([bad], calls), on_error="bisect")

    assert statuses(outcomes) == ["consumed"] * 6 + ["failed"] + ["consumed"] * 3
    assert isinstance(outcomes[6].error, BadMessage)
    assert not outcomes[6]
    assert outcomes[6].result is None
    assert [outcomes[0].result, outcomes[5].result] == [5, 1], "what the call returned that had the message"
    assert database.effects() == sorted(ids(m for m in messages if m is not bad))
    assert len(database.marks()) == 9
    # each call got a part in the broker's order, and the first half went first
    assert calls[:3] == [ids(messages), ids(messages[:5]), ids(messages[5:])]
    assert calls[-1] == ids(messages[7:])


def test_after_bisect_the_bad_message_is_as_new_as_before(database: ConsumingDatabase):
    consumer, messages, calls = database.consumer(), shuffled(4), []
    consumer.consume_batch(messages, failing_on([messages[1]], calls), on_error="bisect")

    again = consumer.consume_batch(messages, book_all, on_error="bisect")

    assert statuses(again) == ["duplicate", "consumed", "duplicate", "duplicate"]
    assert database.effects() == sorted(ids(messages))


def test_bisect_isolates_several_and_all(database: ConsumingDatabase):
    consumer, messages, calls = database.consumer(), shuffled(8), []

    several = consumer.consume_batch(messages, failing_on([messages[0], messages[7]], calls), on_error="bisect")
    assert statuses(several) == ["failed", *["consumed"] * 6, "failed"]

    rest = consumer.consume_batch(messages, failing_on(messages, calls), on_error="bisect")
    assert statuses(rest) == ["failed", *["duplicate"] * 6, "failed"]
    assert len(database.effects()) == 6


def test_a_copy_of_a_bad_message_in_the_same_batch_is_no_duplicate(database: ConsumingDatabase):
    """Acknowledged as one, the event would be lost."""
    consumer, good, bad, calls = database.consumer(), a_message(), a_message(), []

    outcomes = consumer.consume_batch([bad, good, bad, good], failing_on([bad], calls), on_error="bisect")

    assert statuses(outcomes) == ["failed", "consumed", "failed", "duplicate"]
    assert outcomes[2].error is outcomes[0].error


def test_an_error_at_the_commit_is_a_messages_own_too(database: ConsumingDatabase):
    with database.engine.begin() as connection:
        connection.execute(text("CREATE TABLE orders (id varchar(36) PRIMARY KEY)"))
    consumer, messages = database.consumer(), shuffled(4)
    taken = messages[2]["outbox_event_id"]
    with database.engine.begin() as connection:
        connection.execute(text("INSERT INTO orders VALUES (:id)"), {"id": taken})

    def orders(session, fresh):
        for message in fresh:
            session.execute(text("INSERT INTO orders VALUES (:id)"), {"id": message["outbox_event_id"]})
        book_all(session, fresh)

    outcomes = consumer.consume_batch(messages, orders, on_error="bisect")

    assert statuses(outcomes) == ["consumed", "consumed", "failed", "consumed"]
    assert isinstance(outcomes[2].error, DBAPIError)
    assert len(database.effects()) == 3


def test_a_lost_connection_is_not_bisected(on_a_server: ConsumingDatabase):
    database, messages, calls = on_a_server, shuffled(8), []
    consumer = database.consumer()
    kill = {
        "postgresql": "SELECT pg_terminate_backend(pg_backend_pid())",
        "mysql": "KILL CONNECTION_ID()",
    }[database.engine.dialect.name]

    def loses_its_connection(session, fresh):
        calls.append(len(fresh))
        session.execute(text(kill))

    with pytest.raises(DBAPIError):
        consumer.consume_batch(messages, loses_its_connection, on_error="bisect")

    assert calls == [8]
    assert all(consumer.consume_batch(messages, book_all))


OUTAGES = {
    "postgresql": ["DO $$ BEGIN RAISE EXCEPTION 'full' USING ERRCODE = '53100'; END $$",
                   "DO $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '25006'; END $$"],
    "mysql": ["SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = 1021, MESSAGE_TEXT = 'full'",
              "SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = 1290, MESSAGE_TEXT = 'read only'"],
}  # fmt: skip
OWN = {
    "postgresql": "SELECT 1/0",
    "mysql": "SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'no such customer'",
}


@pytest.mark.parametrize("which", [0, 1])
def test_a_database_in_trouble_is_not_bisected(on_a_server: ConsumingDatabase, which: int):
    database, calls = on_a_server, []
    statement = OUTAGES[database.engine.dialect.name][which]

    def meets_it(session, fresh):
        calls.append(len(fresh))
        session.execute(text(statement))

    with pytest.raises(DBAPIError):
        database.consumer().consume_batch(shuffled(8), meets_it, on_error="bisect")

    assert calls == [8]
    assert database.marks() == []


def test_an_error_of_the_handlers_sql_is_bisected(on_a_server: ConsumingDatabase):
    database, messages = on_a_server, shuffled(4)
    statement = OWN[database.engine.dialect.name]

    def fails_on_the_last(session, fresh):
        book_all(session, fresh)
        if messages[3] in fresh:
            session.execute(text(statement))

    outcomes = database.consumer().consume_batch(messages, fails_on_the_last, on_error="bisect")

    assert statuses(outcomes) == ["consumed"] * 3 + ["failed"]
    assert len(database.effects()) == 3


def test_a_deadlock_is_run_again_and_not_bisected(on_a_server: ConsumingDatabase):
    database, messages, calls = on_a_server, shuffled(4), []
    once = {
        "postgresql": "DO $$ BEGIN RAISE EXCEPTION 'again' USING ERRCODE = '40P01'; END $$",
        "mysql": "SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213, MESSAGE_TEXT = 'again'",
    }[database.engine.dialect.name]

    def meets_one(session, fresh):
        calls.append(len(fresh))
        book_all(session, fresh)
        if len(calls) == 1:
            session.execute(text(once))

    assert all(database.consumer().consume_batch(messages, meets_one, on_error="bisect"))
    assert calls == [4, 4]
    assert len(database.effects()) == 4


def test_a_promise_is_the_handlers_mistake_and_not_a_messages(database: ConsumingDatabase):
    calls = []

    def generates(session, fresh):
        calls.append(len(fresh))
        return (message for message in fresh)

    with pytest.raises(TypeError, match="its work has not been done"):
        database.consumer().consume_batch(shuffled(4), generates, on_error="bisect")

    assert calls == [4]
    assert database.marks() == []


def test_bisect_needs_transactions_of_its_own(sync_database: ConsumingDatabase):
    database, good, bad, calls = sync_database, a_message(), a_message(), []
    database.consumer()
    with database.engine.connect() as connection, connection.begin():
        inside = IdempotentConsumer(sessionmaker(connection), name="billing")
        with pytest.raises(ConfigurationError, match="create_savepoint"):
            inside.consume_batch([good], book_all, on_error="bisect")
        assert inside.consume_batch([good], book_all)

        by_savepoints = IdempotentConsumer(
            sessionmaker(connection, join_transaction_mode="create_savepoint"), name="shipping"
        )
        outcomes = by_savepoints.consume_batch([good, bad], failing_on([bad], calls), on_error="bisect")
        assert statuses(outcomes) == ["consumed", "failed"]


# What it costs.


def sent(database: ConsumingDatabase, consumer: Any) -> list[str]:
    """The statements that this consumer's engine sends from now on, without BEGIN."""
    engine = consumer.engine.sync_engine if database.is_async else database.engine
    statements: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda *args: statements.append(args[2]))
    return statements


@pytest.mark.parametrize("count", [1, 2, 100])
def test_a_batch_costs_one_more_statement_and_two_on_mariadb(database: ConsumingDatabase, count: int):
    consumer = database.consumer()
    consumer.consume(a_message(), book)  # creates the tables, and asks a MySQL for its name
    statements = sent(database, consumer)

    def in_one_statement(session, fresh):
        session.execute(text("INSERT INTO effects VALUES ('all')"))

    consumer.consume_batch(shuffled(count), in_one_statement)

    own = [s for s in statements if "BEGIN" not in s and "INTO effects" not in s]
    assert len(own) == (2 if database.engine.dialect.name == "mysql" and count > 1 else 1), own


def test_one_message_costs_one_more_statement(database: ConsumingDatabase):
    consumer, message = database.consumer(), a_message()
    consumer.consume(a_message(), book)
    statements = sent(database, consumer)

    consumer.consume(message, book)
    consumer.consume(message, book)

    own = [s for s in statements if "BEGIN" not in s and "INTO effects" not in s]
    assert len(own) == 2, "one for the new one, and one for the duplicate"
