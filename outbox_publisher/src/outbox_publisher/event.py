"""An event on its way: as a publish stores it, and as the relay claims it."""

import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any, NamedTuple
from uuid import UUID

NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class Event(NamedTuple):
    """One row of outbox_events, without the columns that only the store needs: what a sender gets, and a dead-letter hook.

    A tuple, since a relay makes tens of thousands of them a second; name its fields all the same, there will be more of them.
    """

    id: UUID
    event_type: str
    topic: str | None
    key: str | None
    payload: bytes
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
    headers: Mapping[str, str] = NO_HEADERS

    def json(self) -> Any:
        """The payload, parsed; ValueError where it is not JSON. The bytes as they were stored are `payload`."""
        return json.loads(self.payload)

    def __repr__(self) -> str:
        """Without the payload, which is nobody's business in a log or an error."""
        shown = (f"{name}={value!r}" for name, value in zip(self._fields, self, strict=True) if name != "payload")
        return f"Event({', '.join(shown)})"


class NewEvent(NamedTuple):
    """What a publish stores, checked: the columns that it fills, in order, and then what decides how."""

    id: UUID
    lane: int
    event_type: str
    topic: str | None
    key: str | None
    headers: str | None
    aggregate_type: str | None
    aggregate_id: str | None
    correlation_id: str | None
    traceparent: str | None
    tracestate: str | None
    baggage: str | None
    version: int | None
    occurred_at: datetime | None
    content_type: str
    payload: bytes
    delay: timedelta | None
    not_before: datetime | None
    own_id: bool
    """Whether the caller gave the id, so that a second publish of it stores nothing."""
