"""What a client's message says beside its headers, under the same names for all of them: key, body, and where it came from.

Nothing here runs where only the id is wanted. What a client does not say is None, and so is what is not of the kind that the name
promises: a stranger's `topic` may be a method, or a Mock.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from outbox_consumer.shapes import Headers, batch_of, celery_request, member, properties_at, pubsub_message
from outbox_shared.headers import CONTENT_TYPE
from outbox_shared.wire import read_headers, text_or_bytes

Get: TypeAlias = Callable[[str], Any]
"""What a message says under a name; None where it says nothing."""

_ABSENT = object()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Delivery:
    """Any client's message. Shown without key, headers and body: those are nobody's business in a log."""

    headers: Mapping[str, Any] = field(repr=False)
    """By name, as they are spelled: text where it is text or UTF-8, else bytes; from AMQP also numbers, times and tables."""

    key: Any = field(default=None, repr=False)
    """Kafka's key or Pub/Sub's ordering key, as text where it is UTF-8. AMQP has none."""

    body: Any = field(default=None, repr=False)
    """As the client delivered it: bytes, or what a deserializer of yours made of them."""

    content_type: str | None = None
    message_id: str | None = None
    """AMQP's or Pub/Sub's own id of the message, which need not be the event's."""

    topic: str | None = None
    """Kafka's topic, or the exchange."""

    routing_key: str | None = None
    partition: int | None = None
    offset: int | None = None
    source: Any = field(default=None, repr=False)
    """The client's message itself, to acknowledge it or to ask it for more."""


def facts_of(message: Any, headers: Headers) -> dict[str, Any]:
    """The fields of a Delivery."""
    get = _asked(message)
    readable = read_headers(headers)
    return {
        "headers": readable,
        "key": text_or_bytes(get("key")),
        "body": _first(get, "value", "body"),
        "content_type": _text(readable.get(CONTENT_TYPE)) or _text(get("content_type")),
        "message_id": _text(get("message_id")),
        "topic": _text(_first(get, "topic", "exchange")),
        "routing_key": _text(get("routing_key")),
        "partition": _number(get("partition")),
        "offset": _number(get("offset")),
        "source": message,
    }


def _asked(message: Any) -> Get:
    """What the message says; what it minds being asked, it does not say."""
    try:
        getter = _getter(message)
    except Exception:  # noqa: BLE001 - a stranger's attribute may raise anything
        return _silent

    def get(name: str) -> Any:
        try:
            return getter(name)
        except Exception:  # noqa: BLE001 - as above, and a method that wants arguments is another's
            return None

    return get


def _silent(name: str) -> None:
    """A list of pairs says nothing beside them."""
    del name


# One getter per shape.


def _getter(message: Any) -> Get:
    if member(message, "raw_message") is not None:
        return _stream(message)
    return _client(message)


def _client(message: Any) -> Get:
    headers = getattr(message, "headers", _ABSENT)
    if callable(headers):
        return lambda name: getattr(message, name)()  # confluent-kafka
    if headers is not _ABSENT:
        return _attributes(message)
    if isinstance(message, Mapping):
        return message.get
    if (at := properties_at(message)) is not None:
        return _delivery(message, at)
    if (inner := pubsub_message(message)) is not None:
        return _pubsub(inner)
    if (request := celery_request(message)) is not None:
        return _attributes(request)
    return _silent


def _attributes(message: Any) -> Get:
    """aiokafka, kafka-python, aio-pika, pika's properties; kombu and Celery keep some of it in two tables."""
    tables = [table for name in ("delivery_info", "properties") if isinstance(table := member(message, name), Mapping)]

    def get(name: str) -> Any:
        value = member(message, name)
        for table in tables:
            value = table.get(name) if value is None else value
        return value

    return get


def _stream(message: Any) -> Get:
    """FastStream: body and headers are its own, as its middlewares left them; the rest is said by the client's message in it. So is
    the message id, in whose place FastStream puts a random one."""
    batch = batch_of(message)
    raw = _client(batch[0] if batch else message.raw_message)

    def get(name: str) -> Any:
        if name in {"value", "body"}:
            return message.body[0] if batch else message.body
        return message.content_type if name == "content_type" else raw(name)

    return get


def _delivery(message: tuple[Any, ...], at: int) -> Get:
    """pika: (channel, method, properties, body), or a part of it."""
    properties = message[at]
    method = message[at - 1] if at else None
    body = message[at + 1] if at + 1 < len(message) else None

    def get(name: str) -> Any:
        if name == "body":
            return body
        value = member(properties, name)
        return member(method, name) if value is None else value

    return get


def _pubsub(message: Any) -> Get:
    """Google Pub/Sub."""
    says = {"body": message.data, "key": message.ordering_key or None, "message_id": message.message_id}
    return says.get


def _first(get: Get, *names: str) -> Any:
    return next((value for name in names if (value := get(name)) is not None), None)


def _text(value: Any) -> str | None:
    return value or None if isinstance(value, str) else None


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
