"""Idempotent consumer for SQLAlchemy: a handler's database effect happens once per event and consumer.

consumer = IdempotentConsumer(sessionmaker(engine), name="billing")
outcome = consumer.consume(message, charge)        # def charge(session, message)
"""

from outbox_consumer.consumer import IdempotentConsumer
from outbox_consumer.identify import identify
from outbox_consumer.identity import Identity
from outbox_consumer.outcome import Outcome, Status
from outbox_consumer.settings import ConsumerSettings
from outbox_shared import __version__
from outbox_shared.errors import (
    ConfigurationError,
    ConsumeError,
    EventInProgress,
    HandlerEndedTransaction,
    MalformedEventId,
    MissingDependency,
    MissingEventId,
    MissingTable,
    NoActiveTransaction,
    OutboxError,
)

__all__ = [
    "ConfigurationError",
    "ConsumeError",
    "ConsumerSettings",
    "EventInProgress",
    "HandlerEndedTransaction",
    "IdempotentConsumer",
    "Identity",
    "MalformedEventId",
    "MissingDependency",
    "MissingEventId",
    "MissingTable",
    "NoActiveTransaction",
    "OutboxError",
    "Outcome",
    "Status",
    "__version__",
    "identify",
]
