"""What every cache promises: in the process, in a real Redis, and one behind the other."""

from datetime import timedelta

import pytest

from outbox_consumer import ConfigurationError, ConsumerSettings
from outbox_consumer.cache import InProcessCache, RedisCache, TieredCache, cache_from, check_ttl
from tests.caching import ids


@pytest.fixture
def redis_cache(redis_url, prefix):
    made = RedisCache(redis_url, prefix=prefix)
    yield made
    made.close()


@pytest.fixture(params=["in-process", "redis", "tiered"])
def cache(request):
    match request.param:
        case "in-process":
            return InProcessCache()
        case "redis":
            return request.getfixturevalue("redis_cache")
    return TieredCache(InProcessCache(), request.getfixturevalue("redis_cache"))


def test_it_knows_what_it_was_told_and_nothing_else(cache):
    consumed, new = ids(100), ids(100)

    cache.remember("billing", consumed)

    assert cache.known("billing", [*consumed, *new]) == set(consumed)
    assert cache.known("billing", new) == set()
    assert cache.known("billing", consumed[:1]) == set(consumed[:1])


def test_consumers_do_not_see_each_others_ids(cache):
    (one,) = ids(1)

    cache.remember("billing", [one])

    assert cache.known("shipping", [one]) == set()
    assert cache.known("billing", [one]) == {one}


def test_what_is_forgotten_is_unknown_and_the_rest_stays(cache):
    consumed = ids(3)
    cache.remember("billing", consumed)
    cache.remember("shipping", consumed)

    cache.forget("billing", consumed[:2])

    assert cache.known("billing", consumed) == {consumed[2]}
    assert cache.known("shipping", consumed) == set(consumed)


def test_told_twice_asked_twice_and_asked_for_nothing(cache):
    (one,) = ids(1)

    for _ in range(2):
        cache.remember("billing", [one, one])
    cache.remember("billing", [])
    cache.forget("billing", [])

    assert cache.known("billing", [one, one]) == {one}
    assert cache.known("billing", []) == set()


def test_it_says_how_long_it_remembers(cache):
    assert cache.ttl == timedelta(hours=1)
    check_ttl(cache, timedelta(hours=1))
    with pytest.raises(ConfigurationError, match=r"clean-up\.ttl 30m; give it ttl='30m' or less"):
        check_ttl(cache, timedelta(minutes=30))


def test_a_closed_cache_can_be_closed_again(cache):
    cache.close()
    cache.close()


# Tiers.


def test_what_another_process_consumed_comes_near_with_the_first_look(redis_cache):
    near = InProcessCache()
    (one,) = ids(1)
    redis_cache.remember("billing", [one])  # as another process does

    assert TieredCache(near, redis_cache).known("billing", [one]) == {one}

    assert near.known("billing", [one]) == {one}


def test_the_longer_ttl_of_the_two_counts(redis_url):
    far = RedisCache(redis_url, ttl="8d")
    with pytest.raises(ConfigurationError, match="longer than the rows"):
        check_ttl(TieredCache(InProcessCache(ttl="1h"), far), timedelta(days=7))
    far.close()


def test_a_cache_of_somebody_elses_without_a_ttl_is_trusted():
    class Theirs:
        pass

    check_ttl(Theirs(), timedelta(seconds=1))


# What the settings describe.


def test_without_being_turned_on_there_is_none():
    assert cache_from(ConsumerSettings(redis_url="redis://localhost")) is None


def test_without_redis_it_lives_in_the_process():
    cache = cache_from(ConsumerSettings(cache={"enabled": True, "ttl": "5m", "size": 7}))

    assert isinstance(cache, InProcessCache)
    assert cache.ttl == timedelta(minutes=5)
    cache.remember("billing", ids(10))
    assert len(cache) == 7


def test_with_redis_there_are_two_and_the_keys_begin_with_the_name(redis_url, redis_client, prefix):
    cache = cache_from(
        ConsumerSettings(redis_url=redis_url, cache={"enabled": True, "cache-name": prefix, "ttl": "5m"})
    )
    (one,) = ids(1)

    cache.remember("cafe0123:billing", [one])

    (key,) = redis_client.keys(f"{prefix}:*")
    assert key.decode() == f"{prefix}:cafe0123:billing:{one}"
    assert 290_000 < redis_client.pttl(key) <= 300_000
    assert cache.immediate.known("cafe0123:billing", [one]) == {one}
    cache.close()


def test_a_redis_url_that_cannot_be_used_is_refused_before_anything_is_sent():
    with pytest.raises(ConfigurationError, match="redis-url"):
        RedisCache("redis://localhost:1/0?no_such_option=1")
    with pytest.raises(ConfigurationError, match="redis-url"):
        RedisCache("http://localhost")
