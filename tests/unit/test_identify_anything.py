"""Whatever arrives, the answer is an identity or one of two errors, both bounded: nothing else is raised, nothing hangs."""

from decimal import Decimal
from types import SimpleNamespace
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from outbox_consumer import Identity, Incoming, MalformedEventId, MissingEventId, id_from_headers, identify
from outbox_consumer.identify import find_message
from outbox_shared.headers import RESERVED

EVENT_ID = UUID("0190f0f0-0000-7000-8000-000000000001")

texts = st.text(st.characters(), max_size=60)  # lone surrogates among them
ids = st.sampled_from(
    [str(EVENT_ID), str(EVENT_ID).encode(), EVENT_ID, EVENT_ID.hex, f"{{{EVENT_ID}}}", str(UUID(int=0))]
)
scalars = (
    st.none() | st.booleans() | st.integers() | st.floats() | texts | st.binary(max_size=60) | st.datetimes()
    | st.uuids() | ids | st.builds(lambda: 10**5000) | st.just(Decimal("NaN")) | st.just(float("nan"))
)  # fmt: skip
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3))
names = st.sampled_from(sorted(RESERVED)) | texts
odd_names = names | st.binary(max_size=10) | st.integers() | st.none()
pairs = st.lists(st.tuples(odd_names, values) | values, max_size=8)
identified = st.dictionaries(names, values, max_size=8).map(
    lambda headers: {**headers, "outbox_event_id": str(EVENT_ID)}
)
containers = identified | st.dictionaries(odd_names, values, max_size=8) | pairs | pairs.map(tuple) | values
objects = st.builds(
    lambda fields: SimpleNamespace(**fields),
    st.dictionaries(
        st.sampled_from(
            ["headers", "attributes", "data", "message", "request", "called_directly", "raw_message", "body", "error",
             "delivery_info", "properties", "key", "value", "topic", "offset", "content_type"]
        ),
        containers | containers.map(lambda found: lambda: found),
    ),
)  # fmt: skip
carriers = st.tuples(objects, identified).map(lambda both: SimpleNamespace(**{**vars(both[0]), "headers": both[1]}))
messages = (
    carriers
    | containers
    | objects
    | st.tuples(objects, objects, values)
    | st.tuples(objects, values)
    | st.lists(objects)
)


def answer(ask, *arguments):
    """What it returns, or None for one of the two errors."""
    try:
        return ask(*arguments)
    except (MissingEventId, MalformedEventId) as error:
        text = str(error)
    assert len(text) < 1500
    return None


@given(messages)
def test_any_message_is_identified_or_refused(message):
    found = answer(identify, message)

    assert found is None or (isinstance(found, Identity) and isinstance(found.event_id, UUID))


@given(messages)
def test_incoming_agrees_with_identify(message):
    incoming = answer(Incoming.of, message)

    if incoming is None:
        assert answer(identify, message) is None
    else:
        assert incoming.identity == identify(message) == identify(incoming)


@given(identified)
def test_any_headers_with_an_id_make_an_incoming(headers):
    incoming = Incoming.of({"headers": headers, "body": b"{}"})

    assert (incoming.id, incoming.body) == (EVENT_ID, b"{}")
    assert incoming.type is None or isinstance(incoming.type, str)
    assert incoming.version is None or incoming.version >= 0
    assert incoming.occurred_at is None or incoming.occurred_at.utcoffset() is not None


@given(messages)
def test_a_hook_changes_nothing_about_that(message):
    found = answer(identify, message, id_from_headers("outbox_aggregate_id"))

    assert found is None or isinstance(found.event_id, UUID)


@given(st.lists(messages, max_size=4))
def test_any_arguments_can_be_looked_at(arguments):
    find_message(arguments)
