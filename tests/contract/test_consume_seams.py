"""What a consumer tells of its work, and whom it lets clean up after it."""

import asyncio
import threading
from typing import Any

import pytest
from sqlalchemy import MetaData, create_engine, update
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.pool import StaticPool

from outbox_consumer import ConsumerSettings, IdempotentConsumer, async_sessions, consumption, sessions
from outbox_consumer.schema import create_tables
from outbox_consumer.telemetry import Telemetry
from outbox_shared.sqltypes import wall_time_plus
from outbox_shared.tables import TableNames, consumed_events
from tests.consuming import ConsumingDatabase, FakeCache, a_message, book, book_all, eventually, open_database


class Told(Telemetry):
    """Writes down what it is told."""

    all: "list[tuple[Any, ...]]"

    def __init__(self, consumer: str) -> None:
        super().__init__(consumer)
        self.all = told

    def asked_cache(self, hits: int, misses: int) -> None:
        self.all.append(("asked", hits, misses))

    def processing(self, identity: Any) -> Any:
        self.all.append(("processing", identity.event_type))
        return super().processing(identity)

    def ended(self, identity: Any, end: Any, seconds: float, *, from_cache: bool = False, error: Any = None) -> None:
        assert seconds >= 0
        self.all.append((end, from_cache, type(error).__name__))


told: list[tuple[Any, ...]] = []


@pytest.fixture(autouse=True)
def _listening(monkeypatch: pytest.MonkeyPatch) -> None:
    told.clear()
    monkeypatch.setattr(consumption, "Telemetry", Told)


def test_each_delivery_ends_once(database: ConsumingDatabase):
    consumer, message = database.consumer(), a_message(event_type="order-paid")

    def fails(session, message):
        raise LookupError

    with pytest.raises(LookupError):
        consumer.consume(message, fails)
    consumer.consume(message, book)
    consumer.consume(message, book)

    assert told == [
        ("processing", "order-paid"), ("failed", False, "LookupError"),
        ("processing", "order-paid"), ("consumed", False, "NoneType"),
        ("duplicated", False, "NoneType"),
    ]  # fmt: skip


def test_the_cache_tells_hits_and_misses(database: ConsumingDatabase):
    consumer, message = database.consumer(cache=FakeCache()), a_message()

    consumer.consume(message, book)
    consumer.consume(message, book)
    consumer.consume_batch([message, a_message(), a_message()], book_all)

    assert [line for line in told if line[0] in {"asked", "duplicated"}] == [
        ("asked", 0, 1), ("asked", 1, 0), ("duplicated", True, "NoneType"), ("asked", 1, 2), ("duplicated", True, "NoneType")
    ]  # fmt: skip


def test_each_message_of_a_batch_ends_once(database: ConsumingDatabase):
    consumer, messages = database.consumer(), [a_message() for _ in range(3)]

    def fails_on_the_second(session, fresh):
        book_all(session, fresh)
        if messages[1] in fresh:
            raise LookupError

    with pytest.raises(LookupError):
        consumer.consume_batch(messages, fails_on_the_second)
    assert told == [("failed", False, "LookupError")] * 3
    told.clear()

    consumer.consume_batch([*messages, messages[0]], fails_on_the_second, on_error="bisect")
    assert told == [
        ("consumed", False, "NoneType"), ("failed", False, "LookupError"), ("consumed", False, "NoneType"),
        ("duplicated", False, "NoneType"),
    ]  # fmt: skip


def test_a_batch_that_breaks_off_tells_what_was_committed_before(on_a_server: ConsumingDatabase):
    database, messages = on_a_server, [a_message() for _ in range(4)]

    def breaks_off(session, fresh):
        book_all(session, fresh)
        if len(fresh) == 4:
            raise LookupError
        if messages[2] in fresh:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        database.consumer().consume_batch(messages, breaks_off, on_error="bisect")

    assert told == [("consumed", False, "NoneType")] * 2 + [("failed", False, "KeyboardInterrupt")] * 2
    assert len(database.effects()) == 2


# Cleanup.


class Keeping:
    def __init__(self) -> None:
        self.ended = self.closed = False

    def close(self) -> None:
        self.closed = True


class AsyncKeeping(Keeping):
    async def close(self) -> None:  # type: ignore[override]
        self.closed = True


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, Any]]:
    """The engines that are kept clean, and what ends that."""
    found: list[tuple[Any, Any]] = []

    def keep(made: Any) -> Any:
        def keep_clean(engine: Any, settings: ConsumerSettings, telemetry: Telemetry) -> Any:
            found.append((engine, made()))
            return found[-1][1]

        return keep_clean

    monkeypatch.setattr(sessions, "keep_clean", keep(Keeping))
    monkeypatch.setattr(async_sessions, "keep_clean_async", keep(AsyncKeeping))
    return found


def test_the_first_message_lets_somebody_clean_and_close_ends_it(database: ConsumingDatabase, kept: list[Any]):
    consumer = database.consumer(clean_up={"enabled": True})
    assert kept == []

    for _ in range(3):
        consumer.consume(a_message(), book)
    consumer.consume_batch([a_message()], book_all)
    assert len(kept) == 1

    kept[0][1].ended = True  # a fork, or another event loop
    consumer.consume(a_message(), book)
    consumer.consume(a_message(), book)
    assert len(kept) == 2

    consumer.run(consumer.consumer.close) if database.is_async else consumer.close()
    assert [keeping.closed for _, keeping in kept] == [False, True]
    consumer.consume(a_message(), book)
    assert len(kept) == 2


def test_a_consumer_that_only_claims_is_cleaned_after_too(sync_database: ConsumingDatabase, kept: list[Any]):
    consumer = sync_database.consumer(clean_up={"enabled": True})

    with Session(sync_database.engine) as session, session.begin():
        consumer.claim(session, a_message())
        consumer.claim_batch(session, [a_message()])

    assert [engine for engine, _ in kept] == [sync_database.engine]


def test_a_handler_that_fails_starts_nothing(sync_database: ConsumingDatabase, kept: list[Any]):
    def fails(session, message):
        raise LookupError

    with pytest.raises(LookupError):
        sync_database.consumer(clean_up={"enabled": True}).consume(a_message(), fails)

    assert kept == []


def test_nobody_cleans_where_the_settings_forbid_it(database: ConsumingDatabase, kept: list[Any]):
    database.consumer(clean_up={"enabled": False}).consume(a_message(), book)

    assert kept == []


def test_nobody_cleans_where_that_would_commit_the_users_transaction(sync_database: ConsumingDatabase, kept: list[Any]):
    sync_database.consumer()
    with sync_database.engine.connect() as connection, connection.begin():
        inside = IdempotentConsumer(sessionmaker(connection), name="billing")
        inside.consume(a_message(), book)
        inside.claim(connection, a_message())

    assert kept == []


def test_nobody_cleans_shared_connections_and_memory(kept: list[Any], tmp_path):
    for engine in (
        create_engine(f"sqlite:///{tmp_path / 'shared.db'}", poolclass=StaticPool),
        open_database("sqlite://"),
    ):
        create_tables(engine)
        IdempotentConsumer(engine, name="billing").consume(a_message(), lambda session: None)
        engine.dispose()

    assert kept == []


def test_a_sync_consumer_needs_no_greenlet():
    import subprocess  # noqa: PLC0415
    import sys  # noqa: PLC0415

    script = (
        "import sys; sys.modules['greenlet'] = None\nimport outbox_consumer\nprint(outbox_consumer.IdempotentConsumer)\n"
        "try: outbox_consumer.AsyncIdempotentConsumer\nexcept outbox_consumer.MissingDependency as error: print(error)"
    )

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert "pip install 'outbox-consumer[async]'" in done.stdout


def test_what_is_older_than_its_ttl_goes_while_a_consumer_consumes(database: ConsumingDatabase):
    # given a mark that nobody asked for in a week
    old, new = a_message(), a_message()
    database.consumer().consume(old, book)
    with database.engine.begin() as connection:
        table = consumed_events(MetaData(), TableNames(), database.engine.dialect.name)
        connection.execute(update(table).values(consumed_at=wall_time_plus(-8 * 86_400.0)))

    # when a consumer as people build it meets its first message
    consumer = database.consumer(clean_up={"enabled": True})
    consumer.consume(new, book)
    if database.is_async:  # its loop must turn
        consumer.run(lambda: asyncio.sleep(0.5))

    # then the mark goes, and when the consumer is closed nothing of it is left
    eventually(lambda: len(database.marks()) == 1)
    consumer.run(consumer.consumer.close) if database.is_async else consumer.close()
    eventually(lambda: not [one for one in threading.enumerate() if one.name.startswith("outbox-clean")])
    assert consumer.consume(old, book)
    assert not consumer.consume(new, book)
