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
            _check(given, settings)
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


def _check(cache: Cache, settings: ConsumerSettings) -> None:
    if not (callable(getattr(cache, "known", None)) and callable(getattr(cache, "remember", None))):
        raise TypeError(
            f"cache is an object such as InProcessCache() or RedisCache(…), not {type(cache).__name__}; what settings say of it goes "
            'to ConsumerSettings(cache={"enabled": True})'
        )
    check_ttl(cache, settings.clean_up.ttl)
