"""Event ids are UUIDs of version 7, made by the client at publish; a lane is the hash bucket of an event's key."""

import re
import zlib
from uuid import UUID

from uuid_utils.compat import uuid7

from outbox_shared.errors import MalformedEventId

LANE_MASK = 1023

_FORM = re.compile(r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}")
_HIGHEST = 2**128 - 1
_SHOWN, _LONGEST = 48, 80


def new_event_id() -> UUID:
    """A fresh id, ordered by time. The client makes it, so a COMMIT whose reply was lost can be checked by id."""
    return uuid7()


def lane_of(key: str | None, event_id: UUID) -> int:
    """Events of one key share a lane. The formula is part of the contract: stored rows depend on it."""
    return zlib.crc32((key or str(event_id)).encode()) & LANE_MASK


def parse_event_id(value: object) -> UUID:
    """The id in a header value: 36 characters, as text or ASCII bytes.

    Either case is read, as both are one id. The other spellings that `UUID` knows (braces, urn:uuid:, no dashes, blanks around) are
    refused: consumers in other languages compare the text, and for them each would be another event.
    """
    found = value if isinstance(value, UUID) else None
    if isinstance(value, str):
        if is_uuid_text(value):
            found = UUID(value)
    elif isinstance(value, bytes | bytearray | memoryview):
        text = bytes(value).decode("latin-1")
        if is_uuid_text(text):
            found = UUID(text)
    if found is None:
        raise MalformedEventId(
            f"outbox_event_id must be a UUID of 36 characters such as 0190f0f0-0000-7000-8000-000000000001, not {_excerpt(value)}"
        )
    if not 0 < found.int < _HIGHEST:
        raise MalformedEventId(
            f"outbox_event_id is {found}, which is what a producer sends that never set it: all its events would count as one"
        )
    return found


def is_uuid_text(text: str) -> bool:
    """Whether it is the 36 characters of a UUID, in either case."""
    return _FORM.fullmatch(text) is not None


def _excerpt(value: object) -> str:
    """Enough to recognise it by, whatever it is and however long."""
    if isinstance(value, str | bytes):
        more = f"… ({len(value):,} in all)" if len(value) > _SHOWN else ""
        return repr(value[:_SHOWN])[:_LONGEST] + more
    if isinstance(value, bytearray | memoryview):
        return _excerpt(bytes(value))
    if isinstance(value, int) and value.bit_length() <= 64:
        return repr(value)
    return f"a {type(value).__name__}"
