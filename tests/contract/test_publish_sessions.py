"""Which transactions publish() takes, and what it says to the others: before any SQL, with the transaction as usable as before."""

import asyncio
import sqlite3
import subprocess
import sys
from contextlib import suppress
from uuid import uuid4

import pytest
from django.db import transaction
from psycopg import ClientCursor, RawCursor, connect
from psycopg.rows import dict_row
from sqlalchemy import create_engine, event, insert, text
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, scoped_session, sessionmaker

from outbox_publisher import AsyncOutbox, Outbox, configure_sqlite, from_django, from_psycopg
from outbox_shared.errors import NoActiveTransaction, OutboxError
from tests.fixtures import OutboxDatabase
from tests.publishing import ORDERS, AsyncPsycopgShop, AsyncShop, DjangoShop, PsycopgShop, SyncShop

# What is taken.


def test_a_connection_and_a_scoped_session_will_do(outbox_database):
    outbox = Outbox(outbox_database.settings())
    with outbox_database.engine.begin() as connection:
        outbox.publish(connection, "order-created", {}, key=1)
    sessions = scoped_session(sessionmaker(outbox_database.engine))
    with sessions.begin():
        outbox.publish(sessions, "order-created", {}, key=2)
    sessions.remove()

    assert [row.key for row in outbox_database.events()] == ["1", "2"]


@pytest.mark.parametrize("driver", ["aiosqlite", "psycopg", "asyncpg", "asyncmy"])
def test_the_async_forms_of_them_too(driver, request):
    names = {"aiosqlite": ("sqlite", "sqlite"), "asyncmy": ("mariadb", "mysql")}
    fixture, scheme = names.get(driver, ("postgresql", "postgresql"))
    database: OutboxDatabase = request.getfixturevalue(f"{fixture}_outbox")
    url = make_url(database.url).set(drivername=f"{scheme}+{driver}")
    outbox = AsyncOutbox(database.settings())

    async def work():
        engine = create_async_engine(url)
        if driver == "aiosqlite":
            configure_sqlite(engine.sync_engine)
        async with engine.begin() as connection:
            await outbox.publish(connection, "order-created", {}, key=1)
        sessions = async_scoped_session(async_sessionmaker(engine), scopefunc=asyncio.current_task)
        async with sessions.begin():
            await outbox.publish(sessions, "order-created", {}, key=2)
        await sessions.remove()
        await engine.dispose()

    asyncio.run(work())

    assert [row.key for row in database.events()] == ["1", "2"]


def test_publish_never_flushes_expires_or_commits(outbox_database):
    class Base(DeclarativeBase):
        pass

    class Unflushed(Base):
        __tablename__ = "no_such_table"
        id: Mapped[int] = mapped_column(primary_key=True)

    with Session(outbox_database.engine) as session:
        session.begin()
        session.add(pending := Unflushed(id=1))
        Outbox(outbox_database.settings()).publish(session, "order-created", {}, key=1)

        assert pending in session.new
        assert session.in_transaction()
        session.rollback()

    assert outbox_database.events() == []


def test_the_isolation_level_stays_as_it_was(outbox_database):
    engine = create_engine(outbox_database.url, isolation_level="SERIALIZABLE")
    if engine.dialect.name == "sqlite":
        configure_sqlite(engine)
    with Session(engine) as session, session.begin():
        Outbox(outbox_database.settings()).publish(session, "order-created", {})
        assert session.connection().get_isolation_level() == "SERIALIZABLE"
    engine.dispose()

    assert len(outbox_database.events()) == 1


def test_a_session_with_one_bind_for_some_tables_is_joined_there(outbox_database):
    with Session(binds={ORDERS: outbox_database.engine}) as session, session.begin():
        Outbox(outbox_database.settings()).publish(session, "order-created", {})

    assert len(outbox_database.events()) == 1


# What is refused.


def test_without_a_transaction_it_is_refused_and_shows_what_to_write(shop):
    expected = {
        SyncShop: r"\n    with Session\(engine\) as session, session\.begin\(\):.*maker\.begin\(\)",
        AsyncShop: r"\n    async with Session\(engine\) as session, session\.begin\(\):",
        PsycopgShop: r"\n    with connection\.transaction\(\):(.|\n)*from_psycopg\(connection\)",
        AsyncPsycopgShop: r"\n    async with connection\.transaction\(\):(.|\n)*await outbox.*from_psycopg\(connection\)",
        DjangoShop: r"\n    with transaction\.atomic\(\):(.|\n)*from_django\(\)",
    }[type(shop)]

    with pytest.raises(NoActiveTransaction, match=expected):
        shop.publish("order-created", {})
    with pytest.raises(NoActiveTransaction, match=expected):
        shop.publish_batch("order-created", [{}])
    with pytest.raises(NoActiveTransaction, match=expected):
        shop.cancel("01890f0f-0000-7000-8000-000000000001")

    with shop.begin():  # and nothing was left behind that would be in the way
        shop.take(1)
    assert shop.counts() == (1, 1)


def test_a_look_into_the_identity_map_is_no_transaction(outbox_database):
    class Base(DeclarativeBase):
        pass

    class Order(Base):
        __table__ = ORDERS.to_metadata(Base.metadata)

    Base.metadata.create_all(outbox_database.engine)
    with Session(outbox_database.engine, expire_on_commit=False) as session:
        with session.begin():
            session.add(order := Order(id=1))

        assert session.get(Order, 1) is order  # from memory: nothing was sent, nothing begun
        with pytest.raises(NoActiveTransaction):
            Outbox(outbox_database.settings()).publish(session, "order-created", {})


@pytest.mark.parametrize("driver", ["sqlite", "aiosqlite", "postgresql", "psycopg", "asyncpg", "mariadb", "asyncmy"])
def test_an_autocommit_engine_is_refused(driver, request):
    database_name = {"aiosqlite": "sqlite", "psycopg": "postgresql", "asyncpg": "postgresql", "asyncmy": "mariadb"}
    database: OutboxDatabase = request.getfixturevalue(f"{database_name.get(driver, driver)}_outbox")

    if driver in database_name:
        backend = database.engine.url.get_backend_name()

        async def work():
            engine = create_async_engine(
                make_url(database.url).set(drivername=f"{backend}+{driver}"), isolation_level="AUTOCOMMIT"
            )
            async with AsyncSession(engine) as session, session.begin():
                with pytest.raises(NoActiveTransaction, match="AUTOCOMMIT"):
                    await AsyncOutbox(database.settings()).publish(session, "order-created", {})
            await engine.dispose()

        asyncio.run(work())
    else:
        engine = create_engine(database.url, isolation_level="AUTOCOMMIT")
        with Session(engine) as session, session.begin(), pytest.raises(NoActiveTransaction, match="AUTOCOMMIT"):
            Outbox(database.settings()).publish(session, "order-created", {})
        engine.dispose()

    assert database.events() == []


def test_a_driver_that_was_set_to_autocommit_behind_sqlalchemys_back_is_refused(mariadb_outbox):
    engine = create_engine(mariadb_outbox.url, connect_args={"autocommit": True})
    with Session(engine) as session, session.begin(), pytest.raises(NoActiveTransaction, match="AUTOCOMMIT"):
        Outbox(mariadb_outbox.settings()).publish(session, "order-created", {})
    engine.dispose()


def test_a_raw_connection_in_autocommit_is_taken_inside_its_transaction_block_only(postgresql_outbox):
    shop = PsycopgShop(postgresql_outbox)
    shop.connection.autocommit = True
    with pytest.raises(NoActiveTransaction, match="no open transaction"):
        shop.publish("order-created", {})

    with shop.begin():
        shop.take(1)
    shop.close()

    assert shop.counts() == (1, 1)


def test_a_raw_connection_whose_transaction_failed_is_told_so(postgresql_outbox):
    shop = PsycopgShop(postgresql_outbox)
    with pytest.raises(NoActiveTransaction, match="failed transaction: roll back first"), shop.begin():
        with pytest.raises(Exception, match="no_such_table"):
            shop.connection.execute("SELECT * FROM no_such_table")
        shop.publish("order-created", {})
    shop.close()


def test_a_session_over_two_databases_is_refused(outbox_database):
    other = create_engine("sqlite://")
    session = Session(binds={ORDERS: other, OutboxDatabase: outbox_database.engine})
    outbox = Outbox(outbox_database.settings())

    with session, session.begin(), pytest.raises(NoActiveTransaction, match="two databases"):
        outbox.publish(session, "order-created", {})

    other.dispose()


def test_a_session_whose_rows_went_to_another_database_is_refused(outbox_database, fresh_sqlite):
    # given a session that routes by a get_bind of its own, and has a row in the other database already
    other = configure_sqlite(create_engine(fresh_sqlite()))
    ORDERS.create(other)

    class Routing(Session):
        def get_bind(self, *arguments, clause=None, **options):
            return other if getattr(clause, "table", None) is ORDERS else outbox_database.engine

    with Routing() as session, session.begin():
        session.execute(insert(ORDERS).values(id=1))
        with pytest.raises(NoActiveTransaction, match="two databases"):
            Outbox(outbox_database.settings()).publish(session, "order-created", {})
    other.dispose()

    assert outbox_database.events() == []


@pytest.mark.parametrize("autocommit", [False, True])
def test_a_raw_connection_in_pipeline_mode_is_refused(postgresql_outbox, autocommit):
    shop = PsycopgShop(postgresql_outbox)
    shop.connection.autocommit = autocommit
    with shop.connection.pipeline():
        shop.connection.execute("SELECT 1")
        with pytest.raises(NoActiveTransaction, match=r"before or after the pipeline\(\) block"):
            shop.publish("order-created", {})
        with pytest.raises(NoActiveTransaction, match=r"before or after the pipeline\(\) block"):
            shop.cancel("01890f0f-0000-7000-8000-000000000001")
    shop.close()

    assert postgresql_outbox.events() == []


@pytest.mark.parametrize("options", [
    {"row_factory": dict_row}, {"cursor_factory": ClientCursor}, {"cursor_factory": RawCursor}, {"prepare_threshold": None},
    {"prepare_threshold": 0},
])  # fmt: skip
def test_a_raw_connection_may_have_any_cursor(postgresql_outbox, options):
    outbox, mine = Outbox(postgresql_outbox.settings()), uuid4()
    url = make_url(postgresql_outbox.url).set(drivername="postgresql").render_as_string(hide_password=False)
    with connect(url, **options) as connection, connection.transaction():
        stored = [outbox.publish(from_psycopg(connection), "a", {}, event_id=mine, delay="1m").stored for _ in range(2)]
        batch = outbox.publish_batch(from_psycopg(connection), "b", [1, 2], delay="1s")
        assert (stored, batch.stored) == ([True, False], 2)
        assert outbox.cancel(from_psycopg(connection), mine)
    connection.close()

    assert [row.payload for row in postgresql_outbox.events()] == [b"1", b"2"]


def test_a_transaction_of_djangos_that_failed_is_told_so(postgresql_outbox):
    shop = DjangoShop(postgresql_outbox)
    with pytest.raises(NoActiveTransaction, match=r"leave its atomic\(\) block"), shop.begin():
        with suppress(ZeroDivisionError), transaction.atomic(using=shop.alias, savepoint=False):
            _ = 1 / 0
        shop.publish("order-created", {})
    shop.close()

    assert postgresql_outbox.events() == []


def test_an_async_connection_that_was_not_opened_is_told_how(sqlite_outbox):
    async def work():
        engine = create_async_engine(make_url(sqlite_outbox.url).set(drivername="sqlite+aiosqlite"))
        with pytest.raises(NoActiveTransaction, match=r"async with engine\.begin\(\) as connection:"):
            await AsyncOutbox(sqlite_outbox.settings()).publish(engine.connect(), "order-created", {})
        await engine.dispose()

    asyncio.run(work())


@pytest.mark.parametrize("begins_again", [False, True])
def test_what_makes_the_payloads_may_not_end_the_transaction(outbox_database, begins_again):
    outbox = Outbox(outbox_database.settings())

    def payloads(session):
        yield 1
        session.commit()
        if begins_again:
            session.begin()
        yield 2

    with Session(outbox_database.engine) as session:
        session.begin()
        with pytest.raises(NoActiveTransaction):
            outbox.publish_batch(session, "line-added", payloads(session))

    assert outbox_database.events() == []


def test_a_savepoint_in_sqlites_legacy_mode_is_refused_and_names_the_helper(sqlite_outbox):
    engine = create_engine(sqlite_outbox.url)  # without configure_sqlite
    outbox = Outbox(sqlite_outbox.settings())
    with Session(engine) as session, session.begin():
        with session.begin_nested(), pytest.raises(NoActiveTransaction, match=r"configure_sqlite\(engine\)"):
            outbox.publish(session, "order-created", {})
        outbox.publish(session, "order-created", {})  # outside of the savepoint it is safe
        session.rollback()
    engine.dispose()

    assert sqlite_outbox.events() == []


def test_the_legacy_mode_is_refused_in_aiosqlite_as_well(sqlite_outbox):
    async def work():
        engine = create_async_engine(make_url(sqlite_outbox.url).set(drivername="sqlite+aiosqlite"))
        async with AsyncSession(engine) as session, session.begin(), session.begin_nested():
            with pytest.raises(NoActiveTransaction, match=r"configure_sqlite\(engine\)"):
                await AsyncOutbox(sqlite_outbox.settings()).publish(session, "order-created", {})
        await engine.dispose()

    asyncio.run(work())


def test_async_and_sync_are_told_each_others_class(sqlite_outbox):
    settings = sqlite_outbox.settings()
    with pytest.raises(TypeError, match="AsyncSession is async: use AsyncOutbox"):
        Outbox(settings).publish(AsyncSession(), "order-created", {})
    with pytest.raises(TypeError, match="Session is sync: use Outbox with it"):
        asyncio.run(AsyncOutbox(settings).publish(Session(), "order-created", {}))
    with pytest.raises(TypeError, match="an AsyncSession or AsyncConnection, not str"):
        asyncio.run(AsyncOutbox(settings).publish("order-created", {}, {}))


def test_an_async_raw_connection_is_told_the_async_class(postgresql_outbox):
    shop = AsyncPsycopgShop(postgresql_outbox)
    with pytest.raises(TypeError, match="this connection is async: use AsyncOutbox"):
        Outbox(postgresql_outbox.settings()).publish(shop.session, "order-created", {})
    shop.close()


def test_raw_connections_are_told_their_adapter(postgresql_outbox):
    outbox = Outbox(postgresql_outbox.settings())
    raw, django = PsycopgShop(postgresql_outbox), DjangoShop(postgresql_outbox)
    with pytest.raises(TypeError, match=r"outbox\.publish\(from_psycopg\(connection\), \"order-created\""):
        outbox.publish(raw.connection, "order-created", {})
    with pytest.raises(TypeError, match=r"outbox\.publish\(from_django\(connection\), \"order-created\""):
        outbox.publish(django.connection, "order-created", {})
    with pytest.raises(TypeError, match="from_psycopg takes a psycopg Connection or AsyncConnection, not sqlalchemy"):
        from_psycopg(Session())
    raw.close()
    django.close()


def test_django_on_another_database_is_refused():
    class Oracle:
        vendor = "oracle"

    with pytest.raises(OutboxError, match="no outbox speaks 'oracle'"):
        from_django(Oracle())


def test_something_else_as_transaction_is_told_the_call(sqlite_outbox):
    with pytest.raises(TypeError, match=r"first argument is the transaction.*not str: outbox\.publish\(session"):
        Outbox(sqlite_outbox.settings()).publish("order-created", {}, {})


def test_sqlite3s_own_autocommit_is_seen(sqlite_outbox):
    engine = create_engine(sqlite_outbox.url)

    @event.listens_for(engine, "connect")
    def _connect(connection: sqlite3.Connection, _record):
        connection.isolation_level = None  # and no BEGIN: every statement commits by itself

    with Session(engine) as session, session.begin(), pytest.raises(NoActiveTransaction, match="AUTOCOMMIT"):
        session.execute(text("SELECT 1"))
        Outbox(sqlite_outbox.settings()).publish(session, "order-created", {})
    engine.dispose()


def test_without_greenlet_the_async_class_names_its_extra():
    script = (
        "import sys; sys.modules['greenlet'] = None\n"
        "from outbox_publisher import Outbox\n"  # the sync side does not need it
        "from outbox_publisher import AsyncOutbox\n"
    )
    failed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)

    assert failed.stderr.splitlines()[-1].endswith("pip install 'outbox-publisher[async]'")
