"""Messages as clients get them from a real broker, sent with the headers that a relay sends."""

import asyncio
import warnings
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import aio_pika
import aiokafka
import kombu
import pika
import pytest
from confluent_kafka import Producer
from pika.adapters.select_connection import SelectConnection

from outbox_consumer import Incoming, identify
from outbox_publisher import Event
from outbox_publisher.demo.embedded_kafka import read_topic
from outbox_publisher.senders.rabbitmq_flight import properties_of
from outbox_shared.wire import kafka_headers
from tests.consuming import ConsumingDatabase

with warnings.catch_warnings():  # kafka-python reads its own files in a way that Python is going to drop
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import KafkaConsumer, TopicPartition

EVENT_ID = UUID("0190f0f0-0000-7000-8000-000000000001")
EVENT = Event(
    id=EVENT_ID,
    event_type="order-created",
    topic="orders",
    key="order-7",
    payload=b'{"total": "9.90"}',
    content_type="application/json",
    created_at=datetime(2026, 1, 31, 12, tzinfo=UTC),
    occurred_at=datetime(2026, 1, 31, 12, 30, 0, 5, tzinfo=UTC),
    version=3,
    aggregate_type="Order",
    aggregate_id="7",
    correlation_id="req-ü",
    headers={"tenant": "acme"},
)


def assert_is_the_event(message: Any, **facts: Any) -> None:
    incoming = Incoming.of(message)
    told = [getattr(incoming, name) for name in ("id", "type", "version", "aggregate_type", "aggregate_id", "correlation_id",
                                                 "occurred_at", "content_type", "body")]  # fmt: skip

    assert told == [
        EVENT_ID,
        "order-created",
        3,
        "Order",
        "7",
        "req-ü",
        EVENT.occurred_at,
        "application/json",
        EVENT.payload,
    ]
    assert incoming.headers["tenant"] == "acme"
    assert {name: getattr(incoming, name) for name in facts} == facts
    assert identify(message) == identify(incoming)


# Kafka.


@pytest.fixture
def topic(kafka_url: str, kafka_topic: Callable[..., str]) -> str:
    """With the event in it."""
    name = kafka_topic()
    producer = Producer({"bootstrap.servers": kafka_url})
    producer.produce(name, EVENT.payload, key=EVENT.key, headers=kafka_headers(EVENT))
    producer.flush(10)
    return name


def test_confluent_kafka(kafka_url, topic):
    (message,) = read_topic(kafka_url, topic)

    assert_is_the_event(message, key="order-7", topic=topic, partition=0, offset=0)


def read_with_aiokafka(url: str, topic: str, **options: Any) -> Any:
    async def read() -> Any:
        consumer = aiokafka.AIOKafkaConsumer(topic, bootstrap_servers=url, auto_offset_reset="earliest", **options)
        await consumer.start()
        try:
            return await asyncio.wait_for(consumer.getone(), 20)
        finally:
            await consumer.stop()

    return asyncio.run(read())


def test_aiokafka(kafka_url, topic):
    message = read_with_aiokafka(kafka_url, topic)

    assert_is_the_event(message, key="order-7", topic=topic, partition=0, offset=0)


def test_a_deserializers_key_and_body_are_left_alone(kafka_url, topic):
    message = read_with_aiokafka(
        kafka_url, topic, key_deserializer=lambda key: key.decode().split("-"), value_deserializer=len
    )

    incoming = Incoming.of(message)

    assert (incoming.key, incoming.body) == (["order", "7"], len(EVENT.payload))


def test_kafka_python(kafka_url, topic):
    consumer = KafkaConsumer(bootstrap_servers=kafka_url, auto_offset_reset="earliest", consumer_timeout_ms=20_000)
    try:
        consumer.assign([TopicPartition(topic, 0)])  # with a subscription it may miss a topic that was just made
        message = next(consumer)
    finally:
        consumer.close()

    assert_is_the_event(message, key="order-7", topic=topic, partition=0, offset=0)


# RabbitMQ.


@pytest.fixture
def channel(rabbitmq_url: str) -> Iterator[Any]:
    connection = pika.BlockingConnection(pika.URLParameters(rabbitmq_url))
    yield connection.channel()
    connection.close()


@pytest.fixture
def queue(channel: Any) -> Iterator[str]:
    """With the event in it, twice."""
    name = f"orders-{uuid4().hex[:12]}"
    channel.exchange_declare(name, "topic")
    channel.queue_declare(name)
    channel.queue_bind(name, name, "#")
    for _ in range(2):
        channel.basic_publish(name, EVENT.event_type, EVENT.payload, properties_of(EVENT))
    yield name
    channel.queue_delete(name)
    channel.exchange_delete(name)


def facts(queue: str) -> dict[str, Any]:
    return {"topic": queue, "routing_key": "order-created", "message_id": str(EVENT_ID), "key": None}


def test_pikas_basic_get(channel, queue):
    message = channel.basic_get(queue, auto_ack=True)

    assert_is_the_event(message, **facts(queue))


def test_pikas_basic_get_of_an_empty_queue(channel, queue):
    channel.queue_purge(queue)

    with pytest.raises(ValueError, match="found the queue empty"):
        identify(channel.basic_get(queue))


def test_pikas_consume(channel, queue):
    message = next(channel.consume(queue, auto_ack=True, inactivity_timeout=20))
    channel.cancel()

    assert_is_the_event(message, **facts(queue))


def test_pikas_callback_can_be_a_decorated_function(channel, queue, consuming_on_sqlite: ConsumingDatabase):
    """pika calls it with four arguments; the message is delivered twice and has its effect once."""
    consumer, delivered = consuming_on_sqlite.consumer(), []

    @consumer.idempotent
    def on_order(session, channel, method, properties, body):
        delivered.append((channel, method, properties, body))
        session.connection().exec_driver_sql("INSERT INTO effects VALUES (?)", (str(identify(properties).event_id),))

    channel.basic_consume(queue, on_order, auto_ack=True)
    while channel.get_waiting_message_count() or channel.connection.process_data_events(1) or not delivered:
        pass
    channel.cancel()

    assert consuming_on_sqlite.effects() == [str(EVENT_ID)]
    (arguments,) = delivered
    assert_is_the_event(arguments, **facts(queue))


def test_pikas_select_connection(rabbitmq_url, queue):
    delivered: list[Any] = []

    def on_message(*arguments: Any) -> None:
        delivered.append(arguments)
        connection.close()

    def on_channel(channel: Any) -> None:
        channel.basic_consume(queue, on_message, auto_ack=True)

    connection = SelectConnection(
        pika.URLParameters(rabbitmq_url),
        on_open_callback=lambda connection: connection.channel(on_open_callback=on_channel),
        on_close_callback=lambda connection, _: connection.ioloop.stop(),
    )
    connection.ioloop.call_later(20, connection.ioloop.stop)
    connection.ioloop.start()
    connection.ioloop.close()

    assert_is_the_event(delivered[0], **facts(queue))


def test_aio_pika(rabbitmq_url, queue):
    async def read() -> Any:
        async with await aio_pika.connect(rabbitmq_url) as connection:
            opened = await (await connection.channel()).get_queue(queue)
            return await opened.get(no_ack=True, timeout=20)

    assert_is_the_event(asyncio.run(read()), **facts(queue))


def test_kombu(rabbitmq_url, queue):
    received: list[Any] = []
    with kombu.Connection(rabbitmq_url) as connection:
        opened = kombu.Queue(queue, no_declare=True)
        with connection.Consumer([opened], on_message=received.append, no_ack=True):
            connection.drain_events(timeout=20)

    assert_is_the_event(received[0], **facts(queue))
