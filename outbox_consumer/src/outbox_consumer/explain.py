"""Why a message has no event id, in words that say what to pass or set instead. Bounded, and never with anything of the payload."""

import re
from collections.abc import Iterable, Mapping

from outbox_consumer.shapes import Headers, batch_of, headers_of, member
from outbox_shared.headers import EVENT_ID

_SHOWN = 8
_PLAIN = re.compile(r"[A-Za-z0-9_.:/-]{1,64}")
_LONGEST_REPORT = 200


def unknown_shape(message: object) -> str:
    """No headers were found on it."""
    if message is None:
        return "None is no message: poll() returned nothing within its timeout, so there is nothing to consume; skip it"
    if isinstance(message, tuple) and 2 <= len(message) <= 4 and all(part is None for part in message):
        return "this is no message: basic_get or consume found the queue empty, so there is nothing to consume; skip it"
    if batch := several(message):
        return (
            f"this {type(message).__name__} holds {batch} messages, and each is an event of its own: "
            "pass them one by one, or a list of them to consume_batch"
        )
    return (
        f"cannot find headers on a {type(message).__name__}: pass the message as the broker's client delivered it, "
        f"a mapping of its headers such as {{{EVENT_ID!r}: …}}, or an object with `headers`"
    )


def no_id(message: object, headers: Headers, *, asked: bool) -> str:
    """It has headers, and the id is not among them; nor did a hook that was asked know another."""
    report = None if headers else _error_report(message)
    if report is not None:
        return f"this is not a message but an error report, {report}: look at message.error() before you consume it"
    found_no_other = ", and id_from found no other" if asked else ""
    return (
        f"the message has no {EVENT_ID} header{found_no_other} (its headers: {_names(headers)}), so no duplicate of it could be told. "
        f"{_misspelt(headers)}The producer must set {EVENT_ID} to the event's UUID; outbox_publisher does. "
        "For a producer that knows nothing of it there is id_from=…"
    )


def several(message: object) -> int:
    """How many messages it is, where it is several."""
    try:
        parts = list(_parts(message))
    except Exception:  # noqa: BLE001 - a stranger's attribute or mapping may raise anything
        return 0
    return len(parts) if parts and all(map(_is_message, parts[:_SHOWN])) else 0


def _parts(message: object) -> Iterable[object]:
    if isinstance(message, Mapping):  # kafka-python's poll() returns lists of records by partition
        return [part for some in message.values() if isinstance(some, list | tuple) for part in some]
    return message if isinstance(message, list | tuple) else batch_of(message)


def _is_message(part: object) -> bool:
    return EVENT_ID in (headers_of(part) or ()) or member(part, "headers") is not None


def _error_report(message: object) -> str | None:
    error = member(message, "error")
    try:
        report = error() if callable(error) else None
        return None if report is None else str(report)[:_LONGEST_REPORT]
    except Exception:  # noqa: BLE001 - a stranger's method may raise anything
        return None


def _names(headers: Headers) -> str:
    """Names of headers only: the keys of a payload that was passed in their place can be anything."""
    shown = sorted(filter(_PLAIN.fullmatch, headers))[:_SHOWN]
    others = len(headers) - len(shown)
    return ", ".join([*shown, f"… {others} more"] if others else shown) or "none"


def _misspelt(headers: Headers) -> str:
    """Brokers keep names as they are, HTTP does not."""
    for name in headers:
        if _PLAIN.fullmatch(name) and name.lower().replace("-", "_") == EVENT_ID and name != EVENT_ID:
            return f"Names count as they are spelled, and {name} is another one. "
    return ""
