"""A handler cannot tear mark and effect apart, whatever it does to the transaction that it was given."""

import contextlib
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import create_engine, event, text
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, scoped_session, sessionmaker
from sqlalchemy.pool import StaticPool

from outbox_consumer import ConfigurationError, HandlerEndedTransaction, IdempotentConsumer, NoActiveTransaction
from outbox_consumer.schema import consumer_tables
from outbox_consumer.store import store_for
from outbox_shared.creation import create_missing
from outbox_shared.driver import Speech
from outbox_shared.tables import TableNames
from tests.consuming import ConsumingDatabase, a_message, book, open_database


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)


def commits(session, message):
    book(session, message)
    session.commit()


def commits_and_hides_the_error(session, message):
    book(session, message)
    with contextlib.suppress(HandlerEndedTransaction):
        session.commit()


def commits_in_an_open_savepoint(session, message):
    with session.begin_nested():
        book(session, message)
        session.commit()


def rolls_back_and_commits_something_else(session, message):
    session.rollback()
    book(session, message)
    session.commit()


def rolls_back(session, message):
    book(session, message)
    session.rollback()


def rolls_back_and_goes_on(session, message):
    session.rollback()
    book(session, message)


def rolls_back_in_an_except(session, message):
    book(session, message)
    try:
        {}["the customer"]
    except KeyError:
        session.rollback()


def closes(session, message):
    book(session, message)
    session.close()


def closes_and_goes_on(session, message):
    session.close()
    book(session, message)


def rolls_back_the_connection(session, message):
    book(session, message)
    session.connection().rollback()


def rolls_back_in_sql(session, message):
    book(session, message)
    session.execute(text("ROLLBACK"))


def rolls_back_in_sql_and_goes_on(session, message):
    book(session, message)
    session.execute(text("-- enough\n rollback"))
    book(session, message)


def commits_in_sql_and_hides_the_error(session, message):
    book(session, message)
    with contextlib.suppress(HandlerEndedTransaction):
        session.connection().exec_driver_sql("COMMIT")


def hides_a_failed_flush(session, message):
    book(session, message)
    session.add_all([Order(id=1), Order(id=1)])
    with contextlib.suppress(IntegrityError):
        session.flush()


ENDING = [
    commits,
    commits_and_hides_the_error,
    commits_in_an_open_savepoint,
    rolls_back_and_commits_something_else,
    rolls_back,
    rolls_back_and_goes_on,
    rolls_back_in_an_except,
    closes,
    closes_and_goes_on,
    rolls_back_the_connection,
    rolls_back_in_sql,
    rolls_back_in_sql_and_goes_on,
    commits_in_sql_and_hides_the_error,
    hides_a_failed_flush,
]


@pytest.fixture
def orders(database: ConsumingDatabase) -> None:
    Base.metadata.create_all(database.engine)


@pytest.mark.filterwarnings("ignore:New instance .* conflicts with persistent instance")
@pytest.mark.parametrize("handler", ENDING)
def test_a_handler_that_ends_the_transaction_leaves_nothing_and_is_told(
    database: ConsumingDatabase, orders: None, handler: Callable[..., Any]
):
    consumer, message = database.consumer(), a_message()

    with pytest.raises(HandlerEndedTransaction):
        consumer.consume(message, handler)

    # then nothing of it was kept, no connection is lost, and the event is as new as before
    assert database.effects() == []
    assert database.marks() == []
    assert database.checked_out() == 0
    assert consumer.consume(message, book)
    assert database.effects() == [message["outbox_event_id"]]


@pytest.mark.parametrize("handler", ENDING[:-1])
def test_a_pool_of_one_connection_is_clean_after_it(on_a_server: ConsumingDatabase, handler: Callable[..., Any]):
    database = on_a_server
    consumer = database.consumer(engine_options={"pool_size": 1, "max_overflow": 0, "pool_timeout": 1})

    with pytest.raises(HandlerEndedTransaction):
        consumer.consume(a_message(), handler)

    # then a transaction on it begins with nothing, and what it does is kept
    message = a_message()
    assert consumer.consume(message, book)
    assert database.effects() == [message["outbox_event_id"]]


def test_a_commit_of_the_bare_connection_cannot_be_prevented_but_is_told(database: ConsumingDatabase):
    def commits_the_connection(session, message):
        book(session, message)
        session.connection().commit()

    with pytest.raises(HandlerEndedTransaction):
        database.consumer().consume(a_message(), commits_the_connection)

    # what was committed is effect and mark together
    assert len(database.effects()) == len(database.marks()) == 1


def test_savepoints_pass(database: ConsumingDatabase):
    consumer, kept, undone = database.consumer(), a_message(), a_message()

    def with_savepoints(session, message):
        with session.begin_nested():
            book(session, message)
        with pytest.raises(LookupError), session.begin_nested():
            book(session, undone)
            raise LookupError
        nested = session.begin_nested()
        book(session, undone)
        nested.rollback()
        session.begin_nested()  # left open: released with the commit

    assert consumer.consume(kept, with_savepoints)
    assert database.effects() == [kept["outbox_event_id"]]
    assert database.marks() == ["billing"]


def test_savepoints_in_sql_pass(database: ConsumingDatabase):
    def with_savepoints(session, message):
        book(session, message)
        for statement in ("SAVEPOINT mine", "ROLLBACK TO mine", "SAVEPOINT other", "RELEASE SAVEPOINT other"):
            session.execute(text(statement))

    assert database.consumer().consume(a_message(), with_savepoints)
    assert len(database.effects()) == 1


@pytest.mark.parametrize(
    "statement",
    [
        "TRUNCATE effects",
        "/* more */ create table more (id int)",
        "BEGIN",
        "ALTER TABLE effects ADD x int",
        "SET autocommit = 1",
    ],
)
def test_what_commits_silently_on_mariadb_is_refused_before_it_does(on_mariadb: ConsumingDatabase, statement: str):
    database = on_mariadb
    consumer, message = database.consumer(), a_message()

    def commits_silently(session, message):
        book(session, message)
        session.execute(text(statement))

    with pytest.raises(HandlerEndedTransaction, match="would end the transaction"):
        consumer.consume(message, commits_silently)

    assert database.effects() == []
    assert database.marks() == []
    assert consumer.consume(message, lambda session: session.execute(text("CREATE TEMPORARY TABLE mine (id int)")))


def test_a_database_error_inside_a_savepoint_can_be_handled(database: ConsumingDatabase, orders: None):
    def tries(session, message):
        session.add(Order(id=1))
        session.flush()
        with pytest.raises(IntegrityError), session.begin_nested():
            session.execute(text("INSERT INTO orders VALUES (1)"))
        book(session, message)

    assert database.consumer().consume(a_message(), tries)
    assert len(database.effects()) == 1


def test_a_swallowed_database_error_is_not_taken_for_a_commit(on_postgresql: ConsumingDatabase):
    """PostgreSQL answers COMMIT with ROLLBACK then, and no driver raises: the event would be lost without a trace."""
    database = on_postgresql
    consumer, message = database.consumer(), a_message()

    def swallows(session, message):
        book(session, message)
        with pytest.raises(Exception, match="division by zero"):
            session.execute(text("SELECT 1/0"))

    with pytest.raises(HandlerEndedTransaction, match="begin_nested"):
        consumer.consume(message, swallows)

    assert consumer.consume(message, book)
    assert len(database.effects()) == 1


def test_a_lost_connection_that_the_handler_hides_is_not_taken_for_a_commit(on_postgresql: ConsumingDatabase):
    database = on_postgresql
    consumer, message = database.consumer(), a_message()

    def loses_its_connection(session, message):
        book(session, message)
        with pytest.raises(DBAPIError):
            session.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))

    with pytest.raises(HandlerEndedTransaction):
        consumer.consume(message, loses_its_connection)

    assert database.checked_out() == 0
    assert consumer.consume(message, book)
    assert len(database.effects()) == 1


def test_a_handlers_error_comes_out_though_the_rollback_fails_too(on_postgresql: ConsumingDatabase):
    database = on_postgresql
    consumer, message = database.consumer(), a_message()

    def loses_its_connection_and_fails(session, message):
        me = session.execute(text("SELECT pg_backend_pid()")).scalar_one()
        with database.engine.connect() as other:
            other.execute(text("SELECT pg_terminate_backend(:me)"), {"me": me})
        raise LookupError("the handler's own")

    with pytest.raises(LookupError, match="the handler's own"):
        consumer.consume(message, loses_its_connection_and_fails)

    assert database.checked_out() == 0
    assert consumer.consume(message, book)


def test_a_commit_that_fails_leaves_nothing(database: ConsumingDatabase, orders: None):
    consumer, message = database.consumer(), a_message()

    def fails_in_the_last_flush(session, message):
        book(session, message)
        session.execute(text("INSERT INTO orders VALUES (1)"))
        session.add(Order(id=1))

    with pytest.raises(IntegrityError):
        consumer.consume(message, fails_in_the_last_flush)

    assert database.effects() == []
    assert database.marks() == []


def test_the_users_own_before_commit_hook_still_runs(sync_database: ConsumingDatabase):
    database = sync_database
    sessions = database.sessions
    heard = []
    event.listen(sessions, "before_commit", heard.append)

    IdempotentConsumer(sessions, name="billing").consume(a_message(), book)

    assert len(heard) == 1


def test_a_sessionmaker_bound_to_a_connection_joins_its_transaction(sync_database: ConsumingDatabase):
    database = sync_database
    message = a_message()
    database.consumer()  # creates the table
    with database.engine.connect() as connection, connection.begin() as outer:
        consumer = IdempotentConsumer(sessionmaker(connection), name="billing")

        assert consumer.consume(message, book)
        assert not consumer.consume(message, book)
        assert outer.is_active
        outer.rollback()

    assert database.effects() == []
    assert database.marks() == []


def test_a_joined_savepoint_can_fail_alone(sync_database: ConsumingDatabase):
    """The usual test-suite recipe: everything in one transaction that is thrown away at the end."""
    database = sync_database
    good, bad = a_message(), a_message()
    database.consumer()
    with database.engine.connect() as connection, connection.begin() as outer:
        consumer = IdempotentConsumer(
            sessionmaker(connection, join_transaction_mode="create_savepoint"), name="billing"
        )

        consumer.consume(good, book)
        for ending in (rolls_back, commits, closes):
            with pytest.raises(HandlerEndedTransaction):
                consumer.consume(bad, ending)

        assert connection.execute(text("SELECT event_id FROM effects")).scalars().all() == [good["outbox_event_id"]]
        outer.commit()

    assert database.effects() == [good["outbox_event_id"]]
    assert database.marks() == ["billing"]


def test_the_scoped_session_is_the_handlers_session_while_it_runs(sync_database: ConsumingDatabase):
    database = sync_database
    scoped = scoped_session(database.sessions)
    consumer, message = IdempotentConsumer(scoped, name="billing"), a_message()

    def reaches_for_the_global(session, message):
        assert scoped() is session
        book(scoped(), message)
        raise LookupError

    with pytest.raises(LookupError):
        consumer.consume(message, reaches_for_the_global)

    assert database.effects() == [], "it worked in the consumer's transaction"
    assert not scoped.registry.has()


def test_a_scoped_session_in_use_is_left_as_it_was(consuming_on_postgresql: ConsumingDatabase):
    database = consuming_on_postgresql
    scoped = scoped_session(database.sessions)
    consumer, pending, message = IdempotentConsumer(scoped, name="billing"), a_message(), a_message()
    outer = scoped()
    book(outer, pending)

    assert consumer.consume(message, book)

    assert database.effects() == [message["outbox_event_id"]], "what was pending is not committed"
    assert scoped() is outer
    scoped.commit()
    assert len(database.effects()) == 2


def test_removing_the_scoped_session_in_a_handler_is_told(sync_database: ConsumingDatabase):
    database = sync_database
    scoped = scoped_session(database.sessions)
    consumer = IdempotentConsumer(scoped, name="billing")

    def removes(session, message):
        book(session, message)
        scoped.remove()

    with pytest.raises(HandlerEndedTransaction):
        consumer.consume(a_message(), removes)

    assert database.marks() == []


def test_autocommit_is_refused_before_any_sql(sync_database: ConsumingDatabase):
    database = sync_database
    database.consumer()
    statements = []
    engine = create_engine(database.url, isolation_level="AUTOCOMMIT")
    consumer = IdempotentConsumer(sessionmaker(engine), name="billing")
    optioned = IdempotentConsumer(database.engine.execution_options(isolation_level="AUTOCOMMIT"), name="billing")
    for source in (engine, database.engine):
        event.listen(source, "before_cursor_execute", lambda *args: statements.append(args[2]))

    for refused in (consumer, optioned):
        with pytest.raises(NoActiveTransaction, match="AUTOCOMMIT"):
            refused.consume(a_message(), book)

    assert [statement for statement in statements if "BEGIN" not in statement] == []
    engine.dispose()


def test_autocommit_is_refused_by_every_driver(on_a_server: ConsumingDatabase):
    database = on_a_server
    database.consumer().consume(a_message(), lambda session: None)
    consumer, message = database.consumer(engine_options={"isolation_level": "AUTOCOMMIT"}), a_message()

    with pytest.raises(NoActiveTransaction, match="AUTOCOMMIT"):
        consumer.consume(message, book)

    assert database.effects() == []
    assert len(database.marks()) == 1


def test_a_session_over_two_databases_is_refused_when_the_consumer_is_built(sync_database: ConsumingDatabase):
    database = sync_database
    other = create_engine("sqlite://")

    with pytest.raises(NoActiveTransaction, match="two databases"):
        IdempotentConsumer(sessionmaker(database.engine, binds={Order: other}), name="billing")

    other.dispose()


def test_plain_sqlite_without_any_configuration_works(consuming_on_sqlite: ConsumingDatabase):
    database = consuming_on_sqlite
    engine = create_engine(database.url)
    consumer, message = IdempotentConsumer(engine, name="billing"), a_message()

    def fails(session, message):
        with session.begin_nested():
            book(session, message)
        raise LookupError

    with pytest.raises(LookupError):
        consumer.consume(message, fails)
    assert database.effects() == []
    assert database.marks() == []
    assert consumer.consume(message, book)
    assert not consumer.consume(message, book)
    engine.dispose()


def test_sqlite_in_memory_works_once_its_table_is_there():
    engine = open_database("sqlite://", poolclass=StaticPool)
    create_missing(engine, consumer_tables(TableNames(), "sqlite"))
    consumer, message = IdempotentConsumer(engine, name="billing"), a_message()

    assert consumer.consume(message, lambda session: session.execute(text("SELECT 7")).scalar()).result == 7
    assert not consumer.consume(message, lambda session: None)
    engine.dispose()


def test_a_database_without_a_store_is_said():
    with pytest.raises(ConfigurationError, match="mariadb, mysql, postgresql, sqlite"):
        store_for(Speech("oracle", "$"), TableNames(), timedelta(seconds=5))


def test_a_session_factory_of_the_users_own_session_class_works(sync_database: ConsumingDatabase):
    database = sync_database

    class AuditedSession(Session):
        pass

    seen = []
    IdempotentConsumer(sessionmaker(database.engine, class_=AuditedSession), name="billing").consume(
        a_message(), lambda session: seen.append(isinstance(session, AuditedSession))
    )

    assert seen == [True]
