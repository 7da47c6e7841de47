"""A payload becomes bytes once, at publish: what is stored is what is sent."""

import json
from typing import Any

from pydantic_core import PydanticSerializationError, to_json

from outbox_shared.errors import PayloadTooLarge, SerializationError


def serialize(payload: Any, limit: int) -> bytes:
    """JSON by pydantic's rules (models, dataclasses, datetime, UUID, Decimal, Enum); bytes stay as they are."""
    body = bytes(payload) if isinstance(payload, bytes | bytearray | memoryview) else _to_json(payload)
    if len(body) > limit:
        raise PayloadTooLarge(
            f"the payload has {len(body):,} bytes, more than publisher.max-payload allows ({limit:,}): "
            "store the data elsewhere and publish a reference to it, or raise the limit here and at the broker"
        )
    return body


def _to_json(payload: Any) -> bytes:
    try:
        body = to_json(payload)
    except (PydanticSerializationError, ValueError, TypeError, RecursionError) as error:
        raise SerializationError(
            f"the payload ({type(payload).__name__}) cannot become JSON: {error}. "
            "Pass a pydantic model, dataclass, dict, list or scalar, or bytes that you encoded yourself"
        ) from error
    if b"NaN" in body or b"Infinity" in body:  # rare, so that only these few are looked at twice
        json.loads(body, parse_constant=_refuse_constant)
    return body


def _refuse_constant(name: str) -> None:
    raise SerializationError(f"the payload holds {name}, which JSON does not have: use None or text for it")
