"""A payload becomes bytes once, at publish: what is stored is what is sent.

A serializer is anything with a `content_type` that can be called with the payload and what is known about its event.
"""

import json
import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple, Protocol
from uuid import UUID

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, to_json

from outbox_shared.errors import PayloadTooLarge, SerializationError
from outbox_shared.headers import DEFAULT_CONTENT_TYPE
from outbox_shared.wire import format_time


class About(NamedTuple):
    """What a serializer may want to know of the event whose payload it gets."""

    event_id: UUID
    event_type: str
    version: int | None
    occurred_at: datetime | None


class Serializer(Protocol):
    """Makes the bytes that are stored and sent. It raises SerializationError for what it cannot take."""

    @property
    def content_type(self) -> str: ...

    def __call__(self, payload: Any, about: About) -> bytes: ...


class JsonSerializer:
    """JSON by pydantic's rules (models, dataclasses, datetime, UUID, Decimal, Enum); bytes stay as they are."""

    content_type = DEFAULT_CONTENT_TYPE

    def __call__(self, payload: Any, about: About) -> bytes:
        return bytes(payload) if isinstance(payload, bytes | bytearray | memoryview) else json_of(payload)


class EnvelopeSerializer:
    """The payload as `data` in an envelope with `event_id`, `version`, `occurred_at` and `actor`: for consumers that read no headers.

    `actor` is who caused the event: a value, or a function that is asked at each publish. `occurred_at` is the one given at publish,
    else the moment of the publish.
    """

    content_type = DEFAULT_CONTENT_TYPE

    def __init__(self, actor: Any | Callable[[], Any] = None) -> None:
        self._actor = actor

    def __call__(self, payload: Any, about: About) -> bytes:
        if isinstance(payload, bytes | bytearray | memoryview):
            raise SerializationError("an envelope holds JSON, not bytes: pass the data itself, or publish without it")
        envelope = {
            "event_id": str(about.event_id),
            "version": about.version,
            "occurred_at": format_time(about.occurred_at or datetime.now(UTC)),
            "actor": self._actor() if callable(self._actor) else self._actor,
            "data": payload,
        }
        return json_of(envelope)


def bounded(body: Any, limit: int) -> bytes:
    """What a serializer made, if it is bytes and not too many."""
    if not isinstance(body, bytes):
        raise SerializationError(
            f"the serializer returned {type(body).__name__}, not bytes: return json.dumps(…).encode() or the like"
        )
    if len(body) > limit:
        raise PayloadTooLarge(
            f"the payload has {len(body):,} bytes, more than publisher.max-payload allows ({limit:,}): "
            "store the data elsewhere and publish a reference to it, or raise the limit here and at the broker"
        )
    return body


def json_of(payload: Any) -> bytes:
    try:
        body = to_json(payload)
        hides_a_number = b"null" in body and _hides_a_number(payload)
    except (PydanticSerializationError, ValueError, TypeError, RecursionError) as error:
        raise SerializationError(
            f"the payload ({type(payload).__name__}) cannot become JSON: {error}. "
            "Pass a pydantic model, dataclass, dict, list or scalar, or bytes that you encoded yourself"
        ) from error
    if b"NaN" in body or b"Infinity" in body:  # rare, so that only few payloads are looked at twice
        json.loads(body, parse_constant=_refuse_constant, parse_int=str)  # int() refuses numbers of 4,300 digits
    if hides_a_number:
        _refuse_constant("NaN or Infinity")
    return body


def _hides_a_number(payload: Any) -> bool:
    """Whether there is a NaN or Infinity: a pydantic model's JSON says null for it, unless its own configuration chose that."""
    if isinstance(payload, float):
        return not math.isfinite(payload)
    if isinstance(payload, BaseModel):
        # as it is serialized: without excluded fields, with computed ones, after the user's own serializers
        return not _chooses(payload.model_config) and _hides_a_number(payload.model_dump(warnings=False))
    if isinstance(payload, Mapping):
        return any(map(_hides_a_number, payload.values()))
    if isinstance(payload, list | tuple | set | frozenset | deque):
        return any(map(_hides_a_number, payload))
    if is_dataclass(payload) and not isinstance(payload, type):
        if _chooses(getattr(payload, "__pydantic_config__", {})):
            return False
        return any(_hides_a_number(getattr(payload, member.name)) for member in fields(payload))
    return False


def _chooses(config: Mapping[str, Any]) -> bool:
    return "ser_json_inf_nan" in config


def _refuse_constant(name: str) -> None:
    raise SerializationError(f"the payload holds {name}, which JSON does not have: use None or text for it")
