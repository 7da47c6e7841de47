"""Transactional outbox: events are stored in your transaction and relayed to a broker until they arrive."""

from typing import TYPE_CHECKING, Any

from outbox_publisher.draft import EventDraft
from outbox_publisher.event import Event
from outbox_publisher.outbox import Outbox
from outbox_publisher.relay import Relay, Turn
from outbox_publisher.senders.handlers import Handlers, HandlerSender, Reject
from outbox_publisher.serialization import EnvelopeSerializer, JsonSerializer, Serializer
from outbox_publisher.settings import PublisherSettings
from outbox_publisher.writer import Published, PublishedBatch
from outbox_shared import __version__
from outbox_shared.adapters import from_django, from_psycopg
from outbox_shared.errors import (
    ConfigurationError,
    InvalidHeader,
    InvalidKey,
    MissingDependency,
    MissingTable,
    NoActiveTransaction,
    OutboxError,
    PayloadTooLarge,
    PublishError,
    SerializationError,
    UnknownEventType,
)
from outbox_shared.sqlite import configure_sqlite

if TYPE_CHECKING:
    from outbox_publisher.async_outbox import AsyncOutbox

__all__ = [
    "AsyncOutbox",
    "ConfigurationError",
    "EnvelopeSerializer",
    "Event",
    "EventDraft",
    "HandlerSender",
    "Handlers",
    "InvalidHeader",
    "InvalidKey",
    "JsonSerializer",
    "MissingDependency",
    "MissingTable",
    "NoActiveTransaction",
    "Outbox",
    "OutboxError",
    "PayloadTooLarge",
    "PublishError",
    "Published",
    "PublishedBatch",
    "PublisherSettings",
    "Reject",
    "Relay",
    "SerializationError",
    "Serializer",
    "Turn",
    "UnknownEventType",
    "__version__",
    "configure_sqlite",
    "from_django",
    "from_psycopg",
]


def __getattr__(name: str) -> Any:
    """AsyncOutbox on demand: SQLAlchemy's async part needs greenlet, which a sync service should not have to install."""
    if name != "AsyncOutbox":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from outbox_publisher.async_outbox import AsyncOutbox  # noqa: PLC0415
    except ImportError:
        raise MissingDependency("AsyncOutbox", "outbox-publisher[async]") from None
    return AsyncOutbox
