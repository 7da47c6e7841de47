"""What a consumer needs to know of a message, decided from its headers alone."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from outbox_shared.context import NO_STORY, Story, story_of
from outbox_shared.headers import (
    AGGREGATE_ID,
    AGGREGATE_TYPE,
    BAGGAGE,
    CORRELATION_ID,
    EVENT_ID,
    EVENT_TYPE,
    TRACEPARENT,
    TRACESTATE,
)
from outbox_shared.ids import parse_event_id
from outbox_shared.wire import header_text

_STORY = (CORRELATION_ID, TRACEPARENT, TRACESTATE, BAGGAGE)


@dataclass(frozen=True, slots=True)
class Identity:
    """The event that a message carries."""

    event_id: UUID
    event_type: str | None
    story: Story = NO_STORY
    """What an event that its handler publishes takes over."""
    aggregate_type: str | None = None
    aggregate_id: str | None = None


class Identified:
    """A message that knows its own identity; nobody looks at its headers."""

    __slots__ = ()

    @property
    def identity(self) -> Identity:
        raise NotImplementedError


def id_in(headers: Mapping[str, Any]) -> UUID | None:
    """The id that the headers name; None where they name none, MalformedEventId where it is no UUID."""
    value = headers.get(EVENT_ID)
    return None if value is None else parse_event_id(value)


def type_in(headers: Mapping[str, Any]) -> str | None:
    value = headers.get(EVENT_TYPE)
    # it is for people to read and for routes to compare: one that is no UTF-8 is shown, and matches none
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else header_text(value)


def identity_with(event_id: UUID, headers: Mapping[str, Any]) -> Identity:
    """The identity of an event whose id is known; the rest is in the headers."""
    told = {name: text for name in _STORY if name in headers and (text := header_text(headers[name])) is not None}
    story = story_of(told) if told else NO_STORY
    return Identity(
        event_id, type_in(headers), story, _text_in(headers, AGGREGATE_TYPE), _text_in(headers, AGGREGATE_ID)
    )


def _text_in(headers: Mapping[str, Any], name: str) -> str | None:
    return header_text(headers[name]) if name in headers else None
