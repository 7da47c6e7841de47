"""What a consumer remembers in front of the database: a cache, or nothing. Asked before the transaction, told after its commit."""

from collections.abc import Collection
from uuid import UUID

from outbox_consumer.cache import Cache, ConsumerCache, Epoch, Look, cache_from, check_ttl
from outbox_consumer.sessions import Sessions
from outbox_consumer.settings import ConsumerSettings
from outbox_consumer.telemetry import Telemetry


class Memory:
    """The cache that was given, or the one that the settings describe; that one is ours to close."""

    def __init__(
        self, given: Cache | None, consumer: str, settings: ConsumerSettings, sessions: Sessions, telemetry: Telemetry
    ) -> None:
        if given is not None:
            check_ttl(given, settings.clean_up.ttl)
        self._is_ours = given is None
        epoch = Epoch(sessions.engine_beside, settings.tables.names)
        self._cache = ConsumerCache(cache_from(settings) if given is None else given, consumer, epoch)
        self._sessions, self._telemetry = sessions, telemetry

    def look(self, ids: Collection[UUID]) -> Look:
        """Which of them were certainly consumed."""
        look = self._sessions.look_at(self._cache, ids)
        if look.was_asked:
            self._telemetry.asked_cache(len(look.known), len(ids) - len(look.known))
        return look

    def remember(self, look: Look, ids: Collection[UUID]) -> None:
        """They are committed."""
        self._sessions.remember_in(self._cache, look, ids)

    def close(self) -> None:
        if self._is_ours:
            self._cache.close()
