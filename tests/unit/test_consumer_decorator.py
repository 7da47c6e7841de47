"""`@consumer.idempotent`: the client calls it with the message, the function gets a session beside it."""

import inspect
import typing
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session
from sqlalchemy.pool import StaticPool

from outbox_consumer import IdempotentConsumer, MissingEventId
from outbox_consumer.schema import consumer_tables
from outbox_shared.creation import create_missing
from outbox_shared.ids import new_event_id
from outbox_shared.sqlite import configure_sqlite
from outbox_shared.tables import TableNames


def a_message() -> dict[str, str]:
    return {"outbox_event_id": str(new_event_id())}


@pytest.fixture
def consumer() -> Iterator[IdempotentConsumer]:
    engine = configure_sqlite(create_engine("sqlite://", poolclass=StaticPool))
    create_missing(engine, consumer_tables(TableNames(), "sqlite"))
    yield IdempotentConsumer(engine, name="billing")
    engine.dispose()


def test_it_returns_the_result_and_none_for_a_duplicate(consumer: IdempotentConsumer):
    @consumer.idempotent
    def on_order(session, message):
        return session.execute(text("SELECT 7")).scalar_one()

    message = a_message()

    assert on_order(message) == 7
    assert on_order(message) is None
    assert on_order(message=a_message()) == 7


def test_other_names_are_told(consumer: IdempotentConsumer):
    @consumer.idempotent(session="db", message="record")
    def on_order(topic, record, db):
        return topic, record, isinstance(db, Session)

    message = a_message()

    assert on_order("orders", message) == ("orders", message, True)
    assert on_order("orders", record=message) is None


def test_the_empty_call_is_the_plain_form(consumer: IdempotentConsumer):
    @consumer.idempotent()
    def on_order(session, message):
        return "ran"

    assert on_order(a_message()) == "ran"


def test_the_message_is_found_among_a_clients_arguments(consumer: IdempotentConsumer):
    @consumer.idempotent
    def on_delivery(session, channel, method, properties, body):
        return channel, body

    properties = SimpleNamespace(headers=a_message())

    assert on_delivery("channel", SimpleNamespace(), properties, b"{}") == ("channel", b"{}")
    assert on_delivery("channel", SimpleNamespace(), properties, b"{}") is None


def test_the_message_is_found_in_star_args(consumer: IdempotentConsumer):
    @consumer.idempotent
    def on_any(session, *args, **kwargs):
        return args, kwargs

    message, other = a_message(), a_message()

    assert on_any(1, message, extra=2) == ((1, message), {"extra": 2})
    assert on_any(record=other) == ((), {"record": other})
    assert on_any(record=other) is None


def test_it_works_on_methods(consumer: IdempotentConsumer):
    class Billing:
        def __init__(self) -> None:
            self.charged: list[object] = []

        @consumer.idempotent
        def on_order(self, session, message):
            self.charged.append(message)
            return self

        @staticmethod
        @consumer.idempotent
        def by_static(session, message):
            return "static"

        @classmethod
        @consumer.idempotent
        def by_class(cls, session, message):
            return cls

    billing, message = Billing(), a_message()

    assert billing.on_order(message) is billing
    assert billing.on_order(message) is None
    assert billing.charged == [message]
    assert Billing.by_static(a_message()) == "static"
    assert Billing.by_class(a_message()) is Billing
    assert list(inspect.signature(billing.on_order).parameters) == ["message"]


def test_the_session_is_hidden_from_frameworks(consumer: IdempotentConsumer):
    @consumer.idempotent
    def on_order(session: Session, message: dict[str, str], *, retries: int = 3) -> str:
        """Charges."""
        return "ran"

    assert str(inspect.signature(on_order)) == "(message: dict[str, str], *, retries: int = 3) -> str"
    assert "session" not in typing.get_type_hints(on_order)
    assert on_order.__name__ == "on_order"
    assert on_order.__doc__ == "Charges."


def test_the_function_itself_keeps_its_annotations(consumer: IdempotentConsumer):
    def on_order(session: Session, message: object) -> None: ...

    consumer.idempotent(on_order)

    assert "session" in on_order.__annotations__


def test_defaults_and_keywords_arrive(consumer: IdempotentConsumer):
    @consumer.idempotent
    def on_order(message, currency="EUR", session=None, *, dry=False):
        return currency, dry, session is not None

    assert on_order(a_message()) == ("EUR", False, True)
    assert on_order(a_message(), "CHF", dry=True) == ("CHF", True, True)


def test_the_callers_mistakes_are_type_errors_before_anything_runs(consumer: IdempotentConsumer):
    ran = []

    @consumer.idempotent
    def on_order(session, message):
        ran.append(message)

    with pytest.raises(TypeError, match="unexpected keyword argument 'session'"):
        on_order(a_message(), session="mine")
    with pytest.raises(TypeError, match="too many positional"):
        on_order("session", a_message())
    with pytest.raises(MissingEventId):
        on_order({"other": "header"})
    assert ran == []


def test_a_call_without_any_message_says_how_to_name_it(consumer: IdempotentConsumer):
    @consumer.idempotent
    def on_order(session, number):
        pass

    with pytest.raises(TypeError, match=r'idempotent\(message="record"\)'):
        on_order(7)


def wrong_name(db, message): ...
def star(*session): ...
async def later(session, message): ...
def generator(session, message):
    yield


@pytest.mark.parametrize(
    ("function", "names", "why"),
    [
        (wrong_name, {}, 'session="db"'),
        (star, {}, "no parameter 'session'"),
        (wrong_name, {"session": "db", "message": "record"}, "no parameter 'record'"),
        (later, {}, "is async"),
        (generator, {}, "generator function"),
        (dict, {}, "is a class"),
        (staticmethod(wrong_name), {}, "@staticmethod goes above"),
        (classmethod(wrong_name), {}, "@classmethod goes above"),
    ],
)
def test_a_signature_that_cannot_work_is_refused_at_import(consumer: IdempotentConsumer, function: Any, names, why):
    with pytest.raises(TypeError) as raised:
        consumer.idempotent(**names)(function)

    assert why in str(raised.value)


def test_a_promise_returned_by_the_function_consumes_nothing(consumer: IdempotentConsumer):
    promise = True

    @consumer.idempotent
    def on_order(session, message):
        return (n for n in range(3)) if promise else "ran"

    message = a_message()
    with pytest.raises(TypeError, match="nothing was consumed"):
        on_order(message)

    promise = False
    assert on_order(message) == "ran"
