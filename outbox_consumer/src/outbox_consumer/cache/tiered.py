"""Two caches, one behind the other: the process's own memory answers first, Redis knows what other processes have consumed."""

from collections.abc import Collection
from datetime import timedelta
from uuid import UUID

from outbox_consumer.cache.base import Cache


class TieredCache:
    """Asks `near`, and `far` for the rest; what is far and known comes near."""

    def __init__(self, near: Cache, far: Cache) -> None:
        self.near, self.far = near, far

    @property
    def ttl(self) -> timedelta | None:
        """The longer one."""
        known = [ttl for ttl in (getattr(cache, "ttl", None) for cache in (self.near, self.far)) if ttl is not None]
        return max(known, default=None)

    @property
    def immediate(self) -> Cache:
        return self.near

    def known(self, consumer: str, ids: Collection[UUID]) -> set[UUID]:
        found = self.near.known(consumer, ids)
        rest = [event_id for event_id in ids if event_id not in found]
        if rest:
            fetched = self.far.known(consumer, rest)
            if fetched:
                self.near.remember(consumer, fetched)
                found |= fetched
        return found

    def remember(self, consumer: str, ids: Collection[UUID]) -> None:
        self.near.remember(consumer, ids)
        self.far.remember(consumer, ids)

    def forget(self, consumer: str, ids: Collection[UUID]) -> None:
        self.far.forget(consumer, ids)  # first: else a look between the two would bring it near again
        self.near.forget(consumer, ids)

    def close(self) -> None:
        self.near.close()
        self.far.close()
