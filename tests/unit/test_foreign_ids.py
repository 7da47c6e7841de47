"""Ids for events of producers that set no outbox_event_id: what a hook may return, and what becomes of it."""

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbox_consumer import Delivery, Incoming, MalformedEventId, MissingEventId, id_from_headers, identify
from outbox_consumer.foreign import checked_id_from, derived_id
from outbox_publisher import PublisherSettings
from outbox_publisher.prepare import id_of
from tests import client_messages as clients

EVENT_ID = UUID("0190f0f0-0000-7000-8000-000000000001")
CLOUD_EVENT = [("ce_source", b"/shop"), ("ce_id", b"42"), ("ce_type", b"com.shop.order")]


def test_the_hook_sees_any_clients_message_by_the_same_names():
    seen = []

    def id_from(message: Delivery) -> UUID:
        seen.append((message.headers["ce_id"], message.key, message.body, message.topic, message.message_id))
        return EVENT_ID

    for build in (clients.aiokafka_record, clients.pika_callback, clients.pubsub_message):
        assert identify(build(CLOUD_EVENT), id_from).event_id == EVENT_ID

    assert seen == [
        ("42", "order-7", clients.BODY, "orders", None),
        ("42", None, clients.BODY, "orders", clients.MESSAGE_ID),
        ("42", "order-7", clients.BODY, None, clients.MESSAGE_ID),
    ]


def test_a_message_with_an_id_of_the_contract_is_not_asked_about():
    def never(message: Delivery) -> str:
        raise AssertionError

    assert identify({"outbox_event_id": str(EVENT_ID), "ce_id": "42"}, never).event_id == EVENT_ID
    with pytest.raises(MalformedEventId, match="36 characters"):
        identify({"outbox_event_id": "42"}, never)


def test_what_was_derived_stays_with_the_incoming():
    incoming = Incoming.of(clients.aiokafka_record(CLOUD_EVENT), id_from_headers("ce_source", "ce_id"))

    assert identify(incoming).event_id == incoming.id
    assert Incoming.of(incoming) is incoming


def test_text_becomes_this_id_for_ever():
    """Rows that are marked with it depend on the formula."""
    assert derived_id("42", None) == UUID("952ba1b7-d55e-5843-9ad6-110fa80ecafe")
    assert derived_id("42", "order-created") == UUID("972672be-3e16-5829-a00a-21838b48a8e7")
    assert identify(dict(CLOUD_EVENT), id_from_headers("ce_source", "ce_id")).event_id == UUID(
        "2612669c-2e4b-5507-a0bf-c603e9b9e7b8"
    )


def test_types_keep_equal_texts_apart():
    types = [None, "", "order-created", "order-created ", "Order-Created"]

    assert len({derived_id("42", event_type) for event_type in types}) == len(types)


def test_a_consumer_cannot_take_an_idempotency_key_of_a_publisher_for_its_own():
    settings = PublisherSettings(name="shop")

    assert derived_id("42", "order-created") != id_of("42", "order-created", settings)


@given(
    st.tuples(st.none() | st.text(), st.text(st.characters())),
    st.tuples(st.none() | st.text(), st.text(st.characters())),
)
def test_different_pairs_of_type_and_text_are_different_ids(one, other):
    ids = []
    for event_type, text in (one, other):
        try:
            ids.append(derived_id(text, event_type))
        except MalformedEventId:
            return

    assert (ids[0] == ids[1]) == (one == other)


def test_headers_cannot_be_divided_differently():
    """A producer that chooses its source and ids freely must not be able to name another's event."""
    hook = id_from_headers("a", "b")
    pairs = [("x", "y,z"), ("x,y", "z"), ("x\x00y", "z"), ("x", "y\x00z"), ('x","y', "z"), ("x", 'y","z')]

    assert len({identify({"a": a, "b": b}, hook).event_id for a, b in pairs}) == len(pairs)


def test_both_cases_of_a_uuid_are_one_id_and_so_are_text_and_bytes():
    hook = id_from_headers("x-id")
    spelled = [str(EVENT_ID), str(EVENT_ID).upper(), str(EVENT_ID).encode(), EVENT_ID]

    assert len({identify({"x-id": value}, hook) for value in spelled}) == 1


def test_numbers_of_amqp_are_their_text():
    hook = id_from_headers("x-id")

    assert identify({"x-id": 42}, hook) == identify({"x-id": "42"}, hook)


@pytest.mark.parametrize("text", ["ü", "\ud800", "\x00", "a b", "x" * 1_000_000, " 42"])
def test_any_other_text_is_an_id(text):
    assert derived_id(text, None).version == 5
    assert derived_id(text, None) != derived_id("42", None)


@pytest.mark.parametrize("text", ["", "  ", "None", "null", "undefined", "NULL", "\t\n"])
def test_what_a_variable_without_a_value_turns_into_is_refused(text):
    """`f"{headers.get('x-id')}"` is "None" for every message without the header: all of them would be one event."""
    with pytest.raises(MalformedEventId, match="count as one"):
        identify({"tenant": "acme"}, lambda message: text)
    with pytest.raises(MalformedEventId, match="count as one"):
        identify({"x-id": text, "x-source": "shop"}, id_from_headers("x-source", "x-id"))


def test_the_uuid_of_zeros_is_refused():
    with pytest.raises(MalformedEventId, match="count as one"):
        identify({"tenant": "acme"}, lambda message: UUID(int=0))


async def later(message):
    return "42"


@pytest.mark.parametrize("found", [42, b"42", 1.5, ["42"], object(), True, later])
def test_other_answers_are_refused(found):
    answer = found if found is not later else later(None)

    with pytest.raises(MalformedEventId, match="return a UUID, text, or None"):
        identify({"tenant": "acme"}, lambda message: answer)


@pytest.mark.parametrize("value", [b"\xff", {"a": 1}, [1], True, 1.5])
def test_a_header_that_is_no_text_is_no_id(value):
    """Decoded somehow, two of them could become the same text."""
    with pytest.raises(MalformedEventId, match="the header 'x-id' is a"):
        identify({"x-id": value}, id_from_headers("x-id"))


@pytest.mark.parametrize(
    "hook", [lambda message: None, id_from_headers("ce_source", "other"), id_from_headers("other")]
)
def test_a_hook_that_finds_nothing_leaves_the_message_without_an_id(hook):
    with pytest.raises(MissingEventId, match=r"no outbox_event_id header, and id_from found no other"):
        identify(clients.aiokafka_record(CLOUD_EVENT), hook)


def test_the_usual_code_of_a_hook_fails_in_the_usual_way():
    with pytest.raises(MissingEventId, match="KeyError") as missing:
        identify({"tenant": "acme"}, lambda message: message.headers["x-id"])
    with pytest.raises(MalformedEventId, match="ValueError") as malformed:
        identify({"x-id": "secret"}, lambda message: UUID(message.headers["x-id"]))
    with pytest.raises(MalformedEventId, match="JSONDecodeError"):
        identify({"headers": {}, "body": b"secret"}, lambda message: json.loads(message.body)["id"])

    assert isinstance(missing.value.__cause__, KeyError)
    assert "secret" not in str(malformed.value)


def test_a_mistake_in_a_hook_comes_out_as_it_is():
    with pytest.raises(AttributeError, match="heders"):
        identify({"tenant": "acme"}, lambda message: message.heders)


@pytest.mark.parametrize(
    ("id_from", "said"),
    [
        ("x-id", "write id_from=id_from_headers('x-id')"),
        (7, "is a function"),
        (later, "cannot be async"),
        (SimpleNamespace(), "is a function"),
    ],
)
def test_what_can_be_no_hook_is_refused_before_the_first_message(id_from, said):
    with pytest.raises(TypeError) as raised:
        checked_id_from(id_from)

    assert said in str(raised.value)


def test_hooks_pass():
    hook = id_from_headers("x-id")

    assert checked_id_from(hook) is hook
    assert checked_id_from(None) is None


@pytest.mark.parametrize("names", [(), ("",), (7,), (["a", "b"],)])
def test_names_of_headers_are_needed(names):
    with pytest.raises(TypeError, match="takes names of headers"):
        id_from_headers(*names)


PAGE = Path(__file__).parents[2] / "docs/how-to/foreign-events.md"


def test_the_hooks_of_the_guide_find_what_it_says():
    hooks: list[Any] = []
    given = {
        "IdempotentConsumer": lambda sessions, name, id_from: hooks.append(checked_id_from(id_from)),
        "sessions": None,
    }

    for code in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL):
        exec(code, given)

    cloud_events, by_topic = hooks
    assert identify(dict(CLOUD_EVENT), cloud_events) == identify(clients.aiokafka_record(CLOUD_EVENT), cloud_events)
    payment = {"topic": "payments", "headers": {"x-event-id": str(EVENT_ID)}}
    movement = {"topic": "stock", "headers": {}, "body": b'{"movement": 7}'}
    assert identify(payment, by_topic).event_id == EVENT_ID
    assert identify(movement, by_topic).event_id == derived_id("stock:7", None)
    for nothing in ({"topic": "payments", "headers": {}}, {"topic": "other", "headers": {}}):
        with pytest.raises(MissingEventId):
            identify(nothing, by_topic)
