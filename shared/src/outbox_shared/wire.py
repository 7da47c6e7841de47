"""Message identity on the wire: what leaves in headers, and how headers that arrive are read.

The same pairs go to every broker; only their container differs (Kafka: a list of byte values, AMQP: a table of text).
"""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Protocol
from uuid import UUID

from outbox_shared import headers as names


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
    pairs = [
        (names.EVENT_ID, str(event.id)),
        (names.EVENT_TYPE, event.event_type),
        (names.CONTENT_TYPE, event.content_type),
    ]
    for name, value in (
        (names.AGGREGATE_TYPE, event.aggregate_type),
        (names.AGGREGATE_ID, event.aggregate_id),
        (names.CORRELATION_ID, event.correlation_id),
        (names.TRACEPARENT, event.traceparent),
        (names.TRACESTATE, event.tracestate),
        (names.BAGGAGE, event.baggage),
    ):
        if value is not None:
            pairs.append((name, value))
    if event.occurred_at is not None:
        pairs.append((names.OCCURRED_AT, format_time(event.occurred_at)))
    if event.version is not None:
        pairs.append((names.EVENT_VERSION, str(event.version)))
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
