"""Message identity on the wire: what leaves in headers, and how headers that arrive are read.

The same pairs go to every broker; only their container differs (Kafka: a list of byte values, AMQP: a table of text). Reading is
tolerant of what other producers send and exact about three things: names count as they are spelled, of repeated headers the last one
counts, and a header with a null value is absent, also when it repeats one that had a value.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Protocol
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

_VERSION_DIGITS = 10


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


def headers_by_name(container: Any) -> Mapping[str, Any] | None:
    """Headers in either container, by name, as they came; None for what is no headers. A message without any has none, not null."""
    if container is None:
        return {}
    if isinstance(container, dict):
        for name in container:
            if type(name) is not str:
                return _by_name(list(container.items()))
        return container
    if isinstance(container, Mapping):
        return _by_name(list(container.items()))
    return _by_name(container) if isinstance(container, list | tuple) else None


def _by_name(pairs: list[Any] | tuple[Any, ...]) -> dict[str, Any] | None:
    # in one pass: this runs for every message that is consumed
    found: dict[str, Any] = {}
    for pair in pairs:
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            return None
        name = pair[0]
        if type(name) is not str:
            if isinstance(name, bytes | bytearray):
                name = name.decode("utf-8", "replace")
            elif not isinstance(name, str):
                return None
        found[name] = pair[1]
    return found


def read_headers(by_name: Mapping[str, Any]) -> dict[str, Any]:
    """What a handler gets to see: text where it is text or UTF-8, other bytes as they are, and AMQP's numbers and tables too."""
    return {name: text_or_bytes(value) for name, value in by_name.items() if value is not None}


def text_or_bytes(value: Any) -> Any:
    """Bytes as text if they are UTF-8. Everything else stays what it is."""
    if isinstance(value, bytes | bytearray | memoryview):
        raw = bytes(value)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return raw
    return value


def header_text(value: Any) -> str | None:
    """A header of the contract as text; None for what is none. AMQP's numbers and times have a plain text form, its tables have not."""
    if isinstance(value, str):
        return value
    try:
        if isinstance(value, bytes | bytearray | memoryview):
            return bytes(value).decode()
        is_plain = isinstance(value, int | float | Decimal | UUID | datetime) and not isinstance(value, bool)
        return str(value) if is_plain else None
    except ValueError:  # no UTF-8, or an int of more digits than Python prints
        return None


def read_time(value: Any) -> datetime | None:
    """The moment in an `outbox_occurred_at`, in UTC; None for what is none: nobody's event is refused over it."""
    try:
        moment = value if isinstance(value, datetime) else datetime.fromisoformat(header_text(value) or "")
        return None if moment.utcoffset() is None else moment.astimezone(UTC)  # without a zone it could be anybody's
    except (ValueError, OverflowError):
        return None


def read_version(value: Any) -> int | None:
    """The number in an `outbox_event_version`; None for what is none."""
    text = header_text(value) or ""
    return int(text) if len(text) <= _VERSION_DIGITS and text.isascii() and text.isdecimal() else None
