"""Transactional outbox: events are stored in your transaction and relayed to a broker until they arrive."""

from outbox_publisher.event import Event
from outbox_publisher.outbox import Outbox, Published
from outbox_publisher.relay import Relay, Turn
from outbox_publisher.settings import PublisherSettings
from outbox_shared import __version__
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

__all__ = [
    "ConfigurationError",
    "Event",
    "InvalidHeader",
    "InvalidKey",
    "MissingDependency",
    "MissingTable",
    "NoActiveTransaction",
    "Outbox",
    "OutboxError",
    "PayloadTooLarge",
    "PublishError",
    "Published",
    "PublisherSettings",
    "Relay",
    "SerializationError",
    "Turn",
    "UnknownEventType",
    "__version__",
    "configure_sqlite",
]
