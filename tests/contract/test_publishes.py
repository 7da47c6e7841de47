"""@publishes: what a function returns becomes an event, in the transaction that the function was given."""

import asyncio
import functools
import inspect
import operator
from dataclasses import dataclass

import pytest
from sqlalchemy import insert
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from outbox_publisher import AsyncOutbox, Outbox, configure_sqlite, from_django, from_psycopg
from outbox_shared.errors import InvalidKey, NoActiveTransaction, PublishError
from tests.publishing import ORDERS, DjangoShop, PsycopgShop


@dataclass
class Order:
    id: int
    total: int = 0

    def summary(self) -> dict[str, int]:
        return {"order": self.id}


@pytest.fixture
def outbox(outbox_database):
    ORDERS.create(outbox_database.engine)
    return Outbox(outbox_database.settings())


@pytest.fixture
def session(outbox_database):
    with Session(outbox_database.engine) as session:
        yield session


def payloads(database) -> list[bytes]:
    return [row.payload for row in database.events()]


def test_the_return_value_is_the_payload(outbox, session, outbox_database):
    @outbox.publishes("order-created", key=lambda order: order.id)
    def place_order(session, number):
        """Takes an order."""
        session.execute(insert(ORDERS).values(id=number))
        return Order(number)

    with session.begin():
        assert place_order(session, number=7) == Order(7)

    (row,) = outbox_database.events()
    assert (row.event_type, row.key, row.payload) == ("order-created", "7", b'{"id":7,"total":0}')
    assert (place_order.__name__, place_order.__doc__) == ("place_order", "Takes an order.")
    assert list(inspect.signature(place_order).parameters) == ["session", "number"]


def test_the_payload_may_be_a_function_of_result_and_arguments(outbox, session, outbox_database):
    @outbox.publishes("a", payload=lambda result, **_: result.summary())
    def first(session, number):
        return Order(number)

    @outbox.publishes("b", payload=lambda result, note: {"id": result.id, "note": note})
    def second(session, number, note="none"):
        return Order(number)

    with session.begin():
        first(session, 1)
        second(session, 2)

    assert payloads(outbox_database) == [b'{"order":1}', b'{"id":2,"note":"none"}']


def test_the_payload_may_be_a_parameter_by_name(outbox, session, outbox_database):
    @outbox.publishes("a", payload="basket")
    def place_order(session, basket):
        return None

    with session.begin():
        place_order(session, {"apples": 3})

    assert payloads(outbox_database) == [b'{"apples":3}']


def test_many_publishes_each_item_of_a_list(outbox, session, outbox_database):
    @outbox.publishes("line-added", many=True, key=lambda item, number: f"{number}-{item['line']}", version=2)
    def add_lines(session, number):
        return [{"line": n} for n in range(3)]

    with session.begin():
        add_lines(session, 7)

    rows = outbox_database.events()
    assert [row.payload for row in rows] == [b'{"line":0}', b'{"line":1}', b'{"line":2}']
    assert [row.key for row in rows] == ["7-0", "7-1", "7-2"]
    assert {row.version for row in rows} == {2}


def test_an_empty_list_publishes_nothing(outbox, session, outbox_database):
    @outbox.publishes("line-added", many=True)
    def add_lines(session):
        return []

    with session.begin():
        assert add_lines(session) == []

    assert payloads(outbox_database) == []


def test_the_session_may_have_another_name_or_belong_to_self(outbox, session, outbox_database):
    class Service:
        def __init__(self, session):
            self.session = session

        @outbox.publishes("a", session=lambda self: self.session)
        def by_self(self, number):
            return number

        @outbox.publishes("b", session="db")
        def by_name(self, db, number):
            return number

    service = Service(session)
    with session.begin():
        service.by_self(1)
        service.by_name(session, 2)

    assert payloads(outbox_database) == [b"1", b"2"]


def test_what_the_function_raises_comes_out_and_nothing_is_stored(outbox, session, outbox_database):
    @outbox.publishes("a")
    def fails(session):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), session.begin():
        fails(session)

    assert payloads(outbox_database) == []


def test_without_a_transaction_the_function_is_not_even_called(outbox, session):
    called = []

    @outbox.publishes("a")
    def place_order(session):
        called.append(1)

    with pytest.raises(NoActiveTransaction, match=r"place_order\(…\)"):
        place_order(session)
    assert called == []


@pytest.mark.parametrize("ends", ["commit", "rollback", "commit_and_begin"])
def test_a_function_that_ends_the_transaction_is_told(outbox, session, outbox_database, ends):
    @outbox.publishes("a")
    def place_order(session):
        session.commit() if ends.startswith("commit") else session.rollback()
        if ends == "commit_and_begin":
            session.begin()
        return {}

    session.begin()
    with pytest.raises(NoActiveTransaction, match=r"place_order ended the transaction that it was given"):
        place_order(session)
    session.rollback()

    assert payloads(outbox_database) == []


def test_on_a_raw_connection_it_is_refused_because_nobody_could_tell(postgresql_outbox):
    shop = PsycopgShop(postgresql_outbox)
    called = []

    @shop.outbox.publishes("a", session=from_psycopg)
    def place_order(connection):
        called.append(1)

    with shop.begin(), pytest.raises(TypeError, match=r"call outbox\.publish\(from_psycopg\(connection\), …\) in it"):
        place_order(shop.connection)
    shop.close()

    assert called == []


def test_django_can_be_decorated(postgresql_outbox):
    shop = DjangoShop(postgresql_outbox)

    @shop.outbox.publishes("a", session=lambda: from_django(shop.alias), key=lambda number: number)
    def place_order(number):
        return number

    with shop.begin():
        place_order(7)
    shop.close()

    assert [row.key for row in postgresql_outbox.events()] == ["7"]


def test_options_may_be_any_callable(outbox, session, outbox_database):
    @outbox.publishes("a", key=operator.itemgetter("id"), payload=dict)
    def place_order(session, number):
        return {"id": number}

    with session.begin():
        place_order(session, 7)

    (row,) = outbox_database.events()
    assert (row.key, row.payload) == ("7", b'{"id":7}')


def test_a_callable_that_is_no_function_can_be_decorated(outbox, session, outbox_database):
    def place(number, session):
        return number

    with session.begin():
        outbox.publishes("a")(functools.partial(place, 3))(session=session)

    assert payloads(outbox_database) == [b"3"]


def test_a_savepoint_inside_the_function_is_fine(outbox, session, outbox_database):
    @outbox.publishes("a")
    def place_order(session):
        with session.begin_nested():
            session.execute(insert(ORDERS).values(id=1))
        return {}

    with session.begin():
        place_order(session)

    assert payloads(outbox_database) == [b"{}"]


def test_nothing_to_publish_is_an_error_and_not_a_null(outbox, session, outbox_database):
    @outbox.publishes("a")
    def returns_nothing(session): ...

    @outbox.publishes("a", many=True)
    def returns_one(session):
        return {"not": "a list"}

    with pytest.raises(PublishError, match="returns_nothing gave None to publish"), session.begin():
        returns_nothing(session)
    with (
        pytest.raises(PublishError, match=r"many=True publishes each item of a list, and .*returns_one gave a dict"),
        session.begin(),
    ):
        returns_one(session)

    assert payloads(outbox_database) == []


def test_a_bad_option_is_refused_like_in_publish(outbox, session):
    @outbox.publishes("a", key=lambda result: result.id)
    def place_order(session):
        return Order(id="None")

    with pytest.raises(InvalidKey, match="Did you flush"), session.begin():
        place_order(session)


def test_mistakes_are_told_when_the_function_is_decorated(outbox):
    with pytest.raises(TypeError, match="is async def: decorate it with AsyncOutbox"):

        @outbox.publishes("a")
        async def is_async(session): ...

    with pytest.raises(TypeError, match="is a generator"):

        @outbox.publishes("a")
        def is_generator(session):
            yield 1

    with pytest.raises(TypeError, match="has no parameter 'session': name the one that holds the session"):

        @outbox.publishes("a")
        def has_no_session(db): ...

    with pytest.raises(TypeError, match="has no parameter 'basket'"):

        @outbox.publishes("a", payload="basket")
        def has_no_basket(session): ...

    with pytest.raises(TypeError, match="no option is called 'kee': did you mean key"):

        @outbox.publishes("a", kee=1)
        def has_no_such_option(session): ...

    with pytest.raises(TypeError, match="key='number' would be the same text for every event"):

        @outbox.publishes("a", key="number")
        def names_a_parameter(session, number): ...

    with pytest.raises(TypeError, match="one event_id cannot serve many events"):

        @outbox.publishes("a", event_id="always-the-same")
        def has_one_id(session): ...

    with pytest.raises(TypeError, match="@staticmethod goes above"):

        class Service:
            @outbox.publishes("a")
            @staticmethod
            def is_static(session): ...


@pytest.mark.parametrize("driver", ["aiosqlite", "asyncpg", "asyncmy"])
def test_async_functions_go_with_the_async_outbox(request, driver):
    database = request.getfixturevalue(
        {"aiosqlite": "sqlite_outbox", "asyncpg": "postgresql_outbox", "asyncmy": "mariadb_outbox"}[driver]
    )
    ORDERS.create(database.engine)
    outbox = AsyncOutbox(database.settings())

    @outbox.publishes("order-created", key=lambda order: order.id, payload=lambda order: order.summary())
    async def place_order(session, number):
        await session.execute(insert(ORDERS).values(id=number))
        return Order(number)

    @outbox.publishes("line-added", many=True)
    async def add_lines(session):
        return [1, 2]

    @outbox.publishes("a")
    async def commits(session):
        await session.commit()
        return {}

    async def work():
        engine = create_async_engine(
            make_url(database.url).set(drivername=f"{database.engine.url.get_backend_name()}+{driver}")
        )
        if driver == "aiosqlite":
            configure_sqlite(engine.sync_engine)
        async with AsyncSession(engine) as session:
            with pytest.raises(NoActiveTransaction, match=r"await .*place_order\(…\)"):
                await place_order(session, 1)
            async with session.begin():
                assert await place_order(session, 7) == Order(7)
                await add_lines(session)
            await session.begin()
            with pytest.raises(NoActiveTransaction, match="commits ended the transaction"):
                await commits(session)
        await engine.dispose()

    asyncio.run(work())

    assert [(row.event_type, row.key, row.payload) for row in database.events()] == [
        ("order-created", "7", b'{"order":7}'),
        ("line-added", None, b"1"),
        ("line-added", None, b"2"),
    ]
    with pytest.raises(TypeError, match="is a plain def: decorate it with Outbox"):
        outbox.publishes("a")(lambda session: None)
