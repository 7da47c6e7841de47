"""A claimed row becomes an Event."""

import json
from collections.abc import Sequence
from operator import attrgetter
from typing import Any

from outbox_publisher.event import NO_HEADERS, Event

CLAIMED = Event._fields
"""The columns that a sender needs, in an Event's own order: fewer than all of them, since a driver's work grows with each."""

DUE_ORDER = attrgetter("next_retry_at", "seq")
"""The order in which a claim takes rows."""

_ALL_BUT_HEADERS = len(CLAIMED) - 1


def event_of(row: Sequence[Any]) -> Event:
    """The row begins with the columns of CLAIMED; what comes behind them is of no interest here."""
    own = row[_ALL_BUT_HEADERS]
    headers = _headers_of(own) if own else NO_HEADERS
    return tuple.__new__(Event, (*row[:_ALL_BUT_HEADERS], headers))  # Event(…) itself takes twice as long


def _headers_of(text: str) -> dict[str, str]:
    """What is no JSON object becomes a header without a name, which is refused for this row alone: a claim must not fail for it."""
    try:
        headers = json.loads(text)
    except ValueError:
        headers = None
    return headers if isinstance(headers, dict) else {"": text[:100]}
