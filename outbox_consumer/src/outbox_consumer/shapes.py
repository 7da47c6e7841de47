"""The headers of a message, found by its shape, whatever client delivered it.

No client library is imported: a message of aio-pika is known by its `headers`, one of Pub/Sub by its `attributes`. One small reader
per shape returns the headers by name, or None for "not mine"; a client whose messages look different is one more entry in READERS.

Looking must be harmless, because every argument of a decorated function is looked at: what raises when it is asked (Flask's request
outside of a request) is no message.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from outbox_shared.headers import EVENT_ID
from outbox_shared.wire import headers_by_name

Headers: TypeAlias = Mapping[str, Any]
"""By name, with the values that the client delivered: bytes from Kafka, text from AMQP, None for null."""

_ABSENT = object()


def headers_of(message: object) -> Headers | None:
    """The message's headers; None where no reader knows its shape."""
    for reader in READERS:
        try:
            found = reader(message)
        except Exception:  # noqa: BLE001, S112 - a stranger's attribute, method or mapping may raise anything
            continue
        if found is not None:
            return found
    return None


# One reader per shape, the most frequent first.


def _headers(message: Any) -> Headers | None:
    """confluent-kafka has a method of that name. aiokafka, kafka-python, aio-pika, kombu, FastStream, Celery's requests and pika's
    properties have an attribute; so have most others."""
    headers = getattr(message, "headers", _ABSENT)
    if headers is _ABSENT or isinstance(message, type):
        return None
    if callable(headers):
        headers = headers()
        if inspect.iscoroutine(headers):
            headers.close()  # else Python warns, far from here, that nobody awaited it
    elif len(batch_of(message)) > 1:
        return None
    return headers_by_name(headers)


def _mapping(message: Any) -> Headers | None:
    """A mapping that is the headers, or one that holds them under `headers`."""
    if not isinstance(message, Mapping):
        return None
    inner = headers_by_name(message["headers"]) if EVENT_ID not in message and "headers" in message else None
    return headers_by_name(message) if inner is None else inner


def _pairs(message: Any) -> Headers | None:
    """The headers alone, as Kafka's clients hand them out."""
    return headers_by_name(message) if isinstance(message, list | tuple) and message else None


def _delivery(message: Any) -> Headers | None:
    """A delivery of pika's, as its callbacks, basic_get and consume have it."""
    at = properties_at(message)
    return None if at is None else _headers(message[at])


def _attributes(message: Any) -> Headers | None:
    """Google Pub/Sub."""
    inner = pubsub_message(message)
    return None if inner is None else headers_by_name(inner.attributes)


def _task(message: Any) -> Headers | None:
    """A bound Celery task: `self` there."""
    request = celery_request(message)
    return None if request is None else _headers(request)


READERS: tuple[Callable[[Any], Headers | None], ...] = (_headers, _mapping, _pairs, _delivery, _attributes, _task)


# What makes a shape, for all who must tell it.


def member(thing: Any, name: str) -> Any:
    """An attribute, or None; None also where asking for it raises."""
    try:
        return getattr(thing, name, None)
    except Exception:  # noqa: BLE001 - as above
        return None


def properties_at(message: Any) -> int | None:
    """Where the properties are in (channel, method, properties, body), (method, properties, body), (properties, body) or (method,
    properties). None for every other tuple, above all for several messages: taken for one, the others would be lost."""
    if not isinstance(message, tuple) or not 2 <= len(message) <= 4:
        return None
    found = [index for index, part in enumerate(message) if _has_headers(part)]
    allowed = (0, 1) if len(message) == 2 else (len(message) - 2,)
    return found[0] if len(found) == 1 and found[0] in allowed else None


def _has_headers(part: Any) -> bool:
    try:
        return _headers(part) is not None
    except Exception:  # noqa: BLE001 - as above
        return False


def pubsub_message(message: Any) -> Any:
    """What has the `attributes` beside the `data`: the message itself, or the one in what a pull received. None for anything else."""
    for candidate in (message, member(message, "message")):
        if isinstance(member(candidate, "attributes"), Mapping) and isinstance(member(candidate, "data"), bytes):
            return candidate
    return None


def celery_request(message: Any) -> Any:
    """The request of a bound task; None for anything else that has a `request`."""
    request = member(message, "request")
    return request if isinstance(member(request, "called_directly"), bool) else None


def batch_of(message: Any) -> Sequence[Any]:
    """The messages of a FastStream batch, which shows the headers of the first one as its own; empty for a single message."""
    raw = getattr(message, "raw_message", None)
    return raw if isinstance(raw, tuple | list) else ()
