"""Which event a message carries, whatever the client's message looks like."""

from types import SimpleNamespace
from unittest.mock import MagicMock, Mock
from uuid import UUID

import pytest
from confluent_kafka import Producer

from outbox_consumer import MalformedEventId, MissingEventId, identify
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
        ({f"header-{n}": "" for n in range(1000)}, "…"),
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
        [dict(PAIRS)],
        SimpleNamespace(headers="text"),
        SimpleNamespace(headers=lambda: "text"),
        SimpleNamespace(headers=lambda needed: PAIRS),
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
        17,
        "x" * 10_000,
    ],
)
def test_a_malformed_id_is_shown_and_never_guessed(value):
    with pytest.raises(MalformedEventId, match="36 characters") as raised:
        identify({"outbox_event_id": value})

    assert len(str(raised.value)) < 300


def test_the_message_among_several_arguments_is_the_one_with_an_id():
    # pika's callback: channel, method, properties, body
    method, properties = SimpleNamespace(delivery_tag=1), SimpleNamespace(headers=dict(PAIRS))
    request = SimpleNamespace(headers={"accept": "text"})

    assert find_message([object(), method, request, properties, b"{}"]) is properties
    assert find_message([object(), request]) is request, "so that the error speaks of its headers"
    assert find_message([object(), b"{}"]) is None
