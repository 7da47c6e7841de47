"""Which event a message carries: its id and type, read from the headers of whatever the broker's client hands over.

No client library is imported. A message is known by its shape, one small reader per shape: each returns the headers, or None for
"not mine". A client whose messages look different is one more entry in READERS. What a reader finds is read by the wire contract:
the last of repeated headers counts, and a header with a null value is absent.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from outbox_consumer.identity import Identity
from outbox_shared.context import story_of
from outbox_shared.errors import MissingEventId
from outbox_shared.headers import EVENT_ID, EVENT_TYPE
from outbox_shared.ids import parse_event_id
from outbox_shared.wire import read_headers

Pairs: TypeAlias = Iterable[tuple[object, object]]

_SHOWN = 8


def identify(message: object) -> Identity:
    """The event in this message; MissingEventId or MalformedEventId say what was found instead."""
    found = headers_of(message)
    if found is None:
        raise MissingEventId(_unknown_shape(message))
    if EVENT_ID not in found:
        raise MissingEventId(_no_id(message, found))
    return Identity(parse_event_id(found[EVENT_ID]), _text(found.get(EVENT_TYPE)), story_of(found))


def headers_of(message: object) -> dict[str, str | bytes] | None:
    """The message's headers by name; None where no reader knows its shape."""
    for reader in READERS:
        pairs = reader(message)
        if pairs is not None:
            return read_headers(pairs)
    return None


def find_message(candidates: Iterable[object]) -> object | None:
    """The first of several arguments that is a message: one with an event id, else one that has headers at all."""
    with_headers = None
    for candidate in candidates:
        found = headers_of(candidate)
        if found is None:
            continue
        if EVENT_ID in found:
            return candidate
        with_headers = candidate if with_headers is None else with_headers
    return with_headers


# One reader per shape.


def _mapping(message: Any) -> Pairs | None:
    """A mapping that is the headers, or one that holds them under `headers`."""
    if not isinstance(message, Mapping):
        return None
    if EVENT_ID not in message and "headers" in message:
        inner = _pairs(message["headers"])
        if inner is not None:
            return inner
    return _pairs(message)


def _list_of_pairs(message: Any) -> Pairs | None:
    """The headers alone, as Kafka clients hand them out."""
    return _pairs(message) if isinstance(message, list | tuple) and message else None


def _headers_method(message: Any) -> Pairs | None:
    """confluent-kafka: `message.headers()` is a list of pairs, or None for a message without any."""
    method = getattr(message, "headers", None)
    if isinstance(message, type) or not callable(method):
        return None
    try:
        return _pairs(method())
    except TypeError:  # a method of that name that wants arguments belongs to something else
        return None


def _headers_attribute(message: Any) -> Pairs | None:
    """Most other clients: `message.headers` is a mapping or a list of pairs, or None for a message without any."""
    if isinstance(message, type) or not hasattr(message, "headers"):
        return None
    return _pairs(message.headers)


READERS: tuple[Callable[[Any], Pairs | None], ...] = (_mapping, _list_of_pairs, _headers_method, _headers_attribute)


def _pairs(headers: Any) -> Pairs | None:
    """Headers in either container; None for anything else. A message with no headers has none, which is not an unknown shape."""
    if headers is None:
        return ()
    pairs = list(headers.items()) if isinstance(headers, Mapping) else headers
    if not isinstance(pairs, list | tuple) or not all(map(_is_pair, pairs)):
        return None
    return pairs


def _is_pair(item: object) -> bool:
    return isinstance(item, list | tuple) and len(item) == 2 and isinstance(item[0], str | bytes)


def _text(value: str | bytes | None) -> str | None:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _unknown_shape(message: object) -> str:
    if message is None:
        return "None is no message: poll() returned nothing within its timeout, so there is nothing to consume; skip it"
    return (
        f"cannot find headers on a {type(message).__name__}: pass the message as the broker's client delivered it, "
        f"a mapping of its headers such as {{{EVENT_ID!r}: …}}, or an object with `headers`"
    )


def _no_id(message: Any, found: Mapping[str, object]) -> str:
    error = getattr(message, "error", None)
    report = error() if callable(error) and not found else None
    if report is not None:
        return f"this is not a message but an error report, {report}: look at message.error() before you consume it"
    names = sorted(found)
    shown = ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")
    return (
        f"the message has no {EVENT_ID} header (its headers: {shown or 'none'}), so no duplicate of it could be told. "
        f"The producer must set {EVENT_ID} to the event's UUID; outbox_publisher does"
    )
