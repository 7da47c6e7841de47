"""What remembers consumed ids in front of the database. It changes speed and nothing else: the table alone decides."""

from outbox_consumer.cache.base import Cache

__all__ = ["Cache"]
