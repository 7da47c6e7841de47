"""`RedisIdempotency`: deduplication with nothing but Redis, for effects that no database transaction can hold.

An e-mail, a call to another service: no transaction ties them to a mark, so nothing can make them happen exactly once. This is the
honest rest. `check_and_mark` marks first, and a crash before the work loses it: at most once. `guard` marks afterwards, under a lease
meanwhile, and a crash before the mark repeats the work: at least once. Either is only as good as Redis' memory: a mark that Redis evicts,
loses in a failover or was never able to write is a duplicate that runs.

Where the effect is in a database, `IdempotentConsumer` is the right one.
"""

import asyncio
import contextlib
import secrets
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import timedelta
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, TypeVar

from outbox_consumer import redis_marks
from outbox_consumer.arguments import duration_of
from outbox_consumer.redis_client import connect, connect_async, is_redis_error, reason_of
from outbox_consumer.redis_marks import Fresh, Mark, Pause, Steps, Times, event_id_of
from outbox_consumer.settings import check_name
from outbox_shared.durations import format_duration
from outbox_shared.errors import ConfigurationError, RedisUnavailable

if TYPE_CHECKING:
    from redis import Redis
    from redis.asyncio import Redis as AsyncRedis

R = TypeVar("R")

TIMEOUT = 1.0
"""Seconds, to connect and for an answer: nothing can be decided without one."""

PREFIX = "outbox:processed"

_NEEDED_FOR = "RedisIdempotency"


class _Marks:
    """What does not depend on how Redis is reached."""

    def __init__(self, consumer: str, prefix: str, ttl: "timedelta | str", lease: "timedelta | str") -> None:
        try:
            self._begin_of_key = f"{prefix}:{check_name(consumer)}:"
        except ValueError as error:
            raise ConfigurationError(str(error)) from None
        self.ttl = duration_of("ttl", ttl, at_least=timedelta(seconds=1))
        self.lease = duration_of("lease", lease, at_least=timedelta(milliseconds=100))
        if self.lease > self.ttl:
            raise ConfigurationError(
                f"lease {format_duration(self.lease)} is longer than ttl {format_duration(self.ttl)}: a lease is the time after which "
                "the work of a dead process is done by another, such as 30s, and the ttl that in which a message can come again"
            )
        millisecond = timedelta(milliseconds=1)
        self._times = Times(self.ttl // millisecond, self.lease // millisecond)

    def _mark(self, message_or_id: object) -> Mark:
        event_id = event_id_of(message_or_id)
        return Mark(f"{self._begin_of_key}{event_id}", event_id, secrets.token_hex(8), self._times)


class RedisIdempotency(_Marks):
    """Marks of one consumer in Redis, `<prefix>:<consumer>:<event id>`. Thread-safe; connects at first use.

    `redis` is a URL, or a `redis.Redis` of your own with its own timeouts. What Redis does not answer comes out as RedisUnavailable:
    there is nothing to fall back on, so let the message be delivered again.
    """

    def __init__(
        self,
        redis: "str | Redis",
        consumer: str,
        *,
        prefix: str = PREFIX,
        ttl: "timedelta | str" = "720h",
        lease: "timedelta | str" = "30s",
    ) -> None:
        super().__init__(consumer, prefix, ttl, lease)
        self._is_ours = isinstance(redis, str)
        self._client: Any = connect(redis, TIMEOUT, _NEEDED_FOR) if isinstance(redis, str) else redis
        if iscoroutinefunction(getattr(self._client, "execute_command", None)):
            raise TypeError("this client is async: pass it to AsyncRedisIdempotency")

    def check_and_mark(self, message_or_id: object) -> bool:
        """True: the event was processed already. False: it is marked as processed now, do the work; if that fails, nobody repeats it."""
        return self._run(redis_marks.check_and_mark(self._mark(message_or_id)))

    @contextlib.contextmanager
    def guard(self, message_or_id: object) -> Iterator[Fresh]:
        """Around the work: `with idempotency.guard(message) as fresh:` and below it `if fresh: send(…)`.

        The event is marked as processed at the end of the block. Another delivery meanwhile gets EventInProgress. The lease is renewed as
        long as the block runs, given back when it raises, and ends by itself when the process dies.
        """
        fresh = self._run(redis_marks.begin(self._mark(message_or_id)))
        try:
            with self._kept(fresh):
                yield fresh
        except BaseException:
            self._run(redis_marks.give_back(fresh))
            raise
        self._run(redis_marks.finish(fresh))

    def close(self) -> None:
        """Give up connections, unless the client is yours."""
        if self._is_ours:
            self._client.close()

    @contextlib.contextmanager
    def _kept(self, fresh: Fresh) -> Iterator[None]:
        """A thread renews the lease. It has ended before the lease is given back, so that nothing of it comes late."""
        if not fresh.is_fresh:
            yield
            return
        ended = threading.Event()
        keeping = threading.Thread(
            target=lambda: self._run(redis_marks.keep(fresh), ended.wait), name="outbox-lease", daemon=True
        )
        keeping.start()
        try:
            yield
        finally:
            ended.set()
            keeping.join()

    def _run(self, steps: Steps[R], pause: Callable[[float], Any] = time.sleep) -> R:
        try:
            step = next(steps)
            while True:
                try:
                    answer = (
                        pause(step.seconds) if isinstance(step, Pause) else self._client.execute_command(*step.parts)
                    )
                except Exception as error:  # noqa: BLE001 - it goes to the steps, and comes out of them
                    step = steps.throw(_as_unavailable(error))
                else:
                    step = steps.send(answer)
        except StopIteration as end:
            result: R = end.value
            return result


class AsyncRedisIdempotency(_Marks):
    """The same, awaited: `await idempotency.check_and_mark(message)`, `async with idempotency.guard(message) as fresh:`.

    Its connections belong to the event loop in which it is used first. A block that holds the loop up keeps its lease from being renewed.
    """

    def __init__(
        self,
        redis: "str | AsyncRedis",
        consumer: str,
        *,
        prefix: str = PREFIX,
        ttl: "timedelta | str" = "720h",
        lease: "timedelta | str" = "30s",
    ) -> None:
        super().__init__(consumer, prefix, ttl, lease)
        self._is_ours = isinstance(redis, str)
        self._client: Any = connect_async(redis, TIMEOUT, _NEEDED_FOR) if isinstance(redis, str) else redis
        if not iscoroutinefunction(getattr(self._client, "execute_command", None)):
            raise TypeError("this client is not async: pass it to RedisIdempotency, or a redis.asyncio.Redis here")

    async def check_and_mark(self, message_or_id: object) -> bool:
        """True: the event was processed already. False: it is marked as processed now, do the work; if that fails, nobody repeats it."""
        return await self._run(redis_marks.check_and_mark(self._mark(message_or_id)))

    @contextlib.asynccontextmanager
    async def guard(self, message_or_id: object) -> AsyncIterator[Fresh]:
        """Around the work: `async with idempotency.guard(message) as fresh:` and below it `if fresh: await send(…)`."""
        fresh = await self._run(redis_marks.begin(self._mark(message_or_id)))
        try:
            async with self._kept(fresh):
                yield fresh
        except BaseException:
            await self._run(redis_marks.give_back(fresh))
            raise
        await asyncio.shield(
            self._run(redis_marks.finish(fresh))
        )  # what is done is recorded, also where the task is cancelled now

    async def close(self) -> None:
        """Give up connections, unless the client is yours."""
        if self._is_ours:
            await self._client.aclose()

    @contextlib.asynccontextmanager
    async def _kept(self, fresh: Fresh) -> AsyncIterator[None]:
        """A task renews the lease. It is told to end, not cancelled: what it has sent is answered before the lease is given back."""
        ended = asyncio.Event()

        async def ended_within(seconds: float) -> bool:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), seconds)
            return ended.is_set()

        keeping = asyncio.create_task(self._run(redis_marks.keep(fresh), ended_within))
        try:
            yield
        finally:
            ended.set()
            await asyncio.shield(keeping)

    async def _run(self, steps: Steps[R], pause: Callable[[float], Awaitable[Any]] = asyncio.sleep) -> R:
        try:
            step = next(steps)
            while True:
                try:
                    doing = (
                        pause(step.seconds) if isinstance(step, Pause) else self._client.execute_command(*step.parts)
                    )
                    answer = await doing
                except Exception as error:  # noqa: BLE001 - it goes to the steps, and comes out of them
                    step = steps.throw(_as_unavailable(error))
                else:
                    step = steps.send(answer)
        except StopIteration as end:
            result: R = end.value
            return result


def _as_unavailable(error: Exception) -> Exception:
    if not is_redis_error(error):
        return error
    unavailable = RedisUnavailable(
        f"Redis did not answer, or refused, and nobody else knows of the event: {reason_of(error)}"
    )
    unavailable.__cause__ = error
    return unavailable
