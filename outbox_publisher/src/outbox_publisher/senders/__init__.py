"""How events reach the outside: one seam, one sender per file, chosen by `publisher.sender.type`."""

from outbox_publisher.senders.base import (
    FinishedFlight,
    Flight,
    Kind,
    Position,
    Probing,
    Sender,
    SendResult,
    Stoppable,
    Waiting,
)
from outbox_publisher.senders.handlers import Handlers, HandlerSender, Reject
from outbox_publisher.senders.lookup import sender_named
from outbox_publisher.senders.memory import MemorySender
from outbox_publisher.settings import PublisherSettings
from outbox_shared.clock import Clock, SystemClock
from outbox_shared.errors import ConfigurationError

__all__ = [
    "FinishedFlight",
    "Flight",
    "HandlerSender",
    "Handlers",
    "Kind",
    "MemorySender",
    "Position",
    "Probing",
    "Reject",
    "SendResult",
    "Sender",
    "Stoppable",
    "Waiting",
    "sender_for",
]


def sender_for(settings: PublisherSettings, clock: Clock | None = None) -> Sender:
    """The sender that the settings name; its client library is imported only here."""
    clock = clock or SystemClock()
    if settings.sender.bean_name is not None:
        return sender_named("bean-name", settings.sender.bean_name, settings, clock)
    match settings.sender.type:
        case "kafka":
            from outbox_publisher.senders.kafka import KafkaSender  # noqa: PLC0415 - an extra

            return KafkaSender(settings.sender, clock)
        case "rabbitmq":
            from outbox_publisher.senders.rabbitmq import RabbitSender  # noqa: PLC0415 - an extra

            return RabbitSender(settings.sender, clock)
        case "memory":
            return MemorySender()
        case "handlers":
            raise ConfigurationError(
                "outbox.publisher.sender.type is handlers, and nothing says which: pass "
                "Relay(settings, sender=HandlerSender(handlers, settings.sender)), "
                "or set outbox.publisher.sender.bean-name to where they are, such as shop.events:handlers"
            )
        case None:
            raise ConfigurationError(
                "no sender is configured: set outbox.publisher.sender.type to kafka, rabbitmq, handlers or memory"
            )
        case installed:
            return sender_named("type", installed, settings, clock)
