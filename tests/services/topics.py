"""Kafka topics for tests, and librdkafka's mock cluster as one more Kafka.

The client is imported on first use, so that a run without Kafka does not wait for it.
"""

from importlib import import_module
from typing import Any
from uuid import uuid4

from tests.services.processes import wait_until


class Topics:
    """Makes uniquely named topics on one cluster."""

    def __init__(self, url: str) -> None:
        # Kept as long as its futures run: a collected AdminClient cancels them.
        self._admin: Any = import_module("confluent_kafka.admin").AdminClient({"bootstrap.servers": url})

    def create(self, name: str = "orders", partitions: int = 1) -> str:
        """A new topic, ready to be written to: every partition has a leader."""
        topic = f"{name}.{uuid4().hex[:12]}"
        new = import_module("confluent_kafka.admin").NewTopic(topic, partitions, 1)
        for future in self._admin.create_topics([new], operation_timeout=20).values():
            future.result(30)
        if not wait_until(lambda: self._usable(topic, partitions), 20):
            raise TimeoutError(f"topic {topic} has no leaders after 20 s")
        return topic

    def _usable(self, topic: str, partitions: int) -> bool:
        about = self._admin.list_topics(topic, timeout=10).topics[topic]
        return (
            about.error is None
            and len(about.partitions) == partitions
            and all(partition.leader >= 0 for partition in about.partitions.values())
        )


class MockKafka:
    """A cluster inside this process that speaks the real protocol; it lives as long as this object."""

    def __init__(self) -> None:
        self._producer: Any = import_module("confluent_kafka").Producer(
            {"bootstrap.servers": "mock", "test.mock.num.brokers": 1}
        )
        brokers = self._producer.list_topics(timeout=10).brokers.values()
        self.url = ",".join(f"{broker.host}:{broker.port}" for broker in brokers)
