"""Where the next claim of a type may begin, so that a long backlog costs no more at its end than at its beginning. Pure.

What has been claimed and settled leaves dead entries at the front of the due index, and a claim that begins there reads past all of them.
So it begins where the last one ended. But rows may come to stand before that place: a transaction that began earlier commits later, and
what was given back keeps its time. Therefore each type is looked at from its start again every second; where that takes long because
dead entries cannot be removed (somebody holds an old snapshot), as seldom as to cost a tenth of the time.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from outbox_publisher.event import Event
from outbox_publisher.store import Place

FROM_THE_START = 1.0
"""Seconds between two claims of a type from its start, at least."""
SHARE = 10
"""And so many times as long as the last of them took."""
CARE = timedelta(seconds=2)
"""After a short batch the next claim begins so much before the newest row seen: most transactions commit within that time."""


@dataclass(slots=True)
class _Known:
    behind: Place | None = None
    newest: Place | None = None
    """The last row that was claimed."""
    start_again_at: float = 0.0


@dataclass(slots=True)
class Hints:
    """In one worker's memory; `now` is its monotonic clock."""

    _types: dict[str, _Known] = field(default_factory=dict)

    def behind(self, event_type: str, now: float) -> Place | None:
        """The place behind which to claim; None is from the start."""
        known = self._types.get(event_type)
        return None if known is None or now >= known.start_again_at else known.behind

    def claimed(
        self, event_type: str, events: Sequence[Event], *, full: bool, began: float, now: float, from_the_start: bool
    ) -> None:
        """A claim that began at `began` has brought these rows, in their order."""
        known = self._types.setdefault(event_type, _Known())
        if from_the_start:
            known.start_again_at = now + max(FROM_THE_START, SHARE * (now - began))
        if events and events[-1].next_retry_at is not None:
            known.newest = Place(events[-1].next_retry_at, events[-1].seq)
        if full:
            known.behind = known.newest
        elif known.newest is not None:
            known.behind = Place(known.newest.next_retry_at - CARE, 0)

    def forget(self, event_type: str) -> None:
        """Rows were given back, or a single one is wanted: begin at the start."""
        self._types.pop(event_type, None)

    def forget_all(self) -> None:
        self._types.clear()
