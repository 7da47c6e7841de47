"""What is being consumed right now: so that a handler that publishes continues the story of the message that it handles.

The consumer sets it around a handler, the publisher reads it. It is a context variable, so it follows awaits and stays out of other
threads. Here alone the two sides meet at run time; neither imports the other.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from outbox_shared import headers as names

_LONGEST = {
    names.CORRELATION_ID: 255,
    names.TRACEPARENT: 255,
    names.TRACESTATE: 512,
    names.BAGGAGE: 8192,
}


@dataclass(frozen=True, slots=True)
class Story:
    """What an event takes over from the one that caused it."""

    correlation_id: str | None = None
    traceparent: str | None = None
    tracestate: str | None = None
    baggage: str | None = None


NO_STORY = Story()

_current: ContextVar[Story] = ContextVar("outbox_consuming", default=NO_STORY)


def current_story() -> Story:
    """Of the message that is being consumed here; empty outside of a handler."""
    return _current.get()


@contextmanager
def consuming(story: Story) -> Iterator[None]:
    """Around a handler: what it publishes continues this story."""
    token = _current.set(story)
    try:
        yield
    finally:
        _current.reset(token)


def story_of(headers: Mapping[str, str | bytes]) -> Story:
    """What can be taken over. A foreign producer's odd value is left behind: it must not make a handler's publish fail."""
    return Story(*(_storable(headers.get(name), longest) for name, longest in _LONGEST.items()))


def _storable(value: str | bytes | None, longest: int) -> str | None:
    if not isinstance(value, str) or not 0 < len(value) <= longest or not value.isprintable():
        return None  # isprintable is also false for NUL, line breaks and lone surrogates
    return value
