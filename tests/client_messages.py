"""Messages of the real clients, built as the clients build them: no stand-ins, and no broker where a constructor does.

Each builder takes headers as a producer sets them, by name and in order, and returns what the client would hand to its caller.
"""

import asyncio
import base64
import queue
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import aio_pika
import aiokafka
import pika
from aiormq.abc import DeliveredMessage
from celery import Celery
from confluent_kafka import Producer
from faststream.confluent.parser import AsyncConfluentParser
from faststream.kafka.message import KafkaMessage
from faststream.kafka.parser import AioKafkaBatchParser, AioKafkaParser
from faststream.rabbit.parser import AioPikaParser
from google.cloud.pubsub_v1.subscriber.message import Message as SubscriberMessage
from google.cloud.pubsub_v1.types import PubsubMessage, ReceivedMessage
from kombu import Connection
from kombu import Message as KombuMessage
from kombu.transport.virtual import Message as VirtualMessage
from pamqp.commands import Basic as PamqpBasic
from pamqp.header import ContentHeader

from outbox_publisher.demo.embedded_kafka import read_topic

with warnings.catch_warnings():  # kafka-python reads its own files in a way that Python is going to drop
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import TopicPartition
    from kafka.consumer.fetcher import ConsumerRecord

Headers = Sequence[tuple[str, Any]]
BODY = b'{"total": "9.90"}'
KEY = b"order-7"
MESSAGE_ID = "a-message-id"


def _table(headers: Headers) -> dict[str, Any]:
    """As AMQP has them: one value per name, text where it is UTF-8."""
    return {name: value.decode() if isinstance(value, bytes) else value for name, value in headers}


# Kafka.


def confluent_message(bootstrap: str, topic: str, headers: Headers | None, body: bytes | None = BODY) -> Any:
    """Through librdkafka's mock cluster: the constructor is younger than the lowest version that we declare."""
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(topic, body, key=KEY, headers=headers)
    producer.flush(10)
    return read_topic(bootstrap, topic)[-1]


def aiokafka_record(headers: Headers) -> Any:
    return aiokafka.ConsumerRecord("orders", 3, 17, 0, 0, KEY, BODY, None, len(KEY), len(BODY), tuple(headers))


def kafka_python_record(headers: Headers) -> Any:
    return ConsumerRecord("orders", 3, 0, 17, 0, 0, KEY, BODY, list(headers), None, len(KEY), len(BODY), -1)


def kafka_python_poll(*records: Headers) -> Any:
    return {TopicPartition("orders", 3): [kafka_python_record(headers) for headers in records]}


# RabbitMQ.


def pika_properties(headers: Headers) -> pika.BasicProperties:
    """Encoded and decoded, as it went over the wire."""
    sent = pika.BasicProperties(headers=_table(headers), content_type="application/json", message_id=MESSAGE_ID)
    received = pika.BasicProperties()
    received.decode(b"".join(sent.encode()))
    return received


def pika_callback(headers: Headers) -> Any:
    """(channel, method, properties, body), of BlockingChannel and of SelectConnection's Channel alike."""
    channel = pika.channel.Channel.__new__(pika.channel.Channel)
    method = pika.spec.Basic.Deliver("consumer", 1, False, "orders", "order-created")
    return channel, method, pika_properties(headers), BODY


def pika_basic_get(headers: Headers) -> Any:
    return pika.spec.Basic.GetOk(1, False, "orders", "order-created", 0), pika_properties(headers), BODY


def aio_pika_message(headers: Headers) -> aio_pika.IncomingMessage:
    properties = PamqpBasic.Properties(
        headers=_table(headers), content_type="application/json", message_id=MESSAGE_ID, delivery_mode=2
    )
    delivery = PamqpBasic.Deliver("consumer", 1, False, "orders", "order-created")
    header = ContentHeader(0, len(BODY), properties)
    return aio_pika.IncomingMessage(DeliveredMessage(delivery=delivery, header=header, body=BODY, channel=None))


# Pub/Sub.


def pubsub_message(headers: Headers) -> PubsubMessage:
    return PubsubMessage(data=BODY, attributes=_table(headers), message_id=MESSAGE_ID, ordering_key=KEY.decode())


def pubsub_subscriber_message(headers: Headers) -> SubscriberMessage:
    return SubscriberMessage(pubsub_message(headers)._pb, "ack", 0, queue.Queue())


def pubsub_received(headers: Headers) -> ReceivedMessage:
    return ReceivedMessage(message=pubsub_message(headers), ack_id="ack")


# kombu and Celery.


def kombu_message(headers: Headers) -> KombuMessage:
    """Through kombu's transport in memory: published, stored in a queue, decoded."""
    with Connection("memory://") as connection, connection.SimpleQueue("identify") as waiting:
        waiting.put(BODY, headers=_table(headers), content_type="application/json", content_encoding="binary")
        message = waiting.get(timeout=5)
        message.ack()
        return message


def kombu_virtual_message(headers: Headers) -> VirtualMessage:
    """Of kombu's transports for brokers that are no AMQP (Redis, SQS): body in base64, everything else in properties."""
    payload = {
        "body": base64.b64encode(BODY).decode(),
        "headers": _table(headers),
        "content-type": "application/json",
        "content-encoding": "binary",
        "properties": {
            "body_encoding": "base64",
            "delivery_tag": "1",
            "message_id": MESSAGE_ID,
            "delivery_info": {"exchange": "orders", "routing_key": "order-created"},
        },
    }
    with Connection("memory://") as connection:
        return VirtualMessage(payload, connection.default_channel)


def in_celery(headers: Headers | None, do: Callable[[Any], Any]) -> Any:
    """What `do(self)` returns inside of a bound task that a caller sent with these headers; run by Celery, in this process."""
    app = Celery("identify", broker="memory://", set_as_current=False)

    @app.task(bind=True, name="bill")
    def bill(self: Any, order: int) -> Any:
        return do(self)

    return bill.apply((7,), headers=None if headers is None else _table(headers)).get()


# FastStream, through its own parsers.


def faststream_kafka(headers: Headers) -> Any:
    return asyncio.run(AioKafkaParser(KafkaMessage, None).parse_message(aiokafka_record(headers)))


def faststream_kafka_batch(*records: Headers) -> Any:
    parser = AioKafkaBatchParser(KafkaMessage, None)
    return asyncio.run(parser.parse_batch(tuple(aiokafka_record(headers) for headers in records)))


def faststream_confluent(message: Any) -> Any:
    return asyncio.run(AsyncConfluentParser().parse_message(message))


def faststream_rabbit(headers: Headers) -> Any:
    return asyncio.run(AioPikaParser().parse_message(aio_pika_message(headers)))
