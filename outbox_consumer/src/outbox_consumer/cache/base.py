"""The seam between a consumer and its caches.

None of the methods raises, and none waits for long: a cache that is away knows nothing. An id is remembered only when the outermost
COMMIT has returned: written earlier, a crash would leave an id that nobody has consumed.
"""

from collections.abc import Collection
from typing import Protocol
from uuid import UUID


class Cache(Protocol):
    def known(self, consumer: str, ids: Collection[UUID]) -> set[UUID]:
        """Those that this consumer has certainly consumed. One round trip, however many are asked for."""

    def remember(self, consumer: str, ids: Collection[UUID]) -> None:
        """They are committed."""

    def forget(self, consumer: str, ids: Collection[UUID]) -> None:
        """They shall be consumed again."""

    def close(self) -> None:
        """Give up connections."""
