"""Event ids are UUIDs of version 7, made by the client at publish; a lane is the hash bucket of an event's key."""

import zlib
from uuid import UUID

from uuid_utils.compat import uuid7

from outbox_shared.errors import MalformedEventId

LANE_MASK = 1023


def new_event_id() -> UUID:
    """A fresh id, ordered by time. The client makes it, so a COMMIT whose reply was lost can be checked by id."""
    return uuid7()


def lane_of(key: str | None, event_id: UUID) -> int:
    """Events of one key share a lane. The formula is part of the contract: stored rows depend on it."""
    return zlib.crc32((key or str(event_id)).encode()) & LANE_MASK


def parse_event_id(value: object) -> UUID:
    """The id in a header value: 36 characters, as text or ASCII bytes. Other spellings of a UUID would be other ids elsewhere."""
    if isinstance(value, UUID):
        return value
    try:
        text = bytes(value).decode("ascii") if isinstance(value, bytes | bytearray | memoryview) else value
        if isinstance(text, str) and str(found := UUID(text)) == text.lower():
            return found
    except ValueError:
        pass
    shown = repr(value)
    raise MalformedEventId(
        f"outbox_event_id must be a UUID of 36 characters such as 0190f0f0-0000-7000-8000-000000000001, not {shown[:80]}"
    )
