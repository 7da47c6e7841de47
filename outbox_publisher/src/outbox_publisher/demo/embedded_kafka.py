"""A Kafka inside this process: librdkafka's mock cluster. Real wire protocol, real clients, memory only; gone with the process."""

from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition

ROUND_TRIP_MS = 40
"""Slow enough for a relay to be caught in the middle of a batch."""


@contextmanager
def embedded_kafka() -> Iterator[str]:
    """The address of a broker that other processes can reach, too."""
    host = Producer(
        {
            "bootstrap.servers": "embedded",  # replaced by the mock cluster's own address
            "test.mock.num.brokers": 1,
            "test.mock.broker.rtt": ROUND_TRIP_MS,
            "log_level": 0,
        }
    )
    broker = next(iter(host.list_topics(timeout=10).brokers.values()))
    yield f"{broker.host}:{broker.port}"
    host.purge()


def read_topic(bootstrap: str, topic: str) -> list[Message]:
    """Every message that is in the topic now, from its beginning."""
    reader = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "reader", "enable.auto.commit": False, "log_level": 0}
    )
    try:
        partitions = reader.list_topics(topic, timeout=10).topics[topic].partitions
        ends = {p: reader.get_watermark_offsets(TopicPartition(topic, p), timeout=10)[1] for p in partitions}
        reader.assign([TopicPartition(topic, p, 0) for p, end in ends.items() if end > 0])
        messages: list[Message] = []
        while missing := sum(ends.values()) - len(messages):
            fresh = reader.consume(min(missing, 5000), timeout=10)
            if not fresh:
                raise TimeoutError(f"{missing} messages of {topic} did not come")
            for message in fresh:
                if (error := message.error()) is not None:
                    raise KafkaException(error)
                messages.append(message)
        return messages
    finally:
        reader.close()
