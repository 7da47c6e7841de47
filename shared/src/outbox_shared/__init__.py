"""What outbox_publisher and outbox_consumer agree on: the wire contract, ids, durations, errors and the caller's transaction.

Nothing here knows either side or a broker client.
"""

from outbox_shared.errors import OutboxError

__all__ = ["OutboxError", "__version__"]

__version__ = "0.1.0"
