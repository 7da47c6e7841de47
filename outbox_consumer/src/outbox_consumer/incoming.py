"""`Incoming`: what a handler wants to know of a message, under the same names for every client."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Self
from uuid import UUID

from outbox_consumer.delivery import Delivery, facts_of
from outbox_consumer.foreign import IdFrom
from outbox_consumer.identify import identify
from outbox_consumer.identity import Identified, Identity
from outbox_consumer.shapes import headers_of
from outbox_shared.headers import AGGREGATE_ID, AGGREGATE_TYPE, CORRELATION_ID, EVENT_VERSION, OCCURRED_AT
from outbox_shared.wire import header_text, read_time, read_version


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Incoming(Delivery, Identified):
    """A message whose event is known. It is a message itself: `consume(Incoming.of(message), handler)` works as with the original."""

    id: UUID
    type: str | None
    aggregate_type: str | None = None
    aggregate_id: str | None = None
    correlation_id: str | None = None
    occurred_at: datetime | None = None
    """In UTC. None where it is not set, and where a foreign producer sent what is no time."""

    version: int | None = None
    """The payload's version."""

    identity: Identity = field(repr=False)

    @classmethod
    def of(cls, message: object, id_from: IdFrom | None = None) -> Self:
        """From any client's message; MissingEventId or MalformedEventId as with `identify`."""
        if isinstance(message, cls):
            return message
        identity = identify(message, id_from)
        headers = headers_of(message) or {}
        return cls(
            **facts_of(message, headers),
            id=identity.event_id,
            type=identity.event_type,
            aggregate_type=header_text(headers.get(AGGREGATE_TYPE)),
            aggregate_id=header_text(headers.get(AGGREGATE_ID)),
            correlation_id=header_text(headers.get(CORRELATION_ID)),
            occurred_at=read_time(headers.get(OCCURRED_AT)),
            version=read_version(headers.get(EVENT_VERSION)),
            identity=identity,
        )
