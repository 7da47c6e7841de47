"""What publish() refuses, by name and through every driver: before any SQL, and the caller's transaction goes on."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import pytest

from outbox_publisher import EventDraft
from outbox_shared.errors import (
    ConfigurationError,
    InvalidHeader,
    InvalidKey,
    PayloadTooLarge,
    PublishError,
    SerializationError,
    UnknownEventType,
)
from tests.borders import (
    INFINITY,
    NAN,
    NOW,
    SURROGATE,
    Line,
    Name,
    Order,
    OtherDatetime,
    Size,
    Sum,
    cyclic,
    nested,
    statements,
)


@dataclass(frozen=True)
class Refusal:
    what: str
    error: type[Exception]
    says: str
    """A part of the message: what to write instead."""
    payload: Any = field(default_factory=dict)
    event_type: Any = "order-created"
    options: dict[str, Any] = field(default_factory=dict)


def _with(what: str, error: type[Exception], says: str, **options: Any) -> Refusal:
    return Refusal(what, error, says, options=options)


def _payload(what: str, payload: Any, says: str = "use None or text for it") -> Refusal:
    return Refusal(f"payload: {what}", SerializationError, says, payload)


REFUSALS = [
    _payload("NaN", NAN),
    _payload("Infinity", INFINITY),
    _payload("-Infinity, nested", {"a": [1, {"b": -INFINITY}]}),
    _payload("NaN beside a number of 5,000 digits", [10**5000, NAN]),
    _payload("NaN in a dataclass", Line(NAN)),
    _payload("NaN in a list in a dataclass", {"lines": [Line([NAN])]}),
    _payload("NaN in a model", Order(total=NAN)),
    _payload("Infinity in a list in a model", Order(prices=[1.0, INFINITY])),
    _payload("NaN in a dict in a model", Order(by_name={"a": NAN})),
    _payload("NaN in a model's field of any type", Order(anything=[(NAN,)])),
    _payload("NaN in a dataclass in a model in a list", [Order(anything=Line(NAN))]),
    _payload("NaN that a model computes", Sum(parts=[INFINITY])),
    _payload("lone surrogate", {"name": SURROGATE}, "cannot become JSON"),
    _payload("lone surrogate as name", {SURROGATE: 1}, "cannot become JSON"),
    _payload("lone surrogate in a model", Order(anything=SURROGATE), "cannot become JSON"),
    _payload("bytes that are no text, inside", {"raw": b"\xff"}, "or bytes that you encoded yourself"),
    _payload("cyclic", cyclic(), "cannot become JSON"),
    _payload("300 deep", nested(300), "cannot become JSON"),
    _payload("an object", object(), "Pass a pydantic model, dataclass, dict"),
    _payload("a function inside", {"f": len}, "Pass a pydantic model, dataclass, dict"),
    Refusal("payload: over the limit", PayloadTooLarge, "publish a reference to it", "x" * 1_000_000),
    Refusal("payload: bytes over the limit", PayloadTooLarge, "publish a reference to it", b"x" * 1_000_001),
    # keys
    *(
        _with(f"{name}: a line break", PublishError, "holds a line break: it is one line", **{name: "a\r\nb: c"})
        for name in ("topic", "aggregate_type", "correlation_id", "content_type")
    ),
    _with("key: empty", InvalidKey, r"session\.flush\(\) before publish", key=""),
    _with("key: None as text", InvalidKey, r"session\.flush\(\) before publish", key="None"),
    _with("key: too long", InvalidKey, "at most 512 fit: shorten it", key="x" * 513),
    _with("key: a number that is too long", InvalidKey, "use a shorter one", key=10**5000),
    _with("key: NUL", InvalidKey, r"remove it with replace\(", key="a\x00b"),
    _with("key: lone surrogate", InvalidKey, "errors='replace'", key=SURROGATE),
    _with("key: bytes", InvalidKey, r"write value\.decode\(\)", key=b"7"),
    _with("key: a float", InvalidKey, r"takes str, int or UUID, not float: write str\(", key=7.0),
    _with("key: a bool", InvalidKey, "takes str, int or UUID, not bool", key=True),
    _with("aggregate_id: None as text", InvalidKey, "aggregate_id is 'None'", aggregate_id="None"),
    _with("aggregate_id: NUL", InvalidKey, r"aggregate_id .* remove it", aggregate_id="\x00"),
    _with("aggregate_id: lone surrogate", InvalidKey, "errors='replace'", aggregate_id=SURROGATE),
    # headers
    _with("header: reserved", InvalidHeader, "choose another name", headers={"Outbox_Event_Id": "1"}),
    _with("header: reserved for traces", InvalidHeader, "choose another name", headers={"traceparent": "1"}),
    _with("header: no name", InvalidHeader, "use up to 128 ASCII letters", headers={"": "x"}),
    _with("header: name too long", InvalidHeader, "use up to 128 ASCII letters", headers={"x" * 129: "x"}),
    _with("header: name with line break", InvalidHeader, "use up to 128 ASCII letters", headers={"a\r\nb": "x"}),
    _with("header: name with NUL", InvalidHeader, "use up to 128 ASCII letters", headers={"a\x00": "x"}),
    _with("header: name not ASCII", InvalidHeader, "use up to 128 ASCII letters", headers={"größe": "x"}),
    _with("header: name no text", InvalidHeader, "use up to 128 ASCII letters", headers={1: "x"}),
    _with("header: value too long", InvalidHeader, "send it in the payload", headers={"a": "x" * 32_769}),
    _with(
        "header: sum too long", InvalidHeader, "send the data in the payload", headers=dict.fromkeys("ab", "ü" * 8_200)
    ),
    _with("header: line break", InvalidHeader, "line break: remove it", headers={"a": "x\r\ny: z"}),
    _with("header: NUL", InvalidHeader, r"remove it with replace\(", headers={"a": "\x00"}),
    _with("header: lone surrogate", InvalidHeader, "errors='replace'", headers={"a": SURROGATE}),
    _with("header: a number", InvalidHeader, r"write str\(", headers={"a": 1}),
    _with("header: bytes", InvalidHeader, r"write value\.decode\(\)", headers={"a": b"1"}),
    _with("header: None", InvalidHeader, "must be text, not NoneType", headers={"a": None}),
    _with("headers: pairs", InvalidHeader, "takes a dict, not list", headers=[("a", "b")]),
    _with("headers: text", InvalidHeader, "takes a dict, not str", headers=""),
    # names
    Refusal("event_type: empty", PublishError, "at least one character", event_type=""),
    Refusal("event_type: None", PublishError, "must be text, not NoneType", event_type=None),
    Refusal("event_type: trailing blank", PublishError, "write 'order-created', not", event_type="order-created "),
    Refusal("event_type: NUL", PublishError, r"remove it with replace\(", event_type="a\x00b"),
    Refusal("event_type: lone surrogate", PublishError, "errors='replace'", event_type=SURROGATE),
    Refusal("event_type: too long", PublishError, "at most 200 fit: shorten it", event_type="x" * 201),
    _with("topic: empty", PublishError, "at least one character", topic=""),
    _with("topic: trailing blank", PublishError, "write 'orders', not 'orders '", topic="orders "),
    _with("topic: leading line break", PublishError, "write 'orders', not", topic="\norders"),
    _with("topic: NUL", PublishError, r"remove it with replace\(", topic="a\x00b"),
    _with("topic: lone surrogate", PublishError, "errors='replace'", topic=SURROGATE),
    _with("topic: too long", PublishError, "at most 255 fit: shorten it", topic="x" * 256),
    *(
        refusal
        for name in ("aggregate_type", "correlation_id", "content_type")
        for refusal in (
            _with(f"{name}: empty", PublishError, f"{name} is empty: give it at least one", **{name: ""}),
            _with(f"{name}: NUL", PublishError, rf"{name} .* remove it with replace\(", **{name: "a\x00b"}),
            _with(f"{name}: lone surrogate", PublishError, f"{name} .* errors='replace'", **{name: SURROGATE}),
            _with(f"{name}: too long", PublishError, f"{name} .* at most 255 fit: shorten", **{name: "x" * 256}),
            _with(f"{name}: a number", PublishError, rf"{name} must be text, not int: write str\(", **{name: 7}),
        )
    ),
    # ids
    _with("event_id: empty", PublishError, "at least one character", event_id=""),
    _with("event_id: NUL", PublishError, r"remove it with replace\(", event_id="a\x00b"),
    _with("event_id: lone surrogate", PublishError, "errors='replace'", event_id=SURROGATE),
    _with("event_id: too long", PublishError, "at most 512 fit", event_id="x" * 513),
    _with("event_id: a number", PublishError, r"takes uuid\.UUID or text, not builtins\.int", event_id=7),
    # numbers and moments
    _with("version: negative", PublishError, "a whole number from 0 to 2147483647", version=-1),
    _with("version: too large", PublishError, "a whole number from 0 to 2147483647", version=2**31),
    _with("version: a float", PublishError, "a whole number from 0 to 2147483647", version=1.0),
    _with("version: a bool", PublishError, "a whole number from 0 to 2147483647", version=True),
    _with("version: text", PublishError, "write an int such as 2", version="2"),
    _with("occurred_at: naive", PublishError, r"write datetime\.now\(UTC\)", occurred_at=NOW.replace(tzinfo=None)),
    _with("occurred_at: a date", PublishError, r"write datetime\.now\(UTC\)", occurred_at=date(2026, 1, 1)),
    _with("occurred_at: text", PublishError, r"write datetime\.now\(UTC\)", occurred_at="2026-01-01T00:00:00Z"),
    _with("occurred_at: too early", PublishError, "between the years 1000 and 9999", occurred_at=NOW.replace(year=999)),
    _with("not_before: naive", PublishError, r"write datetime\.now\(UTC\)", not_before=NOW.replace(tzinfo=None)),
    _with("not_before: too late", PublishError, "between the years", not_before=datetime.max.replace(tzinfo=UTC)),
    _with("delay: negative", PublishError, "cannot be negative", delay=timedelta(seconds=-1)),
    _with("delay: no unit", PublishError, "with its unit, such as 500ms", delay=500),
    _with("delay: NaN", PublishError, "with its unit, such as 500ms", delay=NAN),
    _with("delay: no duration", PublishError, "with its unit, such as 500ms", delay="soon"),
    _with("delay: too long", PublishError, "longer than 3650 days", delay="3651d"),
    _with("delay: beyond all", PublishError, "longer than any", delay="9" * 400 + "d"),
    _with("delay and not_before", PublishError, "give one of them", delay="1s", not_before=NOW),
    # the call itself
    _with("option: misspelt", TypeError, "did you mean correlation_id", corelation_id="x"),
    _with("option: unknown", TypeError, "there are aggregate_id, ", colour="red"),
]


@contextmanager
def told_of(refusal: Refusal) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        error.add_note(f"while refusing {refusal.what}")
        raise


def test_what_cannot_be_stored_is_refused_before_any_sql_and_the_transaction_goes_on(shop):
    for number, refusal in enumerate(REFUSALS):
        with told_of(refusal):
            with shop.begin():
                # when something impossible is published
                with statements(shop) as sent, pytest.raises(refusal.error, match=refusal.says) as caught:
                    shop.publish(refusal.event_type, refusal.payload, **refusal.options)

                # then exactly that is said, the database has heard nothing of it
                assert type(caught.value) is refusal.error
                assert sent == []

                # and the same transaction goes on
                shop.take(number)
            assert shop.counts() == (number + 1, number + 1)


def test_a_batch_with_one_impossible_event_stores_none_of_it_and_the_transaction_goes_on(shop):
    refusals = [refusal for refusal in REFUSALS if refusal.error is not TypeError]
    for number, refusal in enumerate(refusals):
        wrong = EventDraft(refusal.event_type, refusal.payload, **refusal.options)
        with told_of(refusal):
            with shop.begin():
                with statements(shop) as sent, pytest.raises(refusal.error, match=refusal.says) as caught:
                    shop.publish_batch([EventDraft("a", 1), wrong, EventDraft("b", 2)])

                assert type(caught.value) is refusal.error
                assert caught.value.__notes__ == ["event number 1 of this batch, counted from 0"]
                assert sent == []
                shop.take(number)
            assert shop.counts() == (number + 1, number + 1)


def test_a_type_without_a_topic_is_refused_before_any_sql_and_the_transaction_goes_on(shop):
    shop.outbox = type(shop.outbox)(shop.database.settings(defaults={}))
    with shop.begin():
        says = (
            r"pass topic=…, or set outbox\.publisher\.events\.order-paid\.topic or outbox\.publisher\.defaults\.topic"
        )
        with statements(shop) as sent, pytest.raises(UnknownEventType, match=says):
            shop.publish("order-paid", {})

        assert sent == []
        shop.take(1, topic="orders")
    assert shop.counts() == (1, 1)


def test_text_as_id_without_a_name_is_refused_before_any_sql_and_the_transaction_goes_on(shop):
    shop.outbox = type(shop.outbox)(shop.database.settings(name=None))
    with shop.begin():
        with statements(shop) as sent, pytest.raises(ConfigurationError, match=r'PublisherSettings\(name="shop"'):
            shop.publish("order-paid", {}, event_id="7")

        assert sent == []
        shop.take(1)
    assert shop.counts() == (1, 1)


class TextSerializer:
    """The mistake that is made most often."""

    content_type = "application/json"

    def __call__(self, payload, about):
        return json.dumps(payload)


def test_a_serializer_that_returns_text_is_refused_before_any_sql_and_the_transaction_goes_on(shop):
    given, shop.outbox = shop.outbox, type(shop.outbox)(shop.settings, serializer=TextSerializer())
    with shop.begin():
        with (
            statements(shop) as sent,
            pytest.raises(SerializationError, match=r"returned str, not bytes.*\.encode\(\)"),
        ):
            shop.publish("order-paid", {})

        assert sent == []
        shop.outbox = given
        shop.take(1)
    assert shop.counts() == (1, 1)


def test_the_count_of_statements_would_see_one(shop):
    with shop.begin():
        shop.order(1)
        with statements(shop) as sent:
            shop.publish("order-created", {})

    assert len(sent) == (1 if getattr(shop, "engine", None) is not None else 0)


def test_values_of_subclasses_are_stored_as_what_they_are(shop):
    occurred = OtherDatetime(2026, 1, 31, 12, 30, 0, 250_000, tzinfo=timezone(timedelta(hours=2)))
    tomorrow = OtherDatetime.now(UTC).replace(microsecond=0) + timedelta(days=1)
    with shop.begin():
        shop.publish(Name.RED, Name.RED, key=Size.BIG, topic=Name.RED, headers={Name.RED: Name.RED}, version=Size.BIG,
                     correlation_id=Name.RED, occurred_at=occurred, not_before=tomorrow)  # fmt: skip

    (row,) = shop.database.events()
    assert (row.event_type, row.topic, row.key, row.version, row.correlation_id) == ("red", "red", "3", 3, "red")
    assert (row.payload, json.loads(row.headers)) == (b'"red"', {"red": "red"})
    assert row.occurred_at == NOW - timedelta(hours=2)
    assert row.next_retry_at == tomorrow
