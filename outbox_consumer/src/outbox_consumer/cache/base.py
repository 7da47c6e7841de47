"""The seam between a consumer and its caches.

None of the methods raises, and none waits for long: a cache that is away knows nothing. An id is remembered only when the outermost
COMMIT has returned: written earlier, a crash would leave an id that nobody has consumed.

`consumer` is the name under which ids are kept apart. A consumer puts the epoch of its database in front of it (`cache/lookups.py`).

A cache may also have `ttl`, a timedelta: how long it remembers an id at most; and `immediate`, a Cache: the part of it that answers
without I/O, itself or another one. Async consumers ask `immediate` on the event loop and everything else in a thread.
"""

from collections.abc import Collection
from datetime import timedelta
from typing import Protocol
from uuid import UUID

from outbox_shared.durations import format_duration
from outbox_shared.errors import ConfigurationError


class Cache(Protocol):
    def known(self, consumer: str, ids: Collection[UUID]) -> set[UUID]:
        """Those that this consumer has certainly consumed. One round trip, however many are asked for."""

    def remember(self, consumer: str, ids: Collection[UUID]) -> None:
        """They are committed."""

    def forget(self, consumer: str, ids: Collection[UUID]) -> None:
        """They shall be consumed again."""

    def close(self) -> None:
        """Give up connections."""


def immediate_part(cache: Cache) -> Cache | None:
    """What of it can be asked on an event loop."""
    part: Cache | None = getattr(cache, "immediate", None)
    return part


def check_ttl(cache: Cache, retention: timedelta) -> None:
    """Refuse a cache that outlives the rows behind it; one that does not say how long it remembers is trusted."""
    ttl: timedelta | None = getattr(cache, "ttl", None)
    if ttl is not None and ttl > retention:
        kept = format_duration(retention)
        raise ConfigurationError(
            f"this cache remembers an id for {format_duration(ttl)}, longer than the rows behind it are kept, "
            f"consumer.clean-up.ttl {kept}; give it ttl={kept!r} or less"
        )
