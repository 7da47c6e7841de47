"""What may stand in an event's text fields: checked at publish, before any SQL.

A NUL or a lone surrogate fails the whole SQL statement that carries it, and a header name with a surrogate crashes Kafka's client.
"""

import re
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from outbox_shared import headers as names
from outbox_shared.errors import InvalidHeader, InvalidKey, PublishError

KEY_LENGTH = 512
TEXT_LENGTH = 255
HEADER_BYTES = 32_768

_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}")


def text_of(name: str, value: Any, longest: int = TEXT_LENGTH, error: type[PublishError] = PublishError) -> str:
    """`value` if every database and broker takes it as text."""
    if not isinstance(value, str):
        raise error(f"{name} must be text, not {type(value).__name__}")
    if not value:
        raise error(f"{name} is empty")
    if len(value) > longest:
        raise error(f"{name} has {len(value)} characters; at most {longest} fit")
    if "\x00" in value:
        raise error(f"{name} holds a NUL character, which no database stores as text: {value[:40]!r}")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise error(f"{name} holds a lone surrogate, which is not Unicode text: {value[:40]!r}") from None
    return value


def key_of(name: str, value: Any) -> str | None:
    """A key as text; None stays None. `""` and `"None"` are what an unflushed primary key turns into."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, str | int | UUID):
        raise InvalidKey(f"{name} takes str, int or UUID, not {type(value).__name__}")
    text = str(value)
    if text in {"", "None"}:
        raise InvalidKey(
            f"{name} is {text!r}: the id is not there yet. Did you flush? Write session.flush() before publish()"
        )
    return text_of(name, text, KEY_LENGTH, InvalidKey)


def headers_of(given: Mapping[Any, Any] | None) -> dict[str, str]:
    """The caller's own headers, if a broker will take them."""
    if not given:
        return {}
    total = 0
    for name, value in given.items():
        if not isinstance(name, str) or not _HEADER_NAME.fullmatch(name):
            raise InvalidHeader(f"header name {name!r}: use up to 128 ASCII letters, digits, '-', '_' or '.'")
        if name.lower() in names.RESERVED:
            raise InvalidHeader(f"header {name!r} is written by the outbox itself: choose another name")
        if not isinstance(value, str):
            raise InvalidHeader(f"header {name!r} must be text, not {type(value).__name__}: write str(...)")
        if "\r" in value or "\n" in value:
            raise InvalidHeader(f"header {name!r} holds a line break")
        if value:
            text_of(f"header {name!r}", value, HEADER_BYTES, InvalidHeader)
        total += len(name) + len(value.encode())
    if total > HEADER_BYTES:
        raise InvalidHeader(f"the headers have {total:,} bytes together; at most {HEADER_BYTES:,} fit")
    return dict(given)
