"""The optional single-poller lock. Claims are safe without it: it only spares a database the looks of relays that would share the work."""

import logging
from typing import TYPE_CHECKING, Protocol

from sqlalchemy.exc import SQLAlchemyError

from outbox_publisher.relay.settler import database_error
from outbox_publisher.settings import PublisherSettings
from outbox_shared.clock import Clock
from outbox_shared.errors import MissingDependency
from outbox_shared.lease import Lease

if TYPE_CHECKING:
    from redis import Redis
    from redis.lock import Lock

log = logging.getLogger(__name__)

TTL = 30.0
RENEW = 10.0
REDIS_KEY = "lock:outbox:poller"
LEASE_NAME = "poller"


class PollerLock(Protocol):
    def is_ours(self) -> bool:
        """Whether this relay may look for work now; takes or renews the lock where that is due."""

    def close(self) -> None:
        """Let another relay have it at once."""


class NoLock:
    def is_ours(self) -> bool:
        return True

    def close(self) -> None: ...


class DatabaseLock:
    """A lease in outbox_state. A relay that dies keeps the others waiting for 30 s at most."""

    def __init__(self, lease: Lease, clock: Clock) -> None:
        self._lease, self._clock = lease, clock
        self._renew_at: float | None = None

    def is_ours(self) -> bool:
        now = self._clock.monotonic()
        if self._renew_at is None or now >= self._renew_at:
            self._renew_at = now + RENEW if self._lease.take() else None
        return self._renew_at is not None

    def close(self) -> None:
        if self._renew_at is not None:
            self._renew_at = None
            try:
                self._lease.end()
            except SQLAlchemyError as error:  # it ends by itself
                log.info("the poller lock was not released: %s", database_error(error))


class RedisLock:
    """redis-py's own Lock, under a name that other programs may take too. Without Redis the relay goes on: claims need no lock."""

    def __init__(self, client: "Redis", clock: Clock) -> None:
        self._client, self._clock = client, clock
        self._lock: Lock = client.lock(REDIS_KEY, timeout=TTL, thread_local=False)
        self._renew_at: float | None = None
        self._redis_away = False

    def is_ours(self) -> bool:
        from redis.exceptions import LockError, RedisError  # noqa: PLC0415 - an extra

        now = self._clock.monotonic()
        if self._renew_at is not None and now < self._renew_at:
            return True
        try:
            if self._renew_at is not None:
                self._lock.reacquire()
                ours = True
            else:
                ours = bool(self._lock.acquire(blocking=False))
        except LockError:  # it ran out, and perhaps somebody else has it
            self._renew_at, ours = None, False
        except RedisError as error:
            if not self._redis_away:
                log.warning("Redis is away, relaying without the poller lock: %s", error)
            self._redis_away, self._renew_at = True, None
            return True
        self._redis_away = False
        self._renew_at = now + RENEW if ours else None
        return ours

    def close(self) -> None:
        from redis.exceptions import RedisError  # noqa: PLC0415

        try:
            if self._renew_at is not None:
                self._lock.release()
        except RedisError as error:  # it ends by itself
            log.info("the poller lock was not released: %s", error)
        self._renew_at = None
        self._client.close()


def poller_lock(settings: PublisherSettings, lease: Lease, clock: Clock) -> PollerLock:
    match settings.lock:
        case "database":
            return DatabaseLock(lease, clock)
        case "redis":
            return RedisLock(_redis(settings), clock)
        case _:
            return NoLock()


def _redis(settings: PublisherSettings) -> "Redis":
    try:
        from redis import Redis  # noqa: PLC0415 - an extra
        from redis.backoff import NoBackoff  # noqa: PLC0415
        from redis.retry import Retry  # noqa: PLC0415
    except ModuleNotFoundError:
        raise MissingDependency("publisher.lock: redis", "outbox-publisher[redis]") from None
    # by itself redis-py tries ten times: a stopped Redis would cost seconds a call
    return Redis.from_url(
        settings.redis_url or "", socket_timeout=0.5, socket_connect_timeout=0.5, retry=Retry(NoBackoff(), 0)
    )
