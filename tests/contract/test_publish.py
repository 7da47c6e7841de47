"""publish() on every database: the event is there if and only if the caller's change is."""

import json
from datetime import UTC, datetime

import pytest
from sqlalchemy import Column, Integer, MetaData, Table, create_engine, func, insert, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, scoped_session, sessionmaker

from outbox_publisher import Outbox
from outbox_shared.errors import (
    InvalidHeader,
    InvalidKey,
    MissingTable,
    NoActiveTransaction,
    OutboxError,
    PayloadTooLarge,
    PublishError,
    SerializationError,
    UnknownEventType,
)
from outbox_shared.ids import lane_of
from tests.fixtures import OutboxDatabase

ORDERS = Table("orders", MetaData(), Column("id", Integer, primary_key=True))


class Ordered:
    """A business table beside the outbox, and a way to count both."""

    def __init__(self, database: OutboxDatabase) -> None:
        self.engine, self.database = database.engine, database
        self.outbox = Outbox(database.settings())
        ORDERS.create(self.engine)

    def counts(self) -> tuple[int, int]:
        with self.engine.connect() as connection:
            orders = connection.execute(select(func.count()).select_from(ORDERS)).scalar_one()
        return orders, len(self.database.events())

    def order(self, transaction, number: int = 1) -> None:
        transaction.execute(insert(ORDERS).values(id=number))
        self.outbox.publish(transaction, "order-created", {"id": number}, key=number)


@pytest.fixture
def shop(outbox_database):
    return Ordered(outbox_database)


def test_commit_stores_the_change_and_the_event(shop):
    with Session(shop.engine) as session, session.begin():
        shop.order(session)

    assert shop.counts() == (1, 1)


def test_rollback_stores_neither(shop):
    with Session(shop.engine) as session, pytest.raises(ZeroDivisionError), session.begin():
        shop.order(session)
        _ = 1 / 0

    assert shop.counts() == (0, 0)


def test_a_savepoint_that_is_rolled_back_takes_its_event_along(shop):
    with Session(shop.engine) as session, session.begin():
        with session.begin_nested() as savepoint:
            shop.order(session, 1)
            savepoint.rollback()
        shop.order(session, 2)

    assert shop.counts() == (1, 1)
    assert shop.database.events()[0].key == "2"


def test_a_savepoint_that_is_released_still_depends_on_the_outer_transaction(shop):
    with Session(shop.engine) as session, pytest.raises(ZeroDivisionError), session.begin():
        with session.begin_nested():
            shop.order(session)
        _ = 1 / 0

    assert shop.counts() == (0, 0)


def test_a_connection_and_a_scoped_session_will_do(shop):
    with shop.engine.begin() as connection:
        shop.order(connection, 1)
    sessions = scoped_session(sessionmaker(shop.engine))
    with sessions.begin():
        shop.order(sessions, 2)
    sessions.remove()

    assert shop.counts() == (2, 2)


def test_publish_never_flushes_or_commits(shop):
    class Base(DeclarativeBase):
        pass

    class Unflushed(Base):
        __tablename__ = "no_such_table"
        id: Mapped[int] = mapped_column(primary_key=True)

    with Session(shop.engine) as session:
        session.begin()
        session.add(pending := Unflushed(id=1))
        shop.outbox.publish(session, "order-created", {}, key=1)

        assert pending in session.new
        assert session.in_transaction()
        session.rollback()

    assert shop.counts() == (0, 0)


def test_every_column_is_stored_as_it_was_given(outbox_database):
    outbox = Outbox(outbox_database.settings(events={"order-created": {"topic": "by-type"}}))
    occurred = datetime(2026, 1, 31, 12, 30, 0, 250_000, tzinfo=UTC)
    with Session(outbox_database.engine) as session, session.begin():
        published = outbox.publish(
            session,
            "order-created",
            {"total": 7},
            aggregate_type="Order",
            aggregate_id=42,
            headers={"tenant": "acme"},
            correlation_id="req-1",
            version=2,
            occurred_at=occurred,
            content_type="application/vnd.order+json",
        )

    (row,) = outbox_database.events()
    assert published.stored is True
    assert row.id == published.id
    assert row.id.version == 7
    assert (row.status, row.attempts, row.lost_claims, row.replays) == ("PENDING", 0, 0, 0)
    assert (row.maybe_sent, row.failed) == (False, False)
    assert (row.event_type, row.topic) == ("order-created", "by-type")
    assert (row.key, row.lane) == ("42", lane_of("42", row.id))  # the key defaults to the aggregate's id
    assert (row.aggregate_type, row.aggregate_id) == ("Order", "42")
    assert (row.correlation_id, row.version, row.occurred_at) == ("req-1", 2, occurred)
    assert json.loads(row.headers) == {"tenant": "acme"}
    assert (row.content_type, row.payload) == ("application/vnd.order+json", b'{"total":7}')
    assert row.created_at == row.next_retry_at
    assert abs((row.created_at - datetime.now(UTC)).total_seconds()) < 60
    assert row.processed_at is row.claim_token is row.last_error is None


def test_a_topic_given_at_publish_wins_over_the_settings(outbox_database):
    outbox_database.publish(topic="elsewhere")
    outbox_database.publish()

    assert [row.topic for row in outbox_database.events()] == ["elsewhere", "orders"]


@pytest.mark.parametrize("of", ["session", "connection"])
def test_without_a_transaction_it_is_refused_and_shows_what_to_write(outbox_database, of):
    outbox = Outbox(outbox_database.settings())
    with Session(outbox_database.engine) as session, outbox_database.engine.connect() as connection:
        transaction = {"session": session, "connection": connection}[of]

        with pytest.raises(NoActiveTransaction, match=r"session\.begin\(\)"):
            outbox.publish(transaction, "order-created", {})

    assert outbox_database.events() == []


def test_an_autocommit_engine_is_refused(outbox_database):
    engine = create_engine(outbox_database.url, isolation_level="AUTOCOMMIT")
    outbox = Outbox(outbox_database.settings())

    with Session(engine) as session, session.begin(), pytest.raises(NoActiveTransaction, match="AUTOCOMMIT"):
        outbox.publish(session, "order-created", {})

    assert outbox_database.events() == []
    engine.dispose()


def test_a_session_over_two_databases_is_refused(outbox_database):
    other = create_engine("sqlite://")
    session = Session(binds={Ordered: other, OutboxDatabase: outbox_database.engine})
    outbox = Outbox(outbox_database.settings())

    with session, session.begin(), pytest.raises(NoActiveTransaction, match="two databases"):
        outbox.publish(session, "order-created", {})

    other.dispose()


def test_an_async_session_is_told_the_async_class(outbox_database):
    with pytest.raises(TypeError, match="AsyncSession is async: use AsyncOutbox"):
        Outbox(outbox_database.settings()).publish(AsyncSession(), "order-created", {})


def test_something_else_as_transaction_is_told_the_call(outbox_database):
    with pytest.raises(TypeError, match=r"first argument is the transaction.*not str: outbox\.publish\(session"):
        Outbox(outbox_database.settings()).publish("order-created", {}, {})


@pytest.mark.parametrize(
    ("error", "arguments"),
    [
        (SerializationError, {"payload": float("nan")}),
        (PayloadTooLarge, {"payload": b"x" * 1_000_001}),
        (InvalidKey, {"key": ""}),
        (InvalidKey, {"aggregate_id": "None"}),
        (InvalidHeader, {"headers": {"outbox_event_id": "mine"}}),
        (PublishError, {"event_type": ""}),
        (PublishError, {"event_type": "nul\x00"}),
        (PublishError, {"topic": "x" * 256}),
        (PublishError, {"correlation_id": "\ud800"}),
        (PublishError, {"version": -1}),
        (PublishError, {"version": True}),
        (PublishError, {"occurred_at": datetime(2026, 1, 1)}),  # noqa: DTZ001 - the mistake under test
    ],
)
def test_a_bad_event_is_refused_before_any_sql_and_the_transaction_goes_on(shop, error, arguments):
    with Session(shop.engine) as session, session.begin():
        with pytest.raises(error):
            shop.outbox.publish(session, **{"event_type": "order-created", "payload": {}, **arguments})
        shop.order(session)

    assert shop.counts() == (1, 1)


def test_an_unknown_type_names_the_three_ways_out(outbox_database):
    outbox = Outbox(outbox_database.settings(defaults={}))

    with (
        Session(outbox_database.engine) as session,
        session.begin(),
        pytest.raises(UnknownEventType, match=r"topic=.*events\.order-created\.topic.*defaults\.topic"),
    ):
        outbox.publish(session, "order-created", {})


def test_a_missing_table_names_init_db(outbox_database):
    outbox = Outbox(outbox_database.settings(tables={"prefix": "other_"}))

    with (
        Session(outbox_database.engine) as session,
        session.begin(),
        pytest.raises(MissingTable, match="other_events: run `outbox-publisher init-db`"),
    ):
        outbox.publish(session, "order-created", {})


def test_every_refusal_is_an_outbox_error(outbox_database):
    with pytest.raises(OutboxError):
        Outbox(outbox_database.settings()).publish(Session(outbox_database.engine), "order-created", {})
