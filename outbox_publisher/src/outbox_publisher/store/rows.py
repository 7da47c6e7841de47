"""A claimed row becomes an Event."""

import json
from typing import Any

from sqlalchemy.engine import Row

from outbox_publisher.event import Event

CLAIMED = (
    "id", "seq", "event_type", "topic", "key", "payload", "content_type", "created_at", "next_retry_at", "attempts", "maybe_sent",
    "occurred_at", "version", "aggregate_type", "aggregate_id", "correlation_id", "traceparent", "tracestate", "baggage", "headers",
)  # fmt: skip
"""The columns that a sender needs: fewer than all of them, since a driver's work grows with each."""


def event_of(row: Row[Any]) -> Event:
    values = dict(row._mapping)  # noqa: SLF001 - the public way to a row's names
    values.pop("size", None)  # of a claim that bounds its bytes itself
    own = values.pop("headers")
    return Event(**values, headers=_headers_of(own)) if own else Event(**values)


def _headers_of(text: str) -> dict[str, str]:
    """What is no JSON object becomes a header without a name, which is refused for this row alone: a claim must not fail for it."""
    try:
        headers = json.loads(text)
    except ValueError:
        headers = None
    return headers if isinstance(headers, dict) else {"": text[:100]}


def due_order(event: Event) -> tuple[Any, int]:
    return event.next_retry_at, event.seq
