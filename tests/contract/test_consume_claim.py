"""`claim` marks an event in a transaction of the caller's, and does nothing else to it."""

from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import create_engine, event, text
from sqlalchemy.orm import Session, scoped_session

from outbox_consumer import EventInProgress, MissingEventId, NoActiveTransaction
from tests.consuming import ConsumingDatabase, a_message, book


@contextmanager
def in_a_session(database: ConsumingDatabase):
    with Session(database.engine) as session, session.begin():
        yield session


@contextmanager
def in_a_scoped_session(database: ConsumingDatabase):
    scoped = scoped_session(database.sessions)
    with scoped.begin():
        yield scoped
    scoped.remove()


@contextmanager
def in_a_connection(database: ConsumingDatabase):
    with database.engine.begin() as connection:
        yield connection


@pytest.mark.parametrize("transaction", [in_a_session, in_a_scoped_session, in_a_connection])
def test_an_event_is_claimed_once(sync_database: ConsumingDatabase, transaction: Callable[..., Any]):
    database = sync_database
    consumer, message = database.consumer(), a_message()

    with transaction(database) as mine:
        assert consumer.claim(mine, message) is True
        assert consumer.claim(mine, message) is False, "in the same transaction too"
    with transaction(database) as mine:
        assert consumer.claim(mine, message) is False

    assert database.marks() == ["billing"]


@pytest.mark.parametrize("transaction", [in_a_session, in_a_scoped_session, in_a_connection])
def test_the_claim_is_lost_with_the_callers_rollback(sync_database: ConsumingDatabase, transaction: Callable[..., Any]):
    database = sync_database
    consumer, message = database.consumer(), a_message()

    with pytest.raises(LookupError), transaction(database) as mine:
        consumer.claim(mine, message)
        book(mine, message)
        raise LookupError

    assert database.marks() == database.effects() == []
    assert consumer.consume(message, book)


def test_claim_and_consume_know_the_same_marks(sync_database: ConsumingDatabase):
    database = sync_database
    consumer, message = database.consumer(), a_message()
    consumer.consume(message, book)

    with in_a_session(database) as session:
        assert not consumer.claim(session, message)
        assert database.consumer("shipping").claim(session, message)


def test_a_claim_in_a_rolled_back_savepoint_is_undone_alone(sync_database: ConsumingDatabase):
    database = sync_database
    consumer, kept, undone = database.consumer(), a_message(), a_message()

    with in_a_session(database) as session:
        consumer.claim(session, kept)
        with pytest.raises(LookupError), session.begin_nested():
            assert consumer.claim(session, undone)
            raise LookupError

    assert len(database.marks()) == 1
    assert consumer.consume(undone, book)


def test_claim_neither_flushes_nor_ends_anything(sync_database: ConsumingDatabase):
    database = sync_database
    consumer = database.consumer()
    heard: list[str] = []
    with Session(database.engine) as session, session.begin() as mine:
        for name in ("before_flush", "before_commit", "after_rollback"):
            event.listen(session, name, lambda *_, name=name: heard.append(name))

        consumer.claim(session, a_message())

        assert heard == []
        assert session.get_transaction() is mine


def test_claim_needs_an_open_transaction(sync_database: ConsumingDatabase):
    database = sync_database
    consumer, message = database.consumer(), a_message()

    with Session(database.engine) as session, pytest.raises(NoActiveTransaction, match=r"consumer\.claim"):
        consumer.claim(session, message)
    with database.engine.connect() as connection, pytest.raises(NoActiveTransaction):
        consumer.claim(connection, message)
    with pytest.raises(TypeError, match="Session or Connection"):
        consumer.claim(database.engine, message)  # type: ignore[arg-type]

    assert database.marks() == []


def test_a_bad_message_leaves_the_transaction_usable(sync_database: ConsumingDatabase):
    database = sync_database
    consumer, message = database.consumer(), a_message()

    with in_a_session(database) as session:
        with pytest.raises(MissingEventId):
            consumer.claim(session, {"other": "header"})
        book(session, message)

    assert len(database.effects()) == 1


def test_a_first_savepoint_on_unconfigured_sqlite_is_refused(consuming_on_sqlite: ConsumingDatabase):
    """Its release would commit: the caller's rollback would leave the mark, and the event would be lost."""
    database = consuming_on_sqlite
    consumer, engine = database.consumer(), create_engine(database.url)

    with Session(engine) as session, session.begin():
        with session.begin_nested(), pytest.raises(NoActiveTransaction, match="configure_sqlite"):
            consumer.claim(session, a_message())
        session.rollback()

    assert database.marks() == []
    engine.dispose()


def test_a_read_that_cannot_become_a_write_on_sqlite_is_retryable(consuming_on_sqlite: ConsumingDatabase):
    # given a transaction that has read, and another one that has written since
    database = consuming_on_sqlite
    consumer, engine = database.consumer(), create_engine(database.url)
    with Session(engine) as session, session.begin():
        session.execute(text("BEGIN"))
        session.execute(text("SELECT * FROM effects")).all()
        consumer.consume(a_message(), book)

        # when it wants to write, SQLite refuses at once, whatever the busy timeout
        with pytest.raises(EventInProgress):
            consumer.claim(session, a_message())
        session.rollback()

    assert len(database.marks()) == 1
    engine.dispose()
