"""How events reach the outside: one seam, one sender per file, chosen by `publisher.sender.type`."""

from outbox_publisher.senders.base import FinishedFlight, Flight, Kind, Position, Sender, SendResult
from outbox_publisher.senders.memory import MemorySender
from outbox_publisher.settings import PublisherSettings
from outbox_shared.clock import Clock
from outbox_shared.errors import ConfigurationError

__all__ = ["FinishedFlight", "Flight", "Kind", "MemorySender", "Position", "SendResult", "Sender", "sender_for"]


def sender_for(settings: PublisherSettings, clock: Clock | None = None) -> Sender:
    """The sender that the settings name; its client library is imported only here."""
    match settings.sender.type:
        case "kafka":
            from outbox_publisher.senders.kafka import KafkaSender  # noqa: PLC0415 - an extra

            return KafkaSender(settings.sender, clock)
        case "memory":
            return MemorySender()
        case other:
            said = "no sender is configured" if other is None else f"there is no sender {other!r}"
            raise ConfigurationError(f"{said}: set outbox.publisher.sender.type to kafka or memory")
