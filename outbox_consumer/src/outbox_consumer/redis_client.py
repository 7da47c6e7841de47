"""Clients of Redis that answer soon or not at all. The only file that imports redis-py, and only when a client is wanted.

A client of redis-py's, unless it is told otherwise, tries a command ten times: a stopped Redis would cost seconds a call, and a SET NX
whose answer was lost would be told at the second try that somebody else was there first.
"""

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from outbox_shared.errors import ConfigurationError, MissingDependency

if TYPE_CHECKING:
    from redis import Redis
    from redis.asyncio import Redis as AsyncRedis

_LONGEST_REASON = 200


def connect(url: str, timeout: float, needed_for: str) -> "Redis":
    """A client that waits so long to connect and so long for an answer, and tries once. Nothing is sent yet.

    `socket_timeout` and `socket_connect_timeout` in the URL win. After a fork its pool begins anew in the child.
    """
    with _what_is_installed(needed_for):
        from redis import Redis  # noqa: PLC0415 - an extra
        from redis.backoff import NoBackoff  # noqa: PLC0415
        from redis.retry import Retry  # noqa: PLC0415
    client: Redis = _made(Redis, url, timeout, Retry(NoBackoff(), 0))
    return client


def connect_async(url: str, timeout: float, needed_for: str) -> "AsyncRedis":
    """The same for the event loop in which it is used first."""
    with _what_is_installed(needed_for):
        from redis.asyncio import Redis  # noqa: PLC0415
        from redis.asyncio.retry import Retry  # noqa: PLC0415
        from redis.backoff import NoBackoff  # noqa: PLC0415
    client: Redis = _made(Redis, url, timeout, Retry(NoBackoff(), 0))
    return client


def is_redis_error(error: BaseException) -> bool:
    """Whether it is Redis or the way to it that failed, and not a mistake of ours."""
    from redis.exceptions import RedisError  # noqa: PLC0415

    return isinstance(error, RedisError | OSError)


def is_refusal(error: BaseException) -> bool:
    """Whether Redis is there and refused this command: full, read-only, no right to it."""
    from redis.exceptions import AuthenticationError, ResponseError  # noqa: PLC0415

    return isinstance(error, ResponseError) and not isinstance(error, AuthenticationError)


def reason_of(error: BaseException) -> str:
    """One bounded line for a log or an error. redis-py names host and port, never the password."""
    said = " ".join(str(error).split())[:_LONGEST_REASON]
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def _made(kind: Any, url: str, timeout: float, retry: Any) -> Any:
    try:
        client = kind.from_url(
            url,
            socket_timeout=timeout,
            socket_connect_timeout=timeout,
            retry=retry,
            protocol=2,  # version 3 greets first, which is one more answer to wait for
            max_connections=2
            ** 16,  # as many as there are threads; some versions of redis-py refuse the hundred-and-first
        )
        pool = client.connection_pool
        pool.connection_class(
            **pool.connection_kwargs
        )  # made, not connected: an option that nobody knows is refused here
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"this redis-url cannot be used: {error}") from None
    return client


@contextlib.contextmanager
def _what_is_installed(needed_for: str) -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError:
        raise MissingDependency(needed_for, "outbox-consumer[redis]") from None
