"""For how long a publisher goes on sending an event: a copy that was delivered early on may be followed by another one as late as that.

The publisher knows its own settings. A consumer reads them where one file holds both, as far as they can be read: mistakes are for the
publisher to tell.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from outbox_shared.durations import parse_duration
from outbox_shared.settings_keys import merged


@dataclass(frozen=True, slots=True)
class Retries:
    """`max-retries` and `backoff` of a delivery, with the publisher's defaults."""

    max_retries: int = 3
    enabled: bool = True
    delay: timedelta = timedelta(seconds=10)
    multiplier: float = 3.0
    max_delay: timedelta = timedelta(hours=1)
    jitter: float = 0.1

    def last(self) -> timedelta:
        """From the first send to the last one, at the longest."""
        longest = self.max_delay if self.enabled else self.delay
        total, pause, left = timedelta(0), min(self.delay, longest), self.max_retries
        while left > 0 and timedelta(0) < pause < longest and self.multiplier > 1:
            total, left = total + pause, left - 1
            pause = longest if pause > longest / self.multiplier else pause * self.multiplier
        return (total + pause * left) * (1 + self.jitter)


DEFAULTS = Retries()


def retries_of(section: Any) -> Iterator[tuple[str, timedelta]]:
    """Of a publisher's section as it was read: what it is called, and for how long it goes on."""
    if not isinstance(section, Mapping):
        return
    defaults, events = _block(section, "defaults"), _block(section, "events")
    yield "the retries of publisher.defaults", _read(defaults).last()
    for name in events:
        yield f"the retries of publisher.events.{name}", _read(merged(defaults, _block(events, name))).last()


def _read(delivery: Mapping[str, Any]) -> Retries:
    backoff = _block(delivery, "backoff")
    return Retries(
        max_retries=int(_number(delivery.get("max_retries"), DEFAULTS.max_retries)),
        enabled=str(backoff.get("enabled", True)).lower() not in {"false", "no", "off", "0"},
        delay=_duration(backoff.get("delay"), DEFAULTS.delay),
        multiplier=_number(backoff.get("multiplier"), DEFAULTS.multiplier),
        max_delay=_duration(backoff.get("max_delay"), DEFAULTS.max_delay),
        jitter=_number(backoff.get("jitter"), DEFAULTS.jitter),
    )


def _block(section: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """In any spelling: what stands below an event type's name is not normalised."""
    found = section.get(name)
    if not isinstance(found, Mapping):
        return {}
    return found if name == "events" else {str(key).replace("-", "_"): value for key, value in found.items()}


def _number(value: Any, default: float) -> float:
    try:
        return default if value is None else float(value)
    except (TypeError, ValueError):
        return default


def _duration(value: Any, default: timedelta) -> timedelta:
    try:
        return default if value is None else parse_duration(value)
    except ValueError:
        return default
