"""What remembers consumed ids in front of the database. It changes speed and nothing else: the table alone decides."""

from outbox_consumer.cache.base import Cache, check_ttl
from outbox_consumer.cache.epoch import Epoch, current_epoch, next_epoch
from outbox_consumer.cache.in_process import InProcessCache
from outbox_consumer.cache.lookups import ConsumerCache, Look
from outbox_consumer.cache.making import cache_from
from outbox_consumer.cache.redis import RedisCache
from outbox_consumer.cache.tiered import TieredCache

__all__ = [
    "Cache",
    "ConsumerCache",
    "Epoch",
    "InProcessCache",
    "Look",
    "RedisCache",
    "TieredCache",
    "cache_from",
    "check_ttl",
    "current_epoch",
    "next_epoch",
]
