"""The cache that the settings describe."""

from outbox_consumer.cache.base import Cache
from outbox_consumer.cache.in_process import InProcessCache
from outbox_consumer.cache.redis import RedisCache
from outbox_consumer.cache.tiered import TieredCache
from outbox_consumer.settings import ConsumerSettings


def cache_from(settings: ConsumerSettings) -> Cache | None:
    """In the process, and with a redis-url in front of Redis; None where `consumer.cache.enabled` is false. Connects to nothing yet."""
    described = settings.cache
    if not described.enabled:
        return None
    near = InProcessCache(ttl=described.ttl, size=described.size)
    url = settings.cache_redis_url
    if url is None:
        return near
    return TieredCache(near, RedisCache(url, ttl=described.ttl, prefix=described.cache_name))
