"""Which event a message carries: its id and type, read from the headers of whatever the broker's client hands over.

This runs for every message, so it decodes the few headers that it needs and leaves the rest alone; `Incoming.of` reads all of them.
"""

from collections.abc import Iterable

from outbox_consumer.delivery import Delivery, facts_of
from outbox_consumer.explain import no_id, several, unknown_shape
from outbox_consumer.foreign import IdFrom, foreign_id
from outbox_consumer.identity import Identified, Identity, id_in, identity_with, type_in
from outbox_consumer.shapes import headers_of, member, properties_at
from outbox_shared.errors import MissingEventId
from outbox_shared.headers import EVENT_ID


def identify(message: object, id_from: IdFrom | None = None) -> Identity:
    """The event in this message; MissingEventId or MalformedEventId say what was found instead.

    `id_from` is asked for messages of producers that set no outbox_event_id.
    """
    if isinstance(message, Identified):
        return message.identity
    headers = headers_of(message)
    if headers is None:
        raise MissingEventId(unknown_shape(message))
    event_id = id_in(headers)
    if event_id is None and id_from is not None:
        event_id = foreign_id(id_from, Delivery(**facts_of(message, headers)), type_in(headers))
    if event_id is None:
        raise MissingEventId(no_id(message, headers, asked=id_from is not None))
    return identity_with(event_id, headers)


def find_message(candidates: Iterable[object]) -> object | None:
    """The message among several arguments: the one with an event id, else one that has headers at all, else one that is several."""
    arguments = list(candidates)
    with_headers = None
    for index, candidate in enumerate(arguments):
        headers = headers_of(candidate)
        if isinstance(candidate, Identified) or (headers is not None and EVENT_ID in headers):
            return _whole(arguments, index)
        if headers is not None and with_headers is None:
            with_headers = index
    if with_headers is not None:
        return _whole(arguments, with_headers)
    return next(filter(several, arguments), None)  # to be refused with its own reason


def _whole(arguments: list[object], index: int) -> object:
    """The argument, or the delivery of pika's (method, properties, body) that it is the middle of: key and body belong to it."""
    around = tuple(arguments[max(index - 1, 0) : index + 2])
    if len(around) == 3 and isinstance(around[2], bytes) and member(around[0], "delivery_tag") is not None:
        return around if properties_at(around) == 1 else arguments[index]
    return arguments[index]
