"""Stored events become messages: claim → send → settle, with recovery beside it."""

from outbox_publisher.relay.relay import Relay
from outbox_publisher.relay.turn import Turn

__all__ = ["Relay", "Turn"]
