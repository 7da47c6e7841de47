"""An event as it is stored and sent: what the relay claims, what a sender gets, what a dead-letter hook sees."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One row of outbox_events, without the columns that only the store needs."""

    id: UUID
    event_type: str
    topic: str | None
    key: str | None
    payload: bytes = field(repr=False)
    content_type: str
    created_at: datetime
    seq: int = 0
    next_retry_at: datetime | None = None
    attempts: int = 0
    maybe_sent: bool = False
    occurred_at: datetime | None = None
    version: int | None = None
    aggregate_type: str | None = None
    aggregate_id: str | None = None
    correlation_id: str | None = None
    traceparent: str | None = None
    tracestate: str | None = None
    baggage: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
