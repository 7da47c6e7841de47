"""Idempotent consumer for SQLAlchemy: a handler's database effect happens once per event and consumer.

consumer = IdempotentConsumer(sessionmaker(engine), name="billing")
outcome = consumer.consume(message, charge)        # def charge(session, message)

AsyncIdempotentConsumer is the same with await.
"""

from typing import TYPE_CHECKING, Any

from outbox_consumer.cache import Cache
from outbox_consumer.consumer import IdempotentConsumer
from outbox_consumer.delivery import Delivery
from outbox_consumer.foreign import id_from_headers
from outbox_consumer.identify import identify
from outbox_consumer.identity import Identity
from outbox_consumer.incoming import Incoming
from outbox_consumer.outcome import Outcome, Status
from outbox_consumer.redis_idempotency import AsyncRedisIdempotency, RedisIdempotency
from outbox_consumer.settings import ConsumerSettings
from outbox_consumer.telemetry import Telemetry
from outbox_shared import __version__
from outbox_shared.adapters import from_django, from_psycopg
from outbox_shared.errors import (
    ConfigurationError,
    ConsumeError,
    EventInProgress,
    HandlerEndedTransaction,
    LeaseLost,
    MalformedEventId,
    MissingDependency,
    MissingEventId,
    MissingTable,
    NoActiveTransaction,
    OutboxError,
    RedisUnavailable,
)
from outbox_shared.sqlite import configure_sqlite

if TYPE_CHECKING:
    from outbox_consumer.async_consumer import AsyncIdempotentConsumer

__all__ = [
    "AsyncIdempotentConsumer",
    "AsyncRedisIdempotency",
    "Cache",
    "ConfigurationError",
    "ConsumeError",
    "ConsumerSettings",
    "Delivery",
    "EventInProgress",
    "HandlerEndedTransaction",
    "IdempotentConsumer",
    "Identity",
    "Incoming",
    "LeaseLost",
    "MalformedEventId",
    "MissingDependency",
    "MissingEventId",
    "MissingTable",
    "NoActiveTransaction",
    "OutboxError",
    "Outcome",
    "RedisIdempotency",
    "RedisUnavailable",
    "Status",
    "Telemetry",
    "__version__",
    "configure_sqlite",
    "from_django",
    "from_psycopg",
    "id_from_headers",
    "identify",
]


def __getattr__(name: str) -> Any:
    """The async consumer on demand: SQLAlchemy's async part needs greenlet, which a sync service should not have to install."""
    if name != "AsyncIdempotentConsumer":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from outbox_consumer.async_consumer import AsyncIdempotentConsumer  # noqa: PLC0415
    except ImportError:
        raise MissingDependency("AsyncIdempotentConsumer", "outbox-consumer[async]") from None
    return AsyncIdempotentConsumer
