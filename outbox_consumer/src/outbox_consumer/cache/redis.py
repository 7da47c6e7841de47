"""The cache that processes share. Whatever Redis does changes speed only: a failure costs one short timeout, then a circuit is open.

A key is `<prefix>:<consumer>:<event id>`; consumers put the epoch of their database in front of their name. Its value is the id once
more: an answer is believed only if it names what was asked for, so neither a stranger's value nor a reply that belongs to another
command can hide an event.
"""

import logging
import os
import weakref
from collections.abc import Callable, Collection
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar
from uuid import UUID

from outbox_consumer.arguments import duration_of
from outbox_consumer.cache.circuit import FIRST_PAUSE, Circuit
from outbox_consumer.redis_client import connect, is_refusal, reason_of
from outbox_shared.clock import Clock, SystemClock
from outbox_shared.settings import SHORTEST

if TYPE_CHECKING:
    from redis import Redis

log = logging.getLogger(__name__)

R = TypeVar("R")

TIMEOUT = 0.1
"""Seconds, to connect and for an answer. `redis://…?socket_timeout=0.3&socket_connect_timeout=0.3` says otherwise."""

DEFAULT_PREFIX = "outbox:consumed"


class RedisCache:
    """Ids in Redis, each for `ttl`. Thread-safe, and safe to fork.

    `redis` is a URL, or a `redis.Redis` of your own: then its timeouts and retries are yours as well, and `Retry(NoBackoff(), 0)` is
    what a cache wants.
    """

    immediate = None

    def __init__(
        self,
        redis: "str | Redis",
        *,
        ttl: "timedelta | str" = "1h",
        prefix: str = DEFAULT_PREFIX,
        clock: Clock = SystemClock(),  # noqa: B008 - no state
    ) -> None:
        self.ttl = duration_of("ttl", ttl, at_least=SHORTEST)
        self._milliseconds = max(1, self.ttl // timedelta(milliseconds=1))
        self._prefix, self._now = prefix, clock.monotonic
        self._is_ours = isinstance(redis, str)
        self._client = connect(redis, TIMEOUT, "a cache in Redis") if isinstance(redis, str) else redis
        self._begin()
        _all.add(self)

    def _begin(self) -> None:
        # Two, because a Redis that is full, or a replica, answers and refuses to write: with one circuit each look would close it and
        # each write open it again.
        self._reach, self._writing = Circuit(), Circuit()

    def known(self, consumer: str, ids: Collection[UUID]) -> set[UUID]:
        asked = list(ids)
        keys = self._keys(consumer, asked)
        found = self._read(lambda: self._client.mget(keys)) if asked else None
        if not isinstance(found, list) or len(found) != len(asked):
            return set()
        return {event_id for event_id, value in zip(asked, found, strict=True) if value == _value(event_id)}

    def remember(self, consumer: str, ids: Collection[UUID]) -> None:
        written = [(key, _value(event_id)) for key, event_id in zip(self._keys(consumer, ids), ids, strict=True)]

        def write() -> None:
            if len(written) == 1:
                self._client.set(*written[0], px=self._milliseconds)
                return
            with self._client.pipeline(transaction=False) as pipeline:
                for key, value in written:
                    pipeline.set(key, value, px=self._milliseconds)
                answers = pipeline.execute(raise_on_error=False)  # whose error would begin with the whole command
            for answer in answers:
                if isinstance(answer, Exception):
                    raise answer

        if written:
            self._write(write)

    def forget(self, consumer: str, ids: Collection[UUID]) -> None:
        """Best effort: what must be forgotten for certain is forgotten by the next epoch."""
        keys = self._keys(consumer, ids)
        if keys:
            self._write(lambda: self._client.delete(*keys))

    def close(self) -> None:
        if self._is_ours:
            self._client.close()

    def _keys(self, consumer: str, ids: Collection[UUID]) -> list[str]:
        begin = f"{self._prefix}:{consumer}:"
        return [f"{begin}{event_id}" for event_id in ids]

    # Errors are caught as broadly as can be, also those that redis-py did not expect: a cache is never worth one.

    def _read(self, call: Callable[[], R]) -> R | None:
        """The answer; None where Redis is left alone, or fails."""
        reach = self._reach.let_through(self._now())
        if reach is None:
            return None
        try:
            answer = call()
        except Exception as error:  # noqa: BLE001
            self._is_away(error, reach)
            return None
        if self._reach.succeeded(reach):
            log.info("the cache in Redis answers again")
        return answer

    def _write(self, call: Callable[[], object]) -> None:
        """While Redis is away it is the next look that finds out when it is back."""
        reach = None if self._reach.is_open else self._reach.let_through(self._now())
        passed = None if reach is None else self._writing.let_through(self._now())
        if reach is None or passed is None:
            return
        try:
            call()
        except Exception as error:  # noqa: BLE001
            if not is_refusal(error):
                self._is_away(error, reach)
            elif self._writing.failed(passed, self._now()):
                log.warning("the cache in Redis takes no ids, what it knows is still used: %s", reason_of(error))
        else:
            if self._writing.succeeded(passed):
                log.info("the cache in Redis takes ids again")

    def _is_away(self, error: Exception, reach: int) -> None:
        if self._reach.failed(reach, self._now()):
            log.warning(
                "the cache in Redis is away, the database alone decides; it is tried again after %g s, then more rarely: %s",
                FIRST_PAUSE,
                reason_of(error),
            )


def _value(event_id: UUID) -> bytes:
    return event_id.hex.encode()


_all: "weakref.WeakSet[RedisCache]" = weakref.WeakSet()


def _after_fork() -> None:
    for cache in list(_all):
        cache._begin()  # noqa: SLF001 - of this module


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
