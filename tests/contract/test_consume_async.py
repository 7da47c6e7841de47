"""`AsyncIdempotentConsumer` as an async program uses it: its own handlers, sessions, tasks and cancellation."""

import asyncio
import functools
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest
from sqlalchemy import create_engine, inspect, text
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import sessionmaker

from outbox_consumer import (
    AsyncIdempotentConsumer,
    ConsumerSettings,
    HandlerEndedTransaction,
    MissingTable,
    NoActiveTransaction,
    Status,
)
from outbox_shared.context import current_story
from tests.consuming import ConsumingDatabase, FakeCache, Service, a_message, book_async


@pytest.fixture
def service(async_database: ConsumingDatabase) -> Service:
    made: Service = async_database.consumer()
    return made


def run(service: Service, main: Callable[..., Awaitable[Any]]) -> Any:
    """Run `main(consumer, engine)` on the loop to which both belong."""
    return service.run(lambda: main(service.consumer, service.engine))


def test_an_async_handler_gets_an_async_session(service: Service, async_database: ConsumingDatabase):
    message = a_message()

    async def handler(session, message):
        assert isinstance(session, AsyncSession)
        return await book_async(session, message)

    async def main(consumer, engine):
        return await consumer.consume(message, handler), await consumer.consume(message, handler)

    first, second = run(service, main)

    assert (first.status, first.result, second.status) == (Status.CONSUMED, "booked", Status.DUPLICATE)
    assert async_database.effects() == [message["outbox_event_id"]]
    assert async_database.checked_out() == 0


def test_a_handler_runs_in_the_callers_task_and_context(service: Service):
    mine: ContextVar[str] = ContextVar("mine", default="nobody's")
    seen: list[Any] = []

    async def handler(session):
        await asyncio.sleep(0)
        seen.extend([asyncio.current_task(), mine.get(), current_story().correlation_id])
        mine.set("the handler's")

    async def main(consumer, engine):
        mine.set("the caller's")
        await consumer.consume({**a_message(), "outbox_correlation_id": "req-1"}, handler)
        return asyncio.current_task(), mine.get(), current_story().correlation_id

    task, after, story = run(service, main)

    assert seen == [task, "the caller's", "req-1"]
    assert (after, story) == ("the handler's", None)


async def commits(session, message):
    await book_async(session, message)
    await session.commit()


async def rolls_back(session, message):
    await book_async(session, message)
    await session.rollback()


async def rolls_back_in_an_except(session, message):
    await book_async(session, message)
    try:
        {}["the customer"]
    except KeyError:
        await session.rollback()


async def closes(session, message):
    await book_async(session, message)
    await session.close()


async def commits_behind_an_exit(session, message):
    await book_async(session, message)
    async with session:
        pass


@pytest.mark.parametrize("handler", [commits, rolls_back, rolls_back_in_an_except, closes, commits_behind_an_exit])
def test_a_handler_that_ends_the_transaction_is_told(
    service: Service, async_database: ConsumingDatabase, handler: Callable[..., Any]
):
    message = a_message()

    async def main(consumer, engine):
        with pytest.raises(HandlerEndedTransaction):
            await consumer.consume(message, handler)
        return await consumer.consume(message, book_async)

    assert run(service, main)
    assert async_database.effects() == [message["outbox_event_id"]]
    assert async_database.checked_out() == 0


def test_savepoints_pass(service: Service, async_database: ConsumingDatabase):
    async def with_savepoints(session, message):
        async with session.begin_nested():
            await book_async(session, message)
        with pytest.raises(LookupError):
            async with session.begin_nested():
                await book_async(session, a_message())
                raise LookupError

    assert run(service, lambda consumer, engine: consumer.consume(a_message(), with_savepoints))
    assert len(async_database.effects()) == 1


def test_a_cancelled_handler_leaves_nothing(service: Service, async_database: ConsumingDatabase):
    cache, message = FakeCache(), a_message()

    async def waits_for_ever(session, message):
        await book_async(session, message)
        entered.set()
        await asyncio.Event().wait()

    entered = asyncio.Event()

    async def main(_consumer, engine):
        consumer = AsyncIdempotentConsumer(engine, "billing", cache=cache)
        task = asyncio.create_task(consumer.consume(message, waits_for_ever))
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await consumer.consume(message, waits_for_ever)
        return await consumer.consume(message, book_async)

    assert run(service, main)
    assert async_database.effects() == [message["outbox_event_id"]]
    assert len(cache.ids) == 1
    assert async_database.checked_out() == 0


def test_cancelled_while_it_waits_for_its_twin_leaves_nothing(service: Service, async_database: ConsumingDatabase):
    message, entered, go_on = a_message(), asyncio.Event(), asyncio.Event()

    async def held(session, message):
        await book_async(session, message)
        entered.set()
        await go_on.wait()

    async def main(consumer, engine):
        first = asyncio.create_task(consumer.consume(message, held))
        await entered.wait()
        second = asyncio.create_task(consumer.consume(message, book_async))
        await asyncio.sleep(0.1)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        go_on.set()
        return await first, await consumer.consume(message, book_async)

    one, again = run(service, main)

    assert (bool(one), bool(again)) == (True, False)
    assert len(async_database.effects()) == 1
    assert async_database.checked_out() == 0


def test_many_tasks_of_one_loop_have_each_effect_once(service: Service, async_database: ConsumingDatabase):
    messages = [a_message() for _ in range(15)]

    async def slow(session, message):
        await book_async(session, message)
        await asyncio.sleep(0.002)

    async def main(consumer, engine):  # also: they all find no tables, and create them at once
        return await asyncio.gather(*(consumer.consume(message, slow) for message in messages * 3))

    outcomes = run(service, main)

    assert sum(map(bool, outcomes)) == 15
    assert async_database.effects() == sorted(message["outbox_event_id"] for message in messages)


def test_batches_are_awaited_too(service: Service, async_database: ConsumingDatabase):
    messages = [a_message() for _ in range(5)]

    async def handler(session, fresh):
        for message in fresh:
            await book_async(session, message)
            if message is messages[2]:
                raise LookupError
        return len(fresh)

    async def main(consumer, engine):
        with pytest.raises(LookupError):
            await consumer.consume_batch(messages, handler)
        return await consumer.consume_batch(messages, handler, on_error="bisect")

    outcomes = run(service, main)

    assert [outcome.status.value for outcome in outcomes] == ["consumed"] * 2 + ["failed"] + ["consumed"] * 2
    assert len(async_database.effects()) == 4


def test_the_decorator_on_functions_and_methods(service: Service, async_database: ConsumingDatabase):
    consumer = service.consumer

    @consumer.idempotent
    async def on_order(session: AsyncSession, message: dict[str, str]) -> str:
        return await book_async(session, message)

    @consumer.idempotent(session="db", message="record")
    async def on_other(topic: str, record: dict[str, str], db: AsyncSession) -> str:
        return topic

    class Billing:
        @consumer.idempotent
        async def on_order(self, session: AsyncSession, message: dict[str, str]) -> "Billing":
            await book_async(session, message)
            return self

    billing, first, second, third = Billing(), a_message(), a_message(), a_message()

    async def main(consumer, engine):
        assert await on_order(first) == "booked"
        assert await on_order(message=first) is None
        assert await on_other("orders", second) == "orders"
        assert await on_other("orders", record=second) is None
        assert await billing.on_order(third) is billing
        assert await billing.on_order(third) is None

    run(service, main)

    assert asyncio.iscoroutinefunction(on_order)
    assert list(inspect_signature(on_order)) == ["message"]
    assert len(async_database.effects()) == 2


def inspect_signature(function: Any) -> Any:
    import inspect as python  # noqa: PLC0415 - SQLAlchemy's has the name here

    return python.signature(function).parameters


# Which handlers.


class Charges:
    async def __call__(self, session, message):
        return await book_async(session, message)


@pytest.mark.parametrize(
    "handler",
    [
        Charges(),
        functools.partial(lambda gateway, session, message: book_async(session, message), "gateway"),
        lambda session, message: book_async(session, message),  # noqa: PLW0108 - a lambda is what it is about
        functools.partial(book_async),
    ],
    ids=["object", "partial of lambda", "lambda", "partial"],
)
def test_whatever_returns_something_to_await_is_a_handler(
    service: Service, async_database: ConsumingDatabase, handler: Callable[..., Any]
):
    assert run(service, lambda consumer, engine: consumer.consume(a_message(), handler))
    assert len(async_database.effects()) == 1


def test_an_async_mock_is_called_with_both(service: Service):
    handler, message = AsyncMock(return_value=7), a_message()

    outcome = run(service, lambda consumer, engine: consumer.consume(message, handler))

    assert outcome.result == 7
    assert handler.await_args.args[1] is message


def plain(session, message): ...
def wrapped(session, message): ...
def generator(session, message):
    yield


async def async_generator(session, message):
    yield


class Plain:
    def method(self, session, message): ...


@pytest.mark.parametrize(
    ("handler", "why"),
    [
        (plain, "plain function"),
        (functools.partial(plain), "plain function"),
        (Plain().method, "plain function"),
        (generator, "generator function"),
        (async_generator, "async generator"),
        (lambda message: None, "nothing says that it is the session"),
        (Plain, "is a class"),
    ],
)
def test_what_cannot_be_awaited_is_refused_before_anything_runs(
    service: Service, async_database: ConsumingDatabase, handler: Callable[..., Any], why: str
):
    with pytest.raises(TypeError, match=why) as raised:
        run(service, lambda consumer, engine: consumer.consume(a_message(), handler))

    assert "async def handler(session, message)" in str(raised.value)
    assert async_database.marks() == []
    with pytest.raises(TypeError):
        service.consumer.idempotent(handler)  # type: ignore[call-overload]


@pytest.mark.parametrize("handler", [lambda session, message: None, Mock(return_value=1), Mock()])
def test_what_turns_out_to_be_sync_consumes_nothing(
    service: Service, async_database: ConsumingDatabase, handler: Callable[..., Any]
):
    """It may have forgotten to await: its statements were never sent."""
    with pytest.raises(TypeError, match="an async consumer awaits its handlers"):
        run(service, lambda consumer, engine: consumer.consume(a_message(), handler))

    assert async_database.marks() == []
    assert async_database.checked_out() == 0


# Sessions and tables.


def test_a_session_bound_to_a_connection_joins_and_is_never_remembered(
    service: Service, async_database: ConsumingDatabase
):
    cache, message = FakeCache(), a_message()

    async def main(consumer, engine):
        await consumer.consume(a_message(), lambda session: asyncio.sleep(0))  # creates the tables
        async with engine.connect() as connection, connection.begin() as outer:
            inside = AsyncIdempotentConsumer(async_sessionmaker(connection), "inside", cache=cache)
            assert await inside.consume(message, book_async)
            assert not await inside.consume(message, book_async)
            await outer.rollback()

    run(service, main)

    assert cache.ids == set()
    assert async_database.effects() == []


def test_the_scoped_session_is_the_handlers_session_while_it_runs(service: Service, async_database: ConsumingDatabase):
    async def main(_consumer, engine):
        scoped = async_scoped_session(async_sessionmaker(engine), scopefunc=asyncio.current_task)
        consumer = AsyncIdempotentConsumer(scoped, "billing")

        async def reaches_for_the_global(session, message):
            assert scoped() is session
            await book_async(scoped(), message)
            raise LookupError

        with pytest.raises(LookupError):
            await consumer.consume(a_message(), reaches_for_the_global)
        assert not scoped.registry.has()

    run(service, main)

    assert async_database.effects() == []


def test_the_tables_are_created_before_the_first_message_and_never_by_a_claim(
    service: Service, async_database: ConsumingDatabase
):
    async def main(consumer, engine):
        async with AsyncSession(engine) as session, session.begin():
            with pytest.raises(MissingTable, match="init-db"):
                await consumer.claim(session, a_message())
            await session.rollback()
        assert not inspect(async_database.engine).has_table("outbox_consumed_events")
        await consumer.consume(a_message(), book_async)

    run(service, main)

    assert inspect(async_database.engine).has_table("outbox_consumer_attempts")


def test_nothing_is_created_where_the_settings_forbid_it(async_database: ConsumingDatabase):
    service = async_database.consumer(tables={"auto_create": False})

    with pytest.raises(MissingTable, match="init-db"):
        run(service, lambda consumer, engine: consumer.consume(a_message(), book_async))


def test_claims_in_async_sessions_and_connections(service: Service, async_database: ConsumingDatabase):
    first, second = a_message(), a_message()

    async def main(consumer, engine):
        await consumer.consume(first, book_async)
        async with AsyncSession(engine) as session, session.begin():
            assert not await consumer.claim(session, first)
            assert await consumer.claim_batch(session, [first, second]) == [second]
        async with engine.begin() as connection:
            assert not await consumer.claim(connection, second)
        async with AsyncSession(engine) as session:
            with pytest.raises(NoActiveTransaction, match=r"await consumer\.claim"):
                await consumer.claim(session, first)
        with sessionmaker(async_database.engine)() as sync, pytest.raises(TypeError, match="IdempotentConsumer"):
            await consumer.claim(sync, first)

    run(service, main)

    assert len(async_database.marks()) == 2


def test_it_is_a_context_manager(service: Service):
    async def main(_consumer, engine):
        async with AsyncIdempotentConsumer(engine, "billing") as consumer:
            assert await consumer.consume(a_message(), book_async)

    run(service, main)


def test_a_source_that_cannot_work_is_refused():
    sync = create_engine("sqlite://")
    for source, said in [
        (sync, "Engine is sync: use IdempotentConsumer"),
        (sessionmaker(sync), "sessionmaker is sync"),
        (AsyncSession(), "pass the async_sessionmaker"),
        ("sqlite://", "not str"),
    ]:
        with pytest.raises(TypeError, match=said):
            AsyncIdempotentConsumer(source, "billing")  # type: ignore[arg-type]
    sync.dispose()


def test_a_session_over_two_databases_is_refused_when_the_consumer_is_built():
    one, other = create_async_engine("sqlite+aiosqlite://"), create_async_engine("sqlite+aiosqlite://")

    with pytest.raises(NoActiveTransaction, match="two databases"):
        AsyncIdempotentConsumer(async_sessionmaker(one, binds={dict: other}), "billing")


def test_settings_and_name_are_those_of_the_sync_consumer():
    engine = create_async_engine("sqlite+aiosqlite://")

    assert AsyncIdempotentConsumer(engine, settings=ConsumerSettings(name="billing")).name == "billing"
    with pytest.raises(Exception, match="needs a name"):
        AsyncIdempotentConsumer(engine)


def test_nothing_is_created_in_memory():
    async def main():
        engine = create_async_engine("sqlite+aiosqlite://")
        with pytest.raises(MissingTable):
            await AsyncIdempotentConsumer(engine, "billing").consume(a_message(), book_async)
        async with engine.connect() as connection:
            tables = await connection.run_sync(lambda sync: inspect(sync).get_table_names())
            await connection.execute(text("SELECT 1"))
        await engine.dispose()
        return tables

    assert asyncio.run(main()) == []
