"""Message identity on the wire: what leaves in headers, and how headers that arrive are read.

The same pairs go to every broker; only their container differs (Kafka: a list of byte values, AMQP: a table of text).
"""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Protocol
from uuid import UUID

from outbox_shared.headers import (
    AGGREGATE_ID,
    AGGREGATE_TYPE,
    BAGGAGE,
    CONTENT_TYPE,
    CORRELATION_ID,
    EVENT_ID,
    EVENT_TYPE,
    EVENT_VERSION,
    OCCURRED_AT,
    TRACEPARENT,
    TRACESTATE,
)


class Sendable(Protocol):
    """The part of a stored event that travels in headers."""

    @property
    def id(self) -> UUID: ...
    @property
    def event_type(self) -> str: ...
    @property
    def content_type(self) -> str: ...
    @property
    def aggregate_type(self) -> str | None: ...
    @property
    def aggregate_id(self) -> str | None: ...
    @property
    def correlation_id(self) -> str | None: ...
    @property
    def occurred_at(self) -> datetime | None: ...
    @property
    def version(self) -> int | None: ...
    @property
    def traceparent(self) -> str | None: ...
    @property
    def tracestate(self) -> str | None: ...
    @property
    def baggage(self) -> str | None: ...
    @property
    def headers(self) -> Mapping[str, str]: ...


def format_time(moment: datetime) -> str:
    """Always six digits and a Z: `2026-01-31T12:00:00.000000Z`."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds")[:26] + "Z"


def header_pairs(event: Sendable) -> list[tuple[str, str]]:
    """The headers of the contract, as many as the event has, then the caller's own."""
    # no loop over names: this runs for every event that is sent
    pairs = [
        (EVENT_ID, str(event.id)),
        (EVENT_TYPE, event.event_type),
        (CONTENT_TYPE, event.content_type),
    ]
    if event.aggregate_type is not None:
        pairs.append((AGGREGATE_TYPE, event.aggregate_type))
    if event.aggregate_id is not None:
        pairs.append((AGGREGATE_ID, event.aggregate_id))
    if event.correlation_id is not None:
        pairs.append((CORRELATION_ID, event.correlation_id))
    if event.traceparent is not None:
        pairs.append((TRACEPARENT, event.traceparent))
    if event.tracestate is not None:
        pairs.append((TRACESTATE, event.tracestate))
    if event.baggage is not None:
        pairs.append((BAGGAGE, event.baggage))
    if event.occurred_at is not None:
        pairs.append((OCCURRED_AT, format_time(event.occurred_at)))
    if event.version is not None:
        pairs.append((EVENT_VERSION, str(event.version)))
    if event.headers:
        pairs.extend(event.headers.items())
    return pairs


def kafka_headers(event: Sendable) -> list[tuple[str, str | bytes | None]]:
    """UTF-8 bytes, always; the type is the client's."""
    return [(name, value.encode()) for name, value in header_pairs(event)]


def amqp_headers(event: Sendable) -> dict[str, str]:
    return dict(header_pairs(event))


def read_headers(pairs: Iterable[tuple[object, object]]) -> dict[str, str | bytes]:
    """The last of repeated headers counts, and one with a null value is absent: both happen on real topics.

    Names and values that are bytes become text where they are UTF-8; what is neither text nor bytes becomes its text form.
    """
    last = dict(pairs)
    return {_as_text(name): _as_text_or_bytes(value) for name, value in last.items() if value is not None}


def _as_text(name: object) -> str:
    return name.decode("utf-8", "replace") if isinstance(name, bytes | bytearray) else str(name)


def _as_text_or_bytes(value: object) -> str | bytes:
    if isinstance(value, bytes | bytearray | memoryview):
        raw = bytes(value)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return raw
    return value if isinstance(value, str) else str(value)
