"""The consumer's promise, on every database: an event's effect happens once per consumer name."""

import subprocess
import sys

import pytest
from sqlalchemy import text
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from outbox_consumer import MalformedEventId, MissingEventId, Outcome, Status
from outbox_shared.ids import new_event_id
from tests.consuming import ConsumingDatabase, a_message, book


class OutOfMoney(Exception):
    pass


def test_a_new_event_runs_the_handler_and_commits_effect_and_mark(database: ConsumingDatabase):
    consumer, message = database.consumer(), a_message()

    outcome = consumer.consume(message, book)

    assert outcome
    assert outcome.status is Status.CONSUMED
    assert str(outcome.event_id) == message["outbox_event_id"]
    assert outcome.event_type == "order-created"
    assert outcome.result == "booked"
    assert outcome.from_cache is False
    assert database.effects() == [message["outbox_event_id"]]
    assert database.marks() == ["billing"]


def test_a_second_delivery_changes_nothing_and_says_so(database: ConsumingDatabase):
    consumer, message = database.consumer(), a_message()
    consumer.consume(message, book)

    again = consumer.consume(message, book)

    assert not again
    assert again == Outcome(Status.DUPLICATE, again.event_id, "order-created")
    assert len(database.effects()) == 1


def test_many_deliveries_of_many_events_have_each_effect_once(database: ConsumingDatabase):
    consumer = database.consumer()
    messages = [a_message() for _ in range(20)]

    outcomes = [consumer.consume(message, book) for message in messages * 3]

    assert sum(map(bool, outcomes)) == 20
    assert database.effects() == sorted(message["outbox_event_id"] for message in messages)


def test_a_duplicate_is_known_by_a_new_process_too(database: ConsumingDatabase):
    message = a_message()
    database.consumer().consume(message, book)

    again = database.consumer().consume(message, book)

    assert again.status == "duplicate"
    assert len(database.effects()) == 1


def test_two_consumers_do_not_see_each_others_marks(database: ConsumingDatabase):
    message = a_message()

    assert database.consumer("billing").consume(message, book)
    assert database.consumer("shipping").consume(message, book)

    assert len(database.effects()) == 2
    assert database.marks() == ["billing", "shipping"]


def test_an_id_in_capitals_is_the_same_event(database: ConsumingDatabase):
    event_id = new_event_id()
    consumer = database.consumer()
    consumer.consume(a_message(event_id), book)

    assert not consumer.consume({"outbox_event_id": str(event_id).upper()}, book)


def test_a_handlers_exception_comes_out_unchanged_and_leaves_nothing(database: ConsumingDatabase):
    consumer, message, error = database.consumer(), a_message(), OutOfMoney("0 left")

    def fails(session, message):
        book(session, message)
        raise error

    with pytest.raises(OutOfMoney) as raised:
        consumer.consume(message, fails)

    assert raised.value is error
    assert raised.value.__cause__ is None
    assert database.effects() == []
    assert database.marks() == []


def test_an_event_whose_handler_failed_is_new_when_it_comes_again(database: ConsumingDatabase):
    consumer, message = database.consumer(), a_message()

    def fails(session, message):
        book(session, message)
        raise OutOfMoney

    with pytest.raises(OutOfMoney):
        consumer.consume(message, fails)

    assert consumer.consume(message, book)
    assert len(database.effects()) == 1


def test_an_interrupt_leaves_nothing_either(database: ConsumingDatabase):
    def interrupted(session, message):
        book(session, message)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        database.consumer().consume(a_message(), interrupted)

    assert database.effects() == []
    assert database.checked_out() == 0


def test_an_orm_change_that_is_only_flushed_at_commit_is_kept(database: ConsumingDatabase):
    class Base(DeclarativeBase):
        pass

    class Effect(Base):
        __tablename__ = "effects"
        event_id: Mapped[str] = mapped_column(primary_key=True)

    def by_orm(session, message):
        session.add(Effect(event_id=message["outbox_event_id"]))

    message = a_message()
    database.consumer().consume(message, by_orm)

    assert database.effects() == [message["outbox_event_id"]]


def test_an_engine_is_enough_and_what_the_handler_returns_stays_readable(database: ConsumingDatabase):
    class Base(DeclarativeBase):
        pass

    class Effect(Base):
        __tablename__ = "effects"
        event_id: Mapped[str] = mapped_column(primary_key=True)

    def by_orm(session, message):
        effect = Effect(event_id=message["outbox_event_id"])
        session.add(effect)
        return effect

    message = a_message()
    consumer = database.consumer(from_engine=True)

    assert consumer.consume(message, by_orm).result.event_id == message["outbox_event_id"]


def test_handlers_may_take_the_session_alone_or_nothing(database: ConsumingDatabase, caplog: pytest.LogCaptureFixture):
    consumer, first, second = database.consumer(), a_message(), a_message()
    ran = []

    consumer.consume(first, lambda session: book(session, first))
    consumer.consume(second, lambda: ran.append("ran"))
    consumer.consume(second, lambda: ran.append("ran"))
    consumer.consume(a_message(), lambda: None)

    assert database.effects() == [first["outbox_event_id"]]
    assert ran == ["ran"]
    said = [record for record in caplog.records if record.name.startswith("outbox")]
    assert [record.levelname for record in said] == ["WARNING"], "said once, not for every message"
    assert "takes no session" in said[0].message


@pytest.mark.parametrize(
    ("message", "error"),
    [
        ({"outbox_event_type": "t"}, MissingEventId),
        ({"outbox_event_id": None}, MissingEventId),
        ({"outbox_event_id": "17"}, MalformedEventId),
        (None, MissingEventId),
    ],
)
def test_a_message_without_a_usable_id_is_refused_before_any_sql(database: ConsumingDatabase, message, error):
    consumer = database.consumer()
    ran = []

    with pytest.raises(error):
        consumer.consume(message, lambda session: ran.append("ran"))

    assert ran == []
    assert database.marks() == []


def test_an_odd_event_type_does_not_make_a_message_unconsumable(database: ConsumingDatabase):
    consumer = database.consumer()

    for odd in ("x" * 5000, "a\x00b", "\ud800", b"\xff\xfe"):
        outcome = consumer.consume({"outbox_event_id": str(new_event_id()), "outbox_event_type": odd}, lambda s: "ran")
        assert outcome.result == "ran"

    assert consumer.consume({"outbox_event_id": str(new_event_id())}, lambda s: "ran").event_type is None


def test_a_returned_generator_or_awaitable_leaves_nothing_consumed(database: ConsumingDatabase):
    consumer, message = database.consumer(), a_message()

    async def later():
        pass

    for promise in (lambda: (n for n in range(3)), later, aiter_of_nothing):

        def returns_a_promise(session, message, make=promise):
            book(session, message)
            return make()

        with pytest.raises(TypeError, match="its work has not been done"):
            consumer.consume(message, returns_a_promise)

    assert database.effects() == []
    assert database.marks() == []


async def aiter_of_nothing():
    for item in ():
        yield item


LEVEL = {"postgresql": "SHOW transaction_isolation", "mysql": "SELECT @@tx_isolation"}


@pytest.mark.parametrize("isolation", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
def test_the_engines_isolation_level_is_left_alone(on_a_server: ConsumingDatabase, isolation: str):
    database = on_a_server
    consumer, message = database.consumer(engine_options={"isolation_level": isolation}), a_message()

    def level(session, message):
        book(session, message)
        return session.execute(text(LEVEL[session.bind.dialect.name])).scalar_one()

    assert consumer.consume(message, level).result.upper().replace("-", " ") == isolation
    assert not consumer.consume(message, level)
    assert len(database.effects()) == 1


CRASHING = """
import os, signal, sys
from tests.consuming import a_message, book, open_database
from outbox_consumer import IdempotentConsumer
from uuid import UUID

url, event_id, when = sys.argv[1:]

def crash(session, message):
    if when == "before": os.kill(os.getpid(), signal.SIGKILL)
    book(session, message)
    session.flush()
    os.kill(os.getpid(), signal.SIGKILL)

IdempotentConsumer(open_database(url), name="billing").consume(a_message(UUID(event_id)), crash)
"""


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_crash_around_the_handlers_work_leaves_neither_mark_nor_effect(sync_database: ConsumingDatabase, when: str):
    database, event_id = sync_database, new_event_id()
    consumer = database.consumer()

    crashed = subprocess.run([sys.executable, "-c", CRASHING, database.url, str(event_id), when], check=False)

    assert crashed.returncode == -9
    assert database.marks() == []
    assert database.effects() == []
    assert consumer.consume(a_message(event_id), book), "the redelivery runs it"
    assert not consumer.consume(a_message(event_id), book), "once"
    assert database.effects() == [str(event_id)]


def test_nothing_stays_open_after_a_message(database: ConsumingDatabase):
    seen: list[Session] = []
    consumer = database.consumer()

    def remember(session):
        seen.append(session)

    consumer.consume(a_message(), remember)

    assert not seen[0].in_transaction(), "ended when consume returned"
    assert database.checked_out() == 0
