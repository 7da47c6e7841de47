"""Transactional outbox: events are stored in your transaction and relayed to a broker until they arrive."""

from outbox_publisher.event import Event
from outbox_publisher.outbox import Outbox, Published
from outbox_publisher.relay import Relay, Turn
from outbox_publisher.settings import PublisherSettings
from outbox_shared import __version__
from outbox_shared.sqlite import configure_sqlite

__all__ = ["Event", "Outbox", "Published", "PublisherSettings", "Relay", "Turn", "__version__", "configure_sqlite"]
