"""What a consumer remembers in front of the database: a cache, or nothing.

It makes duplicates cheap and decides nothing. Looked at before the transaction, told after it: an id is remembered when its COMMIT has
returned, and whatever a cache does, a message is consumed as it would be without one.
"""

import logging
from collections.abc import Collection
from dataclasses import dataclass
from uuid import UUID

from outbox_consumer.cache import Cache
from outbox_consumer.sessions import Sessions
from outbox_consumer.telemetry import Telemetry

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Look:
    """What was known before a transaction. What it then commits is remembered as of this moment."""

    known: Collection[UUID] = frozenset()


NOTHING_KNOWN = Look()


class Memory:
    def __init__(self, cache: Cache | None, consumer: str, sessions: Sessions, telemetry: Telemetry) -> None:
        self._cache, self._consumer = cache, consumer
        self._sessions, self._telemetry = sessions, telemetry

    def look(self, ids: Collection[UUID]) -> Look:
        """Which of them were certainly consumed."""
        cache = self._cache
        if cache is None or not ids:
            return NOTHING_KNOWN
        try:
            known = self._sessions.aside(lambda: cache.known(self._consumer, ids))
        except Exception:  # ours never raises; somebody else's may
            log.warning("the cache failed; the database alone decides", exc_info=True)
            known = set()
        self._telemetry.asked_cache(len(known), len(ids) - len(known))
        return Look(known)

    def remember(self, look: Look, ids: Collection[UUID]) -> None:
        """They are committed."""
        del look
        cache = self._cache
        if cache is None or not ids:
            return
        try:
            self._sessions.aside(lambda: cache.remember(self._consumer, ids))
        except Exception:  # the events are consumed, whatever becomes of this
            log.warning("the cache failed; the database alone remembers", exc_info=True)
