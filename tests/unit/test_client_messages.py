"""What is read from the messages of the real clients: the event, and what a handler wants to know beside it."""

import subprocess
import sys
from typing import Any
from uuid import UUID

import pytest

from outbox_consumer import Incoming, MalformedEventId, MissingEventId, identify
from outbox_consumer.identify import find_message
from tests import client_messages as clients
from tests.client_messages import BODY, MESSAGE_ID

EVENT_ID = UUID("0190f0f0-0000-7000-8000-000000000001")
HEADERS = [
    ("outbox_event_id", str(EVENT_ID).encode()),
    ("outbox_event_type", b"order-created"),
    ("content-type", b"application/json"),
    ("outbox_aggregate_id", b"7"),
    ("outbox_correlation_id", "req-ü".encode()),
    ("outbox_event_version", b"3"),
]
RECORD = {"key": "order-7", "body": BODY, "topic": "orders", "partition": 3, "offset": 17}
DELIVERY = {"key": None, "body": BODY, "topic": "orders", "routing_key": "order-created", "message_id": MESSAGE_ID}
PUBSUB = {"key": "order-7", "body": BODY, "topic": None, "message_id": MESSAGE_ID}

BUILDERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "aiokafka": (clients.aiokafka_record, RECORD),
    "kafka-python": (clients.kafka_python_record, RECORD),
    "pika: (channel, method, properties, body)": (clients.pika_callback, DELIVERY),
    "pika: (method, properties, body)": (clients.pika_basic_get, DELIVERY),
    "pika: (properties, body)": (lambda headers: clients.pika_basic_get(headers)[1:], {"body": BODY, "topic": None}),
    "pika: (method, properties)": (lambda headers: clients.pika_basic_get(headers)[:2], {**DELIVERY, "body": None}),
    "pika: properties": (clients.pika_properties, {"body": None, "topic": None, "message_id": MESSAGE_ID}),
    "aio-pika": (clients.aio_pika_message, DELIVERY),
    "kombu over AMQP": (clients.kombu_message, {"key": None, "body": BODY, "routing_key": "identify"}),
    "kombu over another": (clients.kombu_virtual_message, DELIVERY),
    "FastStream KafkaMessage": (clients.faststream_kafka, {**RECORD, "message_id": None}),
    "FastStream batch of one": (clients.faststream_kafka_batch, RECORD),
    "FastStream RabbitMessage": (clients.faststream_rabbit, DELIVERY),
    "Pub/Sub PubsubMessage": (clients.pubsub_message, PUBSUB),
    "Pub/Sub Message": (clients.pubsub_subscriber_message, PUBSUB),
    "Pub/Sub ReceivedMessage": (clients.pubsub_received, PUBSUB),
}


@pytest.fixture(params=BUILDERS)
def client(request: pytest.FixtureRequest) -> tuple[Any, dict[str, Any]]:
    return BUILDERS[request.param]


def test_the_event_is_found(client):
    build, _ = client

    found = identify(build(HEADERS))

    assert (found.event_id, found.event_type) == (EVENT_ID, "order-created")
    assert found.story.correlation_id == "req-ü"


def test_a_handler_reads_every_client_by_the_same_names(client):
    build, facts = client
    message = build(HEADERS)

    incoming = Incoming.of(message)

    assert (incoming.id, incoming.type, incoming.version) == (EVENT_ID, "order-created", 3)
    assert (incoming.aggregate_id, incoming.correlation_id) == ("7", "req-ü")
    assert incoming.content_type == "application/json"
    assert incoming.headers == {name: value.decode() for name, value in HEADERS}
    assert {name: getattr(incoming, name) for name in facts} == facts
    assert incoming.source is message
    assert identify(incoming) == identify(message)


def test_what_it_carries_is_not_shown(client):
    build, _ = client

    shown = repr(Incoming.of(build([*HEADERS, ("token", b"secret")])))

    assert str(EVENT_ID) in shown
    assert not any(word in shown for word in ("secret", "9.90", "order-7"))


def test_a_message_without_the_header_or_with_a_malformed_one_is_refused(client):
    build, _ = client

    with pytest.raises(MissingEventId, match="its headers: tenant"):
        identify(build([("tenant", b"acme")]))
    with pytest.raises(MissingEventId, match="its headers: none"):
        identify(build([]))
    with pytest.raises(MalformedEventId, match=r"not b?'17'"):
        identify(build([("outbox_event_id", b"17")]))


def test_it_is_found_among_other_arguments(client):
    build, _ = client
    message = build(HEADERS)

    assert find_message([object(), {"tenant": "acme"}, message, "text"]) is message


# confluent-kafka: the messages come from librdkafka.


def test_confluents_messages(mock_kafka_url):
    message = clients.confluent_message(mock_kafka_url, "identify-confluent", HEADERS)

    incoming = Incoming.of(message)

    assert (incoming.id, incoming.type, incoming.version) == (EVENT_ID, "order-created", 3)
    assert (incoming.key, incoming.body) == ("order-7", BODY)
    assert (incoming.topic, incoming.partition, incoming.offset) == ("identify-confluent", message.partition(), 0)
    assert identify(message) == identify(incoming)
    assert find_message(["text", message]) is message


def test_confluents_tombstone_is_a_message(mock_kafka_url):
    message = clients.confluent_message(mock_kafka_url, "identify-tombstone", HEADERS, None)

    assert not message, "its length is that of its value, so it must never be asked whether it is true"
    assert identify(message).event_id == EVENT_ID
    assert Incoming.of(message).body is None
    assert find_message(["text", message]) is message


def test_confluents_message_without_headers(mock_kafka_url):
    with pytest.raises(MissingEventId, match="its headers: none"):
        identify(clients.confluent_message(mock_kafka_url, "identify-none", None))


def test_faststream_over_confluent(mock_kafka_url):
    raw = clients.confluent_message(mock_kafka_url, "identify-faststream", HEADERS)

    incoming = Incoming.of(clients.faststream_confluent(raw))

    assert (incoming.id, incoming.key, incoming.body) == (EVENT_ID, "order-7", BODY)
    assert (incoming.topic, incoming.partition, incoming.offset) == ("identify-faststream", raw.partition(), 0)


# What Kafka's headers can be and AMQP's cannot.

KAFKA = [clients.aiokafka_record, clients.kafka_python_record]


@pytest.mark.parametrize("build", KAFKA)
def test_the_last_of_repeated_headers_counts_also_when_it_is_null(build):
    other = ("outbox_event_id", b"0190f0f0-0000-7000-8000-0000000000ff")

    assert identify(build([other, *HEADERS])).event_id == EVENT_ID
    assert identify(build([("outbox_event_id", b"malformed"), *HEADERS])).event_id == EVENT_ID
    with pytest.raises(MissingEventId):
        identify(build([*HEADERS, ("outbox_event_id", None)]))


def test_repeated_and_null_headers_of_confluents_client(mock_kafka_url):
    other = ("outbox_event_id", b"0190f0f0-0000-7000-8000-0000000000ff")
    message = clients.confluent_message(
        mock_kafka_url, "identify-repeated", [other, *HEADERS, ("outbox_event_version", None)]
    )

    assert Incoming.of(message).id == EVENT_ID
    assert Incoming.of(message).version is None


@pytest.mark.parametrize("build", KAFKA)
def test_debeziums_record(build):
    """Its outbox router sends every header that it was told of; where a row has nothing, the value is null."""
    unset = [
        "outbox_aggregate_type",
        "outbox_correlation_id",
        "outbox_event_version",
        "outbox_occurred_at",
        "traceparent",
    ]

    incoming = Incoming.of(build([*HEADERS[:2], *[(name, None) for name in unset]]))

    assert (incoming.id, incoming.type) == (EVENT_ID, "order-created")
    assert incoming.headers.keys() == {"outbox_event_id", "outbox_event_type"}
    assert (incoming.aggregate_type, incoming.correlation_id, incoming.version, incoming.occurred_at) == (None,) * 4
    assert incoming.identity.story.traceparent is None


@pytest.mark.parametrize("build", KAFKA)
def test_spring_outboxs_record(build):
    """Sent by the Java library: no key, its own headers beside ours, and after a retry some of them twice."""
    types = b'{"outbox_event_id":"java.lang.String","outbox_event_type":"java.lang.String"}'
    headers = [
        ("outbox_event_payload_type", b"com.example.OrderCreated"),
        ("outbox_event_type", b"order-created"),
        ("outbox_event_id", b"0190f0f0-0000-7000-8000-0000000000ff"),
        ("spring_json_header_types", types),
        ("outbox_event_id", str(EVENT_ID).encode()),
    ]
    record = build(headers)
    record = record._replace(key=None) if isinstance(record, tuple) else record

    incoming = Incoming.of(record)

    assert (incoming.id, incoming.type) == (EVENT_ID, "order-created")
    assert incoming.headers["outbox_event_payload_type"] == "com.example.OrderCreated"
    assert incoming.content_type is None, "nothing said what it is"


# RabbitMQ.


def test_pikas_arguments_one_by_one_are_put_together_again():
    channel, method, properties, body = clients.pika_callback(HEADERS)

    found = find_message([channel, method, properties, body])

    assert found == (method, properties, body)
    assert Incoming.of(found).body is body
    assert Incoming.of(found).routing_key == "order-created"


def test_pikas_arguments_are_put_together_without_an_id_too():
    _, method, properties, body = clients.pika_callback([])

    assert find_message([object(), method, properties, body]) == (method, properties, body)


@pytest.mark.parametrize("nothing", [(None, None, None), (None, None)])
def test_an_empty_queue_is_told_apart(nothing):
    with pytest.raises(MissingEventId, match="found the queue empty"):
        identify(nothing)


def test_amqps_own_kinds_of_values():
    """A table can hold numbers, times and tables; a handler gets them as they are."""
    own = [("outbox_event_version", 3), ("outbox_event_type", 17), ("x-death", [{"count": 2}])]

    incoming = Incoming.of(clients.pika_callback([*HEADERS[:1], *own]))

    assert (incoming.version, incoming.type) == (3, "17")
    assert incoming.headers["x-death"] == [{"count": 2}]


def test_pubsub_messages_without_a_key_or_with_nothing_in_them():
    message = clients.pubsub_message(HEADERS)
    message.ordering_key, message.data = "", b""

    assert (Incoming.of(message).key, Incoming.of(message).body) == (None, b"")


# Several messages are never taken for one: the others would be lost.


def test_a_batch_is_told_to_go_to_consume_batch():
    records = [clients.kafka_python_record(HEADERS) for _ in range(3)]
    batches = [
        records,
        tuple(records),
        clients.kafka_python_poll(HEADERS, HEADERS, HEADERS),
        [clients.pika_callback(HEADERS) for _ in range(3)],
        [clients.aio_pika_message(HEADERS) for _ in range(3)],
        tuple(clients.aio_pika_message(HEADERS) for _ in range(3)),
        [clients.pubsub_received(HEADERS) for _ in range(3)],
        clients.faststream_kafka_batch(HEADERS, HEADERS, HEADERS),
    ]

    for batch in batches:
        with pytest.raises(MissingEventId, match=r"holds 3 messages.*consume_batch"):
            identify(batch)
        assert find_message(["text", batch]) is batch, "a decorated function is told so too"


def test_two_deliveries_are_no_delivery():
    two = (clients.aio_pika_message(HEADERS), clients.aio_pika_message(HEADERS))

    with pytest.raises(MissingEventId, match="holds 2 messages"):
        identify(two)


# Celery: what is sent with apply_async(headers=…).


def test_a_celery_request_and_its_task():
    request = clients.in_celery(HEADERS, lambda task: Incoming.of(task.request))
    task = clients.in_celery(HEADERS, Incoming.of)
    found = clients.in_celery(HEADERS, lambda task: find_message([task, 7]) is task)

    assert (request.id, request.type, request.version) == (EVENT_ID, "order-created", 3)
    assert (task.id, task.body, task.key) == (EVENT_ID, None, None)
    assert found


def test_a_celery_task_without_headers():
    with pytest.raises(MissingEventId, match="its headers: none"):
        clients.in_celery(None, identify)


def test_no_client_is_imported_by_us():
    """Shapes are all that is known of a client; that of a client that is not installed cannot be missing."""
    names = [
        "confluent_kafka",
        "aiokafka",
        "kafka",
        "pika",
        "aio_pika",
        "kombu",
        "celery",
        "faststream",
        "google.cloud",
    ]
    script = (
        "import sys, types, outbox_consumer\n"
        "message = types.SimpleNamespace(headers={'outbox_event_id': '0190f0f0-0000-7000-8000-000000000001'})\n"
        "outbox_consumer.Incoming.of(message)\n"
        f"print(*[name for name in {names!r} if name in sys.modules])"
    )

    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert loaded.stdout.split() == []
