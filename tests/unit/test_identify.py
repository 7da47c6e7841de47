"""Which event a message carries, whatever the client's message looks like."""

from collections.abc import Mapping
from datetime import UTC, datetime
from types import SimpleNamespace
from unittest.mock import MagicMock, Mock
from uuid import UUID

import pytest
from confluent_kafka import Producer

from outbox_consumer import Incoming, MalformedEventId, MissingEventId, identify
from outbox_consumer.identify import find_message
from outbox_publisher.demo.embedded_kafka import read_topic
from outbox_shared.ids import new_event_id

EVENT_ID = UUID("0190f0f0-0000-7000-8000-000000000001")
PAIRS = [("outbox_event_id", str(EVENT_ID).encode()), ("outbox_event_type", b"order-created")]


class KafkaMessage:
    """The shape of confluent_kafka.Message: everything is a method."""

    def __init__(self, headers, error=None):
        self._headers, self._error = headers, error

    def headers(self):
        return self._headers

    def error(self):
        return self._error


@pytest.mark.parametrize(
    "message",
    [
        KafkaMessage(PAIRS),
        dict(PAIRS),
        {"outbox_event_id": str(EVENT_ID), "outbox_event_type": "order-created"},
        {"outbox_event_id": EVENT_ID, "outbox_event_type": "order-created"},
        {name.encode(): value for name, value in PAIRS},
        PAIRS,
        tuple(PAIRS),
        [list(pair) for pair in PAIRS],
        {"headers": PAIRS, "body": b"{}"},
        {"headers": dict(PAIRS)},
        SimpleNamespace(headers=PAIRS),
        SimpleNamespace(headers=dict(PAIRS)),
        SimpleNamespace(headers=tuple(PAIRS)),
    ],
    ids=lambda message: type(message).__name__,
)
def test_an_event_is_found_in(message):
    found = identify(message)

    assert found.event_id == EVENT_ID
    assert found.event_type == "order-created"


def test_an_event_is_found_in_what_kafkas_client_delivers(mock_kafka_url):
    producer = Producer({"bootstrap.servers": mock_kafka_url})
    producer.produce("identify", b"{}", headers=PAIRS)
    producer.flush(10)
    (message,) = read_topic(mock_kafka_url, "identify")

    found = identify(message)

    assert (found.event_id, found.event_type) == (EVENT_ID, "order-created")


def test_the_last_of_repeated_headers_counts():
    twice = [("outbox_event_id", str(new_event_id()).encode()), *PAIRS]

    assert identify(KafkaMessage(twice)).event_id == EVENT_ID


def test_a_header_with_a_null_value_is_absent():
    assert identify({"outbox_event_id": str(EVENT_ID), "outbox_event_type": None}).event_type is None
    with pytest.raises(MissingEventId):
        identify([*PAIRS, ("outbox_event_id", None)])


@pytest.mark.parametrize("names", [(b"outbox_event_id", "outbox_event_id"), ("outbox_event_id", b"outbox_event_id")])
def test_a_name_in_bytes_is_the_same_name(names):
    pairs = list(zip(names, [str(new_event_id()), str(EVENT_ID)], strict=True))

    assert identify(pairs).event_id == EVENT_ID
    assert identify(dict(pairs)).event_id == EVENT_ID


@pytest.mark.parametrize("name", ["Outbox_Event_Id", "outbox-event-id", "OUTBOX-EVENT-ID"])
def test_names_count_as_they_are_spelled(name):
    """Brokers keep them as they are. A reader of several spellings would have to say which one counts where there are two."""
    with pytest.raises(MissingEventId, match=f"Names count as they are spelled, and {name} is another one"):
        identify({name: str(EVENT_ID)})


def test_a_plain_header_that_is_called_headers_is_a_header():
    assert identify({**dict(PAIRS), "headers": [("outbox_event_id", b"other")]}).event_id == EVENT_ID
    with pytest.raises(MissingEventId, match="its headers: headers"):
        identify({"headers": "text"})


def test_a_type_that_is_no_text_is_still_shown():
    assert identify([PAIRS[0], ("outbox_event_type", b"\xff")]).event_type == "\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (KafkaMessage(None), "its headers: none"),
        (KafkaMessage([]), "its headers: none"),
        ({}, "its headers: none"),
        (SimpleNamespace(headers=None), "its headers: none"),
        ({"content-type": "text", "id": "7"}, "its headers: content-type, id"),
        ({f"header-{n}": "" for n in range(1000)}, "… 992 more"),
        ({"anna@example.com": "", "tenant": "", "x" * 10_000_000: ""}, "its headers: tenant, … 2 more"),
    ],
)
def test_a_message_without_an_id_is_told_what_it_has(message, said):
    with pytest.raises(MissingEventId) as raised:
        identify(message)

    assert said in str(raised.value)
    assert "The producer must set outbox_event_id" in str(raised.value)
    assert len(str(raised.value)) < 500


def test_an_error_report_of_the_client_is_not_taken_for_a_message():
    with pytest.raises(MissingEventId, match=r"_PARTITION_EOF.*message\.error\(\)"):
        identify(KafkaMessage(None, error="_PARTITION_EOF"))


@pytest.mark.parametrize("error", [lambda: "x" * 10_000_000, lambda: 1 / 0])
def test_an_error_report_is_bounded_and_harmless(error):
    message = KafkaMessage(None)
    message.error = error

    with pytest.raises(MissingEventId) as raised:
        identify(message)

    assert len(str(raised.value)) < 500


def test_nothing_polled_is_told_apart():
    with pytest.raises(MissingEventId, match="poll"):
        identify(None)


@pytest.mark.parametrize(
    "message",
    [
        "text",
        b"{}",
        7,
        object(),
        [],
        [{"total": 7}],
        {1: "a name that is no text"},
        SimpleNamespace(headers="text"),
        SimpleNamespace(headers=lambda: "text"),
        SimpleNamespace(headers=lambda needed: PAIRS),
        SimpleNamespace(attributes={"outbox_event_id": str(EVENT_ID)}),  # of a span, say: there is no data beside them
        SimpleNamespace(request=SimpleNamespace(headers=dict(PAIRS))),
        KafkaMessage,
        Mock(),
        MagicMock(),
    ],
)
def test_what_has_no_headers_is_told_what_to_pass(message):
    with pytest.raises(MissingEventId, match="pass the message as the broker's client delivered it"):
        identify(message)


@pytest.mark.parametrize(
    "value",
    [
        "",
        "17",
        str(EVENT_ID)[:-1],
        "{" + str(EVENT_ID) + "}",
        EVENT_ID.hex,
        f" {EVENT_ID}",
        "g" * 36,
        b"\xff" * 36,
        f"{EVENT_ID}\n",
        f"urn:uuid:{EVENT_ID}",
        f'"{EVENT_ID}"',
        str(EVENT_ID).replace("-", "_"),
        str(EVENT_ID).replace("0", "\N{FULLWIDTH DIGIT ZERO}"),
        f"\x00{str(EVENT_ID)[1:]}",
        "\ud800" * 36,
        str(EVENT_ID).encode("utf-16"),
        EVENT_ID.bytes,
        17,
        10**5000,
        1.5,
        True,
        datetime(2026, 1, 31, tzinfo=UTC),
        {"nested": {"id": str(EVENT_ID)}},
        [str(EVENT_ID)],
        object(),
        "x" * 10_000_000,
        b"x" * 10_000_000,
        bytearray(b"x" * 10_000_000),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_malformed_id_is_shown_and_never_guessed(value):
    with pytest.raises(MalformedEventId, match="36 characters") as raised:
        identify({"outbox_event_id": value})

    assert len(str(raised.value)) < 300


@pytest.mark.parametrize("value", [UUID(int=0), str(UUID(int=0)), str(UUID(int=0)).encode(), str(UUID(int=2**128 - 1))])
def test_the_id_that_nobody_set_is_refused(value):
    """Taken for an id, it would make every event of that producer a duplicate of its first one."""
    with pytest.raises(MalformedEventId, match="never set it"):
        identify({"outbox_event_id": value})


def test_both_cases_of_an_id_are_one_id():
    assert identify({"outbox_event_id": str(EVENT_ID).upper()}) == identify({"outbox_event_id": str(EVENT_ID).encode()})


class Stranger:
    """An argument that has nothing to do with a message, and minds being looked at."""

    def __getattr__(self, name):
        raise RuntimeError("outside of a request")


class StrangeMapping(Mapping):
    def __getitem__(self, key):
        raise RuntimeError

    def __iter__(self):
        raise RuntimeError

    def __len__(self):
        raise RuntimeError


async def later():
    return PAIRS


@pytest.mark.parametrize(
    "message",
    [
        Stranger(),
        StrangeMapping(),
        (Stranger(), Stranger(), b"{}"),
        SimpleNamespace(headers=StrangeMapping()),
        SimpleNamespace(headers=lambda: 1 / 0),
        SimpleNamespace(headers=later),
        SimpleNamespace(message=Stranger()),
        SimpleNamespace(request=Stranger()),
    ],
    ids=range(8),
)
def test_what_minds_being_looked_at_is_no_message(message):
    with pytest.raises(MissingEventId, match="cannot find headers"):
        identify(message)
    assert find_message([message, b"{}"]) is None


def test_the_message_among_several_arguments_is_the_one_with_an_id():
    # pika's callback: channel, method, properties, body
    method, properties = SimpleNamespace(delivery_tag=1), SimpleNamespace(headers=dict(PAIRS))
    request = SimpleNamespace(headers={"accept": "text"})

    assert find_message([object(), method, request, properties, b"{}"]) is properties
    assert find_message([object(), request]) is request, "so that the error speaks of its headers"
    assert find_message([object(), b"{}"]) is None


def closed(*arguments):
    raise RuntimeError("the connection is closed")


class Closed(SimpleNamespace):
    """A message that still knows its headers, and nothing else."""

    body = key = topic = content_type = property(closed)


@pytest.mark.parametrize(
    "message",
    [
        Closed(headers=dict(PAIRS)),
        Closed(headers=dict(PAIRS), raw_message=Closed(headers=())),
        SimpleNamespace(
            headers=lambda: PAIRS, value=closed, body=closed, key=closed, topic=closed, content_type=closed
        ),
        SimpleNamespace(headers=lambda: PAIRS, value=lambda needed: b"{}", topic="orders"),
    ],
    ids=["attributes", "FastStream", "methods", "other methods"],
)
def test_what_a_message_minds_being_asked_it_does_not_say(message):
    incoming = Incoming.of(message)

    assert (incoming.id, incoming.body, incoming.key, incoming.topic) == (EVENT_ID, None, None, None)


def test_a_message_that_holds_itself_is_looked_into_once():
    message = SimpleNamespace(headers=dict(PAIRS), body=b"{}", topic="orders")
    message.raw_message = message

    incoming = Incoming.of(message)

    assert (incoming.id, incoming.body, incoming.topic) == (EVENT_ID, b"{}", "orders")
