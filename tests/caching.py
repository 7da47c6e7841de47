"""What the suites of caches share: keys of a test's own in the shared Redis, private ones to hurt, and a consumer that has a cache."""

from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID, uuid4

import pytest
from redis import Redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from outbox_consumer import IdempotentConsumer
from outbox_consumer.cache import Cache, ConsumerCache, Epoch
from outbox_shared.clock import Clock, SystemClock
from outbox_shared.ids import new_event_id
from tests.consuming import ConsumingDatabase, book
from tests.services.client import OwnServer


def ids(count: int) -> list[UUID]:
    return [new_event_id() for _ in range(count)]


@pytest.fixture
def prefix() -> str:
    return f"test:{uuid4().hex}"


def client_of(url: str) -> "Redis":
    return Redis.from_url(url, retry=Retry(NoBackoff(), 0))


@pytest.fixture
def redis_client(redis_url: str) -> Iterator["Redis"]:
    """Looks at what stands in the shared Redis."""
    with client_of(redis_url) as client:
        yield client


@pytest.fixture
def own_redis(own_server: Callable[..., OwnServer]) -> OwnServer:
    """A private Redis behind a proxy, which counts who comes."""
    return own_server("redis", behind_proxy=True)


class CachedConsumer:
    """A consumer as it uses a cache: look, transaction, and only after its commit the cache."""

    def __init__(
        self,
        database: ConsumingDatabase,
        cache: Cache,
        name: str = "billing",
        clock: Clock = SystemClock(),  # noqa: B008
    ) -> None:
        self.consumer: IdempotentConsumer = database.consumer(name)
        self.cache = ConsumerCache(cache, name, Epoch(lambda: database.engine, clock=clock))
        self.hits = 0

    def deliver(self, message: dict[str, str], handler: Callable[..., Any] = book) -> None:
        event_id = UUID(message["outbox_event_id"])
        look = self.cache.look([event_id])
        if event_id in look.known:
            self.hits += 1
            return
        self.consumer.consume(message, handler)
        self.cache.remember(look, [event_id])
