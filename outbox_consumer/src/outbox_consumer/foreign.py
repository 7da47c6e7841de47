"""Ids for events of producers that know nothing of the outbox: a hook finds what tells their events apart.

    IdempotentConsumer(sessions, name="billing", id_from=id_from_headers("ce_source", "ce_id"))
    IdempotentConsumer(sessions, name="billing", id_from=lambda message: f"payments:{message.message_id}")

A UUID is the event's id as it is. Text becomes one: uuid5 over the event's type, if it has any, and the text, as `publish` does with an
idempotency key. So two types with equal texts are two events; two producers with equal texts and no types are one, unless the hook
says which producer it was. The consumer's name is not in it: the mark's key holds the name anyway, and one event has one id everywhere.
"""

import inspect
import json
from collections.abc import Callable
from typing import Any, TypeAlias
from uuid import UUID, uuid5

from outbox_consumer.delivery import Delivery
from outbox_shared.errors import MalformedEventId, MissingEventId
from outbox_shared.ids import is_uuid_text

IdFrom: TypeAlias = Callable[[Delivery], UUID | str | None]
"""Is asked for messages without an outbox_event_id. None: this message has no id either."""

_NAMESPACE = UUID("831da969-06df-4eff-a7de-cd837e929d9d")
_UNSET = frozenset({"", "none", "null", "undefined"})
"""What a variable that was never set turns into; all its events would count as one."""


def id_from_headers(*names: str) -> IdFrom:
    """A hook that takes the values of these headers together; without one of them the message has no id."""
    given: tuple[object, ...] = names
    if not given or not all(isinstance(name, str) and name for name in given):
        raise TypeError('id_from_headers takes names of headers, such as id_from_headers("ce_source", "ce_id")')

    def id_from(message: Delivery) -> str | None:
        values = [message.headers.get(name) for name in names]
        if any(value is None for value in values):
            return None
        texts = [_text(_as_text(name, value)) for name, value in zip(names, values, strict=True)]
        return texts[0] if len(texts) == 1 else json.dumps(texts)

    return id_from


def checked_id_from(id_from: Any) -> IdFrom | None:
    """The hook, if it can be one: before the first message arrives."""
    if id_from is None or (callable(id_from) and not inspect.iscoroutinefunction(id_from)):
        checked: IdFrom | None = id_from
        return checked
    if isinstance(id_from, str):
        raise TypeError(f"id_from is a function: write id_from=id_from_headers({id_from[:64]!r})")
    why = "cannot be async, it is asked inside of every kind of consumer" if callable(id_from) else "is a function"
    raise TypeError(f'id_from {why}: write id_from=lambda message: message.headers.get("x-id")')


def foreign_id(id_from: IdFrom, delivery: Delivery, event_type: str | None) -> UUID | None:
    """What the hook finds, as an id. Its KeyError says that there is none, its ValueError that it is no id; others come out unchanged."""
    try:
        return derived_id(id_from(delivery), event_type)
    except LookupError as error:
        raise MissingEventId(f"id_from found no id in this message: {type(error).__name__}") from error
    except ValueError as error:
        if isinstance(error, MalformedEventId | MissingEventId):
            raise
        raise MalformedEventId(f"id_from could not read an id in this message: {type(error).__name__}") from error


def derived_id(found: object, event_type: str | None) -> UUID | None:
    """The id of an event for which a hook returned this; None for None. Pure: the same everywhere and for ever."""
    if found is None:
        return None
    if isinstance(found, UUID):
        if found.int == 0:
            raise MalformedEventId("id_from returned the UUID of zeros: all such events would count as one")
        return found
    if isinstance(found, str):
        # as JSON: no type and text can be put together so that they read like another pair
        return uuid5(_NAMESPACE, json.dumps([event_type, _text(found)]))
    if inspect.iscoroutine(found):
        found.close()
    raise MalformedEventId(
        f"id_from returned a {type(found).__name__}: return a UUID, text, or None where there is no id"
    )


def _text(text: str) -> str:
    if text.strip().lower() in _UNSET:
        raise MalformedEventId(
            f"the id that id_from found is {text[:16]!r}, which is no id: all such events would count as one. "
            "Return None where there is none"
        )
    return text.lower() if is_uuid_text(text) else text  # either case is one id


def _as_text(name: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, int | UUID) and not isinstance(value, bool):
        return str(value)
    # bytes that are no UTF-8 would become the same text as others
    raise MalformedEventId(f"the header {name[:64]!r} is a {type(value).__name__} and no text, so it is no id")
