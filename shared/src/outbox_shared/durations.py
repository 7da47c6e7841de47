"""Durations with their unit: `500ms`, `10s`, `1h30m`, `7d` at every border, `timedelta` inside.

A bare number is refused, except 0: nobody can tell whether 500 means seconds or milliseconds.
"""

import re
from datetime import timedelta
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer

_UNITS = {"us": 1, "ms": 1_000, "s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000}
_PART = re.compile(r"(\d+(?:\.\d+)?)(us|ms|s|m|h|d)")
_WHOLE = re.compile(rf"(?:{_PART.pattern})+")


def parse_duration(value: Any) -> timedelta:
    """Read a duration; a ValueError says how to write one."""
    if isinstance(value, timedelta):
        duration = value
    elif value == 0 and not isinstance(value, bool):
        duration = timedelta(0)
    else:
        text = value.strip().lower().replace(" ", "") if isinstance(value, str) else ""
        if text == "0":
            return timedelta(0)
        if not _WHOLE.fullmatch(text):
            raise ValueError(f"write a duration with its unit, such as 500ms, 10s, 5m, 2h or 7d, not {value!r}")
        try:
            duration = timedelta(microseconds=sum(float(n) * _UNITS[unit] for n, unit in _PART.findall(text)))
        except OverflowError as error:
            raise ValueError(f"{value!r} is longer than any duration can be") from error
    if duration < timedelta(0):
        raise ValueError(f"a duration cannot be negative: {value!r}")
    return duration


def format_duration(duration: timedelta) -> str:
    """The shortest exact form: `timedelta(seconds=90)` is `1m30s`."""
    rest = duration // timedelta(microseconds=1)
    parts = []
    for unit in ("d", "h", "m", "s", "ms", "us"):
        count, rest = divmod(rest, _UNITS[unit])
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


Duration = Annotated[
    timedelta,
    BeforeValidator(parse_duration, json_schema_input_type=str),
    PlainSerializer(format_duration, return_type=str, when_used="json"),
]
"""A pydantic field that takes `500ms` or a timedelta and holds a timedelta."""
