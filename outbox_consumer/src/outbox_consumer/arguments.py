"""Arguments that are given in code, checked as settings are."""

from datetime import timedelta

from outbox_shared.durations import format_duration, parse_duration
from outbox_shared.errors import ConfigurationError


def duration_of(name: str, value: object, *, at_least: timedelta) -> timedelta:
    """A timedelta, or text such as `1h`."""
    try:
        duration = parse_duration(value)
    except ValueError as error:
        raise ConfigurationError(f"{name}: {error}") from None
    if duration < at_least:
        raise ConfigurationError(f"{name}: write {format_duration(at_least)} or more, not {format_duration(duration)}")
    return duration
