"""Who creates the consumed table, and what is said where nobody did."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from uuid import uuid4

import pytest
from sqlalchemy import create_engine, event, inspect, text
from sqlalchemy.engine import Engine
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.pool import StaticPool

from outbox_consumer import ConsumerSettings, IdempotentConsumer, MissingTable
from tests.consuming import ConsumingDatabase, a_message, book, open_database

OURS = {"outbox_consumed_events", "outbox_consumer_attempts", "outbox_state"}
WITHOUT_CREATION = ConsumerSettings(tables={"auto_create": False})


def tables(database: ConsumingDatabase) -> set[str]:
    return set(inspect(database.engine).get_table_names())


def test_a_consumer_creates_its_table_when_it_is_built(sync_database: ConsumingDatabase):
    database = sync_database
    assert tables(database) == {"effects"}

    database.consumer()

    assert tables(database) == {"effects"} | OURS


def test_it_looks_before_it_creates_and_changes_nothing_that_is_there(sync_database: ConsumingDatabase):
    database = sync_database
    database.consumer().consume(a_message(), book)
    statements: list[str] = []
    event.listen(database.engine, "before_cursor_execute", lambda *args: statements.append(args[2]))

    database.consumer("shipping")

    assert not any("CREATE" in statement for statement in statements)
    assert database.marks() == ["billing"]


def test_a_writer_elsewhere_does_not_hold_up_a_new_consumer(sync_database: ConsumingDatabase):
    database = sync_database
    database.consumer()
    with Session(database.engine) as session, session.begin():
        book(session, a_message())

        database.consumer("shipping")


def test_prefix_and_schema_are_obeyed(sync_database: ConsumingDatabase):
    database = sync_database
    consumer = database.consumer(tables={"prefix": "Mixed_"})

    assert consumer.consume(a_message(), book)

    assert "Mixed_consumed_events" in tables(database)


def test_a_schema_of_its_own_on_postgresql(consuming_on_postgresql: ConsumingDatabase):
    database = consuming_on_postgresql
    with database.engine.begin() as connection:
        connection.execute(text("CREATE SCHEMA messaging"))
    message = a_message()
    consumer = database.consumer(tables={"schema": "messaging"})

    assert consumer.consume(message, book)
    assert not consumer.consume(message, book)
    assert set(inspect(database.engine).get_table_names("messaging")) == OURS


def test_without_the_table_the_error_names_init_db(sync_database: ConsumingDatabase):
    database = sync_database
    consumer = IdempotentConsumer(database.sessions, name="billing", settings=WITHOUT_CREATION)

    with pytest.raises(MissingTable, match="outbox-consumer init-db"):
        consumer.consume(a_message(), book)
    with Session(database.engine) as session, session.begin():
        with pytest.raises(MissingTable, match="outbox_consumed_events"):
            consumer.claim(session, a_message())
        session.rollback()

    assert tables(database) == {"effects"}
    assert database.effects() == []


@pytest.fixture
def as_role(consuming_on_postgresql: ConsumingDatabase) -> Iterator[Callable[..., Engine]]:
    """as_role(*grants) -> an engine whose connections have these rights alone."""
    owner, role, engines = consuming_on_postgresql.engine, f"consumer_{uuid4().hex}", []

    def make(*grants: str) -> Engine:
        with owner.begin() as connection:
            connection.execute(text("REVOKE CREATE ON SCHEMA public FROM PUBLIC"))
            connection.execute(text(f"CREATE ROLE {role}"))
            for grant in grants:
                connection.execute(text(f"GRANT {grant} TO {role}"))
        engines.append(create_engine(owner.url, connect_args={"options": f"-c role={role}"}))
        return engines[0]

    yield make
    for engine in engines:
        engine.dispose()
    with owner.begin() as connection:
        connection.execute(text(f"DROP OWNED BY {role}"))
        connection.execute(text(f"DROP ROLE {role}"))


def test_a_role_that_may_not_create_hears_of_init_db(as_role: Callable[..., Engine]):
    with pytest.raises(MissingTable, match=r"permission denied.*init-db"):
        IdempotentConsumer(as_role(), name="billing")


def test_a_role_that_may_only_insert_can_consume(
    consuming_on_postgresql: ConsumingDatabase, as_role: Callable[..., Engine]
):
    consuming_on_postgresql.consumer()
    engine = as_role("INSERT ON effects", "INSERT ON outbox_consumed_events")
    consumer, message = IdempotentConsumer(engine, name="billing"), a_message()

    assert consumer.consume(message, book)
    assert not consumer.consume(message, book)


def test_a_database_out_of_reach_is_the_drivers_own_error():
    engine = create_engine("postgresql+psycopg://nobody@127.0.0.1:1/nowhere")

    with pytest.raises(OperationalError):
        IdempotentConsumer(engine, name="billing")

    engine.dispose()


def test_nothing_is_created_where_that_would_commit_the_users_transaction(
    sync_database: ConsumingDatabase, fresh_sqlite: Callable[[], str]
):
    database = sync_database
    # given a transaction of the user's that is still open
    with database.engine.connect() as connection, connection.begin() as outer:
        book(connection, a_message())  # type: ignore[arg-type]
        IdempotentConsumer(sessionmaker(connection), name="billing")
        outer.rollback()
    assert tables(database) == {"effects"}
    assert database.effects() == []

    # and engines whose every connection is the same one
    for engine in (create_engine(fresh_sqlite(), poolclass=StaticPool), open_database("sqlite://")):
        consumer = IdempotentConsumer(engine, name="billing")
        with pytest.raises(MissingTable, match="init-db"):
            consumer.consume(a_message(), lambda session: None)
        engine.dispose()


@pytest.mark.slow
def test_several_processes_may_create_it_at_once(sync_database: ConsumingDatabase):
    database = sync_database
    script = (
        "import sys; from tests.consuming import open_database; from outbox_consumer import IdempotentConsumer;"
        "IdempotentConsumer(open_database(sys.argv[1]), name='billing')"
    )
    running = [subprocess.Popen([sys.executable, "-c", script, database.url]) for _ in range(4)]

    assert [process.wait() for process in running] == [0, 0, 0, 0]
    assert "outbox_consumed_events" in tables(database)


def test_init_db_creates_the_table_and_can_be_run_again(sync_database: ConsumingDatabase, command):
    database = sync_database
    first = command("outbox-consumer", "init-db", OUTBOX_DATABASE_URL=database.url)
    second = command("outbox-consumer", "init-db", OUTBOX_DATABASE_URL=database.url)

    assert first[0] == second[0] == 0
    assert "outbox_consumed_events: created\n" in first[1]
    assert "outbox_consumed_events: already there\n" in second[1]
    consumer = IdempotentConsumer(database.sessions, name="billing", settings=WITHOUT_CREATION)
    assert consumer.consume(a_message(), book)
