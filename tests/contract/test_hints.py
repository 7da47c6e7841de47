"""A commit on PostgreSQL tells relays that there is something to send: when it can be seen, and on a connection of its own."""

import asyncio
import gc
import time

import psycopg
import pytest
from sqlalchemy import create_engine, event, text
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.pool import NullPool

from outbox_publisher import AsyncOutbox, ConfigurationError, Outbox
from outbox_publisher.hints import answer
from outbox_publisher.hints.pace import QUIET
from outbox_publisher.store import channel_for
from outbox_shared.origins import django_origin
from outbox_shared.places import place_of
from outbox_shared.tables import TableNames
from tests.consuming import eventually
from tests.fixtures import NAMES
from tests.hints import CHANNEL, libpq, listening, notifiers
from tests.publishing import AsyncShop, DjangoShop, PsycopgShop, database_behind, open_shop

NOTIFIERS = """SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
               AND query LIKE '%pg_notify(%' AND query NOT LIKE '%the end%'"""

FORMS = ["postgresql", "psycopg-async", "asyncpg", "raw-psycopg", "raw-psycopg-async", "django-postgresql"]


@pytest.fixture(params=FORMS)
def shop(request, postgresql_outbox):
    opened = open_shop(request.param, postgresql_outbox)
    yield opened
    opened.close()


def told(shop):
    """Let a shop's loop run, where it has one; raw connections cannot tell by themselves."""
    if type(shop).__name__ in {"PsycopgShop", "AsyncPsycopgShop"}:
        shop.run(shop.outbox.wake()) if isinstance(shop, AsyncShop) else shop.outbox.wake()
    if isinstance(shop, AsyncShop):
        shop.run(asyncio.sleep(20 * QUIET))


def nothing_comes(ear, shop):
    if isinstance(shop, AsyncShop):
        shop.run(asyncio.sleep(5 * QUIET))
    return ear.drain() == []


def test_a_commit_is_told_when_its_event_can_be_seen(shop, postgresql_outbox):
    with listening(postgresql_outbox) as ear:
        with shop.begin():
            shop.take(1)
        told(shop)

        assert ear.listen() == [1]
        assert ear.drain() == [1]  # and once is enough


def test_a_batch_is_told_like_one(shop, postgresql_outbox):
    with listening(postgresql_outbox) as ear:
        with shop.begin():
            shop.publish_batch("order-created", [1, 2, 3])
        told(shop)

        assert ear.listen() == [3]


def test_a_rollback_is_not_told(shop, postgresql_outbox):
    with listening(postgresql_outbox) as ear:
        with pytest.raises(ZeroDivisionError), shop.begin():
            shop.take(1)
            _ = 1 / 0

        assert nothing_comes(ear, shop)
        with shop.begin():  # and what comes after it on the same connection
            shop.order(2)
        assert nothing_comes(ear, shop)


def test_a_transaction_without_events_is_not_told(shop, postgresql_outbox):
    with listening(postgresql_outbox) as ear:
        with shop.begin():
            shop.order(1)
        with shop.begin():
            shop.publish("order-created", {}, delay="1h")  # nothing that a relay could send now

        assert nothing_comes(ear, shop)


def test_a_released_savepoint_is_told_with_its_transaction_only(shop, postgresql_outbox):
    with listening(postgresql_outbox) as ear:
        with shop.begin():
            with shop.savepoint():
                shop.take(1)
            assert nothing_comes(ear, shop)
        told(shop)

        assert ear.listen() == [1]


def test_with_wakeup_poll_nothing_is_told(postgresql_outbox):
    before = notifiers()
    with listening(postgresql_outbox) as ear:
        for form in FORMS:
            shop = open_shop(form, postgresql_outbox, wakeup="poll")
            with shop.begin():
                shop.publish("order-created", {})
            told(shop)
            assert nothing_comes(ear, shop)
            shop.close()
    assert set(notifiers()) <= set(before)


@pytest.mark.parametrize("form", ["Connection", "Session", "AsyncConnection", "AsyncSession"])
@pytest.mark.parametrize(
    "pool", [{"pool_size": 1, "max_overflow": 0, "pool_timeout": 5}, {"poolclass": NullPool}], ids=["one", "null"]
)
def test_neither_form_nor_pool_matters(postgresql_outbox, form, pool):
    with listening(postgresql_outbox) as ear:
        if form.startswith("Async"):
            asyncio.run(publish_awaited(postgresql_outbox, form, pool))
        else:
            engine = create_engine(postgresql_outbox.url, **pool)
            outbox = Outbox(postgresql_outbox.settings())
            with sessionmaker(engine).begin() if form == "Session" else engine.begin() as transaction:
                outbox.publish(transaction, "order-created", {})
            with engine.connect():  # the pool's only connection is free while the notifier has one of its own
                assert ear.listen() == [1]
            engine.dispose()


async def publish_awaited(database, form, pool):
    engine = create_async_engine(make_url(database.url).set(drivername="postgresql+asyncpg"), **pool)
    outbox = AsyncOutbox(database.settings())
    if form == "AsyncSession":
        async with AsyncSession(engine) as session, session.begin():
            await outbox.publish(session, "order-created", {})
    else:
        async with engine.begin() as connection:
            await outbox.publish(connection, "order-created", {})
    async with engine.connect():
        await asyncio.sleep(5 * QUIET)
    await engine.dispose()


def test_the_function_that_publishes_tells_as_well(postgresql_outbox):
    outbox = Outbox(postgresql_outbox.settings())

    @outbox.publishes("order-created")
    def place(session):
        return {"id": 1}

    with listening(postgresql_outbox) as ear:
        with Session(postgresql_outbox.engine) as session, session.begin():
            place(session)
        assert ear.listen() == [1]


# A session on a connection that somebody keeps.


def test_a_session_on_a_kept_connection_tells_at_its_commit(postgresql_outbox):
    outbox = Outbox(postgresql_outbox.settings())
    with listening(postgresql_outbox) as ear, postgresql_outbox.engine.connect() as connection:
        for number in (1, 2):
            with Session(connection) as session, session.begin():
                outbox.publish(session, "order-created", {})
            assert ear.listen(number) == list(range(1, number + 1))


def test_a_session_inside_of_an_outer_transaction_tells_at_the_outer_commit(postgresql_outbox):
    outbox = Outbox(postgresql_outbox.settings())
    with listening(postgresql_outbox) as ear:
        with postgresql_outbox.engine.connect() as connection, connection.begin():
            with Session(connection, join_transaction_mode="create_savepoint") as session, session.begin():
                outbox.publish(session, "order-created", {})
            assert ear.drain() == []
        assert ear.listen() == [1]


def test_a_kept_connection_tells_when_it_is_given_back_or_by_hand(postgresql_outbox):
    outbox = Outbox(postgresql_outbox.settings())
    with listening(postgresql_outbox) as ear, postgresql_outbox.engine.connect() as connection:
        with connection.begin():
            outbox.publish(connection, "order-created", {})
        assert ear.drain() == []

        outbox.wake()

        assert ear.listen() == [1]


# Rhythm.


@pytest.mark.parametrize("form", ["postgresql", "asyncpg"])
def test_many_commits_are_told_together_and_the_last_one_always(postgresql_outbox, form):
    shop = open_shop(form, postgresql_outbox)
    with listening(postgresql_outbox) as ear:
        for number in range(200):
            with shop.begin():
                shop.take(number)
        told(shop)

        eventually(lambda: ear.drain()[-1:] == [200])
        assert len(ear.heard) < 150  # two hundred commits take some seconds on a slow machine
    shop.close()


def test_hints_keep_their_distance(postgresql_outbox):
    outbox = Outbox(postgresql_outbox.settings())
    with listening(postgresql_outbox) as ear:
        outbox.wake()
        ear.listen()
        began = time.monotonic()
        while time.monotonic() < began + 0.5:
            outbox.wake()
            time.sleep(0.0005)  # a thread that is never idle would hold up the notifier by itself
        ear.drain()
        took = time.monotonic() - began

    assert 2 < len(ear.heard) < took / QUIET + 3


# What it leaves alone.


def test_the_writers_own_connection_never_speaks_of_hints(listened_shop):
    for number in range(3):
        with listened_shop.begin():
            listened_shop.take(number)
        told(listened_shop)

    sent = " ".join(listened_shop.sent)
    assert "INSERT INTO outbox_events" in sent
    assert "notify" not in sent.lower()
    assert "LISTEN" not in sent


def test_a_connections_own_listeners_do_not_matter(postgresql_outbox):
    # given listeners that begin a transaction on each new connection, and one that fails
    engine = create_engine(postgresql_outbox.url)

    @event.listens_for(engine, "connect")
    def _greet(driver, _record):
        driver.execute("SET application_name = 'shop'")

    outbox = Outbox(postgresql_outbox.settings())
    with listening(postgresql_outbox) as ear:
        with engine.begin() as connection:
            outbox.publish(connection, "order-created", {})
        assert ear.listen() == [1]
        engine.dispose()

        with engine.begin() as connection:

            @event.listens_for(engine, "connect")
            def _refuse(driver, _record):
                driver.close()  # SQLAlchemy 2.0 would leave it to the garbage collector
                raise RuntimeError("no more connections")

            outbox.publish(connection, "order-created", {})
        assert ear.drain() == [1]
    engine.dispose()


def test_publishing_goes_on_when_nobody_can_be_told(postgresql_outbox):
    # given a notifier whose connections the server ends, and that gets no other
    engine = create_engine(postgresql_outbox.url, pool_size=1)
    outbox = Outbox(postgresql_outbox.settings())

    def publish(connection):
        with connection.begin():
            outbox.publish(connection, "order-created", {})

    with engine.connect() as connection, engine.connect() as hurts, listening(postgresql_outbox) as ear:
        outbox.wake()
        assert ear.listen() == [0]
        hurts.execute(text(NOTIFIERS.replace("count(*)", "pg_terminate_backend(pid)")))
        hurts.commit()

        publish(connection)
        outbox.wake()

        assert ear.listen(2) == [0, 1]  # a line that was cut is replaced
    engine.dispose()


def test_disposing_of_the_engine_ends_its_notifier(postgresql_outbox):
    before = notifiers()
    engine = create_engine(postgresql_outbox.url)
    outbox = Outbox(postgresql_outbox.settings())
    with listening(postgresql_outbox) as ear:
        for number in (1, 2):
            with engine.begin() as connection:
                outbox.publish(connection, "order-created", {})
            engine.dispose()

            eventually(lambda: set(notifiers()) <= set(before), within=5)  # not after its idle time
            assert ear.drain() == list(range(1, number + 1))  # and what was to be told was told before
        with psycopg.connect(libpq(postgresql_outbox.url)) as asking:
            assert asking.execute(NOTIFIERS).fetchone() == (0,)


@pytest.mark.parametrize("drivername", ["postgresql+asyncpg", "postgresql+psycopg"])
@pytest.mark.parametrize("wait", [0, QUIET / 2, 5 * QUIET], ids=["not begun", "busy", "done"])
def test_a_loop_ends_without_a_word(postgresql_outbox, recwarn, caplog, drivername, wait):
    engine = create_async_engine(make_url(postgresql_outbox.url).set(drivername=drivername), poolclass=NullPool)
    outbox = AsyncOutbox(postgresql_outbox.settings())

    async def work():
        async with engine.begin() as connection:
            await outbox.publish(connection, "order-created", {})
        await asyncio.sleep(wait)

    for _ in range(3):  # an engine without a pool may see several loops
        asyncio.run(work())
    gc.collect()

    assert [str(warning.message) for warning in recwarn] == []
    assert [record.message for record in caplog.records if record.levelname != "DEBUG"] == []


def test_several_engines_and_outboxes_do_not_disturb_each_other(postgresql_outbox):
    other = create_engine(postgresql_outbox.url)
    branched = other.execution_options(isolation_level="REPEATABLE READ")
    outboxes = [Outbox(postgresql_outbox.settings()) for _ in range(2)]
    with listening(postgresql_outbox) as ear:
        for number, engine in enumerate((postgresql_outbox.engine, other, branched), start=1):
            with engine.begin() as connection:
                for outbox in outboxes:
                    outbox.publish(connection, "order-created", {})
            assert ear.listen(number)[-1] == number * len(outboxes)
        with pytest.raises(ZeroDivisionError), branched.begin() as connection:
            outboxes[0].publish(connection, "order-created", {})
            _ = 1 / 0
        assert len(ear.drain()) == 3
    other.dispose()


# By hand.


def test_waking_by_hand_needs_to_know_the_database(postgresql_outbox):
    outbox = Outbox(postgresql_outbox.settings(database_url=None))
    with pytest.raises(ConfigurationError, match="database-url"):
        outbox.wake()
    Outbox(postgresql_outbox.settings(database_url=None, wakeup="poll")).wake()


def test_raw_connections_are_not_told_for(postgresql_outbox):
    shop = PsycopgShop(postgresql_outbox)
    with listening(postgresql_outbox) as ear:
        with shop.begin():
            shop.take(1)
        assert ear.drain() == []
    shop.close()


def test_djangos_hint_goes_over_a_connection_of_its_own(postgresql_outbox):
    shop = DjangoShop(postgresql_outbox)
    with listening(postgresql_outbox) as ear:
        with shop.begin():
            shop.take(1)
        mine = shop.connection.connection
        assert ear.listen() == [1]
        assert "notify" not in mine.execute(
            "SELECT query FROM pg_stat_activity WHERE pid = pg_backend_pid()"
        ).fetchone()[0].replace("pg_stat", "")
    shop.close()


def test_a_line_of_djangos_that_was_left_to_the_parent_is_not_used_again(postgresql_outbox):
    shop = DjangoShop(postgresql_outbox)
    with listening(postgresql_outbox) as ear:
        with shop.begin():
            shop.take(1)
        ear.listen()
        notifier = django_origin(shop.connection).made[NAMES]._notifier
        eventually(lambda: notifier._thread is None)  # a short idle time, as its connections have
        left = notifier._line = django_origin(shop.connection).open()
        left.execute("SELECT 1")

        notifier.forget()  # what a forked child does
        with shop.begin():
            shop.take(2)

        assert ear.listen(2) == [1, 2]
        assert notifier._line is not left
        left.execute("SELECT 1")
        left.close()
    shop.close()


# Which channel.


def test_every_outbox_has_its_channel():
    assert CHANNEL == channel_for("postgresql", NAMES) == "outbox_events"
    assert channel_for("postgresql", TableNames(schema="Shop")) == "Shop.outbox_events"
    long = [channel_for("postgresql", TableNames(schema="s" * 36, prefix="p" * 35 + end)) for end in "ab"]
    assert len(set(long)) == 2
    assert all(len(name.encode()) <= 63 for name in long)
    assert channel_for("mysql", NAMES) is channel_for("sqlite", NAMES) is None


def test_a_channel_with_capitals_is_the_same_for_both(postgresql_outbox):
    names = TableNames(schema=None, prefix="Shop_")
    with psycopg.connect(libpq(postgresql_outbox.url), autocommit=True) as connection:
        connection.execute(f'LISTEN "{channel_for("postgresql", names)}"')
        Outbox(postgresql_outbox.settings(tables={"prefix": "Shop_"})).wake()
        assert [notify.channel for notify in connection.notifies(timeout=10, stop_after=1)] == ["Shop_events"]


# In one process, on any database.


def test_a_relay_of_the_same_process_is_told_without_sql(shop_anywhere):
    rung = []
    place = place_of(make_url(shop_anywhere.database.url))
    with answer((place, NAMES), lambda: rung.append(len(shop_anywhere.database.events()))):
        with shop_anywhere.begin():
            shop_anywhere.take(1)
        told(shop_anywhere)
        assert rung == [1]

        with pytest.raises(ZeroDivisionError), shop_anywhere.begin():
            shop_anywhere.take(2)
            _ = 1 / 0
        assert rung == [1]


@pytest.fixture(
    params=[
        "sqlite",
        "postgresql",
        "mariadb",
        "aiosqlite",
        "asyncpg",
        "asyncmy",
        "raw-psycopg",
        "django-postgresql",
        "django-sqlite",
    ]
)
def shop_anywhere(request):
    opened = open_shop(request.param, request.getfixturevalue(f"{database_behind(request.param)}_outbox"))
    yield opened
    opened.close()
