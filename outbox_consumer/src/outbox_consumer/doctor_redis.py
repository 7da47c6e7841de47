"""Whether the cache's Redis answers, and what it does when it is full."""

from collections.abc import Iterator
from typing import Any, Literal

TIMEOUT = 2.0

Line = tuple[Literal["ok", "warning", "problem"], str, str]


def look_at_redis(url: str) -> Iterator[Line]:
    """Level, what was found, what to do."""
    try:
        from redis import Redis  # noqa: PLC0415 - an extra
        from redis.backoff import NoBackoff  # noqa: PLC0415
        from redis.exceptions import RedisError  # noqa: PLC0415
        from redis.retry import Retry  # noqa: PLC0415
    except ModuleNotFoundError:
        yield (
            "problem",
            "consumer.cache names a Redis, and its client is not installed",
            "pip install 'outbox-consumer[redis]'",
        )
        return
    # by itself redis-py tries ten times
    client = Redis.from_url(url, socket_timeout=TIMEOUT, socket_connect_timeout=TIMEOUT, retry=Retry(NoBackoff(), 0))
    try:
        client.ping()
        yield _when_full(client, RedisError)
    except (RedisError, OSError) as error:
        why = str(error).strip().partition("\n")[0]
        yield (
            "problem",
            f"does not answer: {why}",
            "look at redis-url; meanwhile the database alone decides, and nothing is lost",
        )
    finally:
        client.close()


def _when_full(client: Any, refusal: type[Exception]) -> Line:
    try:
        told: dict[str, str] = {**client.config_get("maxmemory"), **client.config_get("maxmemory-policy")}
    except refusal:  # where Redis is somebody else's service, CONFIG is often forbidden
        return "ok", "answers; what it does when it is full is not told", ""
    policy, limit = told.get("maxmemory-policy", "unknown"), int(told.get("maxmemory", 0))
    if policy == "noeviction" and limit:
        remedy = "set maxmemory-policy allkeys-lru, or volatile-ttl where others keep data there"
        return "warning", "answers; when it is full it refuses new ids instead of dropping old ones", remedy
    return "ok", f"answers; maxmemory-policy {policy}{'' if limit else ', without a limit'}", ""
