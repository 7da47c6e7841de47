"""What may stand in an event's text fields: checked at publish, before any SQL.

A NUL or a lone surrogate fails the whole SQL statement that carries it, and a header name with a surrogate crashes Kafka's client.
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from outbox_shared import headers as names
from outbox_shared.durations import parse_duration
from outbox_shared.errors import InvalidHeader, InvalidKey, PublishError

KEY_LENGTH = 512
TEXT_LENGTH = 255
HEADER_BYTES = 32_768
EARLIEST, LATEST = datetime(1000, 1, 1, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC)  # what every database stores
LONGEST_DELAY = timedelta(days=3650)

_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}")


def text_of(name: str, value: Any, longest: int = TEXT_LENGTH, error: type[PublishError] = PublishError) -> str:
    """`value` if every database and broker takes it as text."""
    if not isinstance(value, str):
        raise error(f"{name} must be text, not {type(value).__name__}: write {_as_text(value)}")
    if not value:
        raise error(f"{name} is empty: give it at least one character")
    text: str = str.__str__(value)  # of an Enum that is text, too: drivers would store its name
    if len(text) > longest:
        raise error(f"{name} has {len(text)} characters; at most {longest} fit: shorten it, or send it in the payload")
    if "\x00" in text:
        raise error(
            f"{name} holds a NUL character, which no database stores as text: "
            f"remove it with replace('\\x00', '') from {text[:40]!r}"
        )
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise error(
                f"{name} holds a lone surrogate, which is not Unicode text: "
                f"decode its bytes with errors='replace' instead of {text[:40]!r}"
            ) from None
    return text


def line_of(name: str, value: Any, longest: int = TEXT_LENGTH) -> str:
    """Text that travels as a header: a line break in it could start another one behind the next bridge."""
    text = text_of(name, value, longest)
    if "\n" in text or "\r" in text:
        raise PublishError(f"{name} holds a line break: it is one line, such as {' '.join(text.split())[:40]!r}")
    return text


def label_of(name: str, value: Any, longest: int = TEXT_LENGTH) -> str:
    """Text that is compared: for MySQL `orders` and `orders ` are one."""
    text = text_of(name, value, longest)
    if text[-1].isspace() or text[0].isspace():
        raise PublishError(f"{name} has blanks around it: write {text.strip()!r}, not {text!r}")
    return line_of(name, text, longest)


def key_of(name: str, value: Any) -> str | None:
    """A key as text; None stays None. `""` and `"None"` are what an unflushed primary key turns into."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, str | int | UUID):
        raise InvalidKey(f"{name} takes str, int or UUID, not {type(value).__name__}: write {_as_text(value)}")
    if isinstance(value, int) and value.bit_length() > KEY_LENGTH * 4:  # str() itself refuses the largest
        raise InvalidKey(f"{name} is a number of more digits than the {KEY_LENGTH} that fit: use a shorter one")
    text = str.__str__(value) if isinstance(value, str) else str(int(value) if isinstance(value, int) else value)
    if text in {"", "None"}:
        raise InvalidKey(
            f"{name} is {text!r}: the id is not there yet. Did you flush? Write session.flush() before publish()"
        )
    return text_of(name, text, KEY_LENGTH, InvalidKey)


def headers_of(given: Any) -> dict[str, str]:
    """The caller's own headers, if a broker will take them."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise InvalidHeader(f'headers takes a dict, not {type(given).__name__}: write headers={{"tenant": "acme"}}')
    headers = {_header_name(name): _header_value(name, value) for name, value in given.items()}
    total = sum(len(name) + len(value.encode()) for name, value in headers.items())
    if total > HEADER_BYTES:
        raise InvalidHeader(
            f"the headers have {total:,} bytes together; at most {HEADER_BYTES:,} fit: send the data in the payload"
        )
    return headers


def _header_name(name: Any) -> str:
    if not isinstance(name, str) or not _HEADER_NAME.fullmatch(name):
        raise InvalidHeader(f"header name {repr(name)[:80]}: use up to 128 ASCII letters, digits, '-', '_' or '.'")
    if name.lower() in names.RESERVED:
        raise InvalidHeader(f"header {name!r} is written by the outbox itself: choose another name")
    return str.__str__(name)


def _header_value(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidHeader(f"header {name!r} must be text, not {type(value).__name__}: write {_as_text(value)}")
    if "\r" in value or "\n" in value:
        raise InvalidHeader(f"header {name!r} holds a line break: remove it, or send the text in the payload")
    return text_of(f"header {name!r}", value, HEADER_BYTES, InvalidHeader) if value else ""


def version_of(value: Any) -> int | None:
    if value is None:
        return None
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31:
        return int(value)
    raise PublishError(f"version must be a whole number from 0 to {2**31 - 1}: write an int such as 2")


def moment_of(name: str, value: Any) -> datetime | None:
    """A moment in UTC; one without a time zone could be anybody's.

    Always a plain datetime: PyMySQL writes any subclass by its str(), and libraries have made that another form.
    """
    if value is None:
        return None
    if not isinstance(value, datetime):
        raise PublishError(f"{name} must be a datetime, not {type(value).__name__}: write datetime.now(UTC)")
    if value.utcoffset() is None:
        raise PublishError(f"{name} has no time zone: write datetime.now(UTC)")
    if not EARLIEST <= value < LATEST:
        raise PublishError(f"{name} must lie between the years {EARLIEST.year} and {LATEST.year}, not {value.year}")
    utc = value.astimezone(UTC)
    return datetime.combine(utc.date(), utc.time(), UTC)


def wait_of(value: Any) -> timedelta | None:
    """How long an event waits before it is sent: a timedelta, or text such as `10m`."""
    if value is None:
        return None
    try:
        delay = parse_duration(value)
    except ValueError as error:
        raise PublishError(f"delay: {error}") from None
    if delay > LONGEST_DELAY:
        raise PublishError(f"delay is longer than {LONGEST_DELAY.days} days: that is a plan, not a delay")
    return delay


def _as_text(value: Any) -> str:
    """The advice for what should have been text."""
    if value is None:
        return "it as text, or leave it out"
    return "value.decode()" if isinstance(value, bytes | bytearray) else "str(value)"
