"""`RedisIdempotency`, sync and async: what is marked when, who may do the work, and what is said when it goes wrong."""

import asyncio
import threading
from contextlib import ExitStack
from itertools import pairwise

import pytest
import redis.asyncio
from redis import Redis
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import ConstantBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeout
from redis.retry import Retry

from outbox_consumer import (
    AsyncRedisIdempotency,
    ConfigurationError,
    ConsumeError,
    EventInProgress,
    LeaseLost,
    MalformedEventId,
    MissingEventId,
    RedisIdempotency,
    RedisUnavailable,
)
from tests.caching import client_of, ids
from tests.consuming import a_message, eventually


class Sync:
    """One process's RedisIdempotency. `process` is what a consumer does with a message."""

    def __init__(self, url, consumer="billing", **options):
        self.idempotency = RedisIdempotency(url, consumer, **options)

    def check_and_mark(self, message):
        return self.idempotency.check_and_mark(message)

    def process(self, message, work=lambda fresh: None):
        with self.idempotency.guard(message) as fresh:
            if not fresh:
                return "duplicate"
            work(fresh)
        return "processed"

    def close(self):
        self.idempotency.close()


class Async:
    """The same, where the work runs in a thread, as the loop must go on."""

    def __init__(self, url, consumer="billing", **options):
        self.runner = asyncio.Runner()
        self.idempotency = AsyncRedisIdempotency(url, consumer, **options)

    def check_and_mark(self, message):
        return self.runner.run(self.idempotency.check_and_mark(message))

    def process(self, message, work=lambda fresh: None):
        async def guarded():
            async with self.idempotency.guard(message) as fresh:
                if not fresh:
                    return "duplicate"
                await asyncio.to_thread(work, fresh)
            return "processed"

        return self.runner.run(guarded())

    def close(self):
        self.runner.run(self.idempotency.close())
        self.runner.close()


@pytest.fixture(params=[Sync, Async], ids=["sync", "async"])
def kind(request):
    return request.param


@pytest.fixture
def make(kind, redis_url, prefix):
    """make(consumer="billing", url=…, lease="30s") -> one process's; closed at the end."""
    with ExitStack() as made:

        def one(*arguments, url=redis_url, **options):
            process = kind(url, *arguments, **{"prefix": prefix, **options})
            made.callback(process.close)
            return process

        yield one


def test_the_first_is_told_that_it_is_new_and_all_others_that_it_was_processed(make):
    first, second, message = make(), make(), a_message()

    assert first.check_and_mark(message) is False
    assert [one.check_and_mark(message) for one in (first, second)] == [True, True]
    assert first.check_and_mark(a_message()) is False


def test_a_message_its_id_and_the_text_of_it_are_one_event(make):
    process, (one,) = make(), ids(1)

    assert process.check_and_mark(one) is False
    assert process.check_and_mark(str(one)) is True
    assert process.check_and_mark(a_message(one)) is True


def test_consumers_do_not_see_each_others_marks(make):
    message = a_message()

    assert make("billing").check_and_mark(message) is False
    assert make("shipping").check_and_mark(message) is False
    assert make("shipping").process(message) == "duplicate"


def test_the_mark_is_one_key_that_lives_720_hours(make, redis_client, prefix):
    process, (one, two) = make(), ids(2)

    process.check_and_mark(one)
    process.process(two)

    assert sorted(redis_client.keys(f"{prefix}:*")) == sorted(
        f"{prefix}:billing:{each}".encode() for each in (one, two)
    )
    for each in (one, two):
        assert 719 * 3600 < redis_client.ttl(f"{prefix}:billing:{each}") <= 720 * 3600


def test_a_new_event_costs_one_command(make, own_redis):
    process = make(url=own_redis.url)
    process.check_and_mark(ids(1)[0])
    with client_of(own_redis.url) as server:
        server.config_resetstat()

        process.check_and_mark(ids(1)[0])

        stats = server.info("commandstats")
        assert stats["cmdstat_set"]["calls"] == 1
        assert set(stats) <= {"cmdstat_set", "cmdstat_config|resetstat", "cmdstat_info"}


def test_a_mark_that_another_program_wrote_counts(make, redis_client, prefix):
    process, (one,) = make(), ids(1)
    redis_client.set(f"{prefix}:billing:{one}", "1")

    assert process.check_and_mark(one) is True
    assert process.process(one) == "duplicate"


# The guard.


def test_the_work_is_done_once(make):
    done, message = [], a_message()

    assert make().process(message, done.append) == "processed"
    assert [make().process(message, done.append) for _ in range(2)] == ["duplicate"] * 2
    assert len(done) == 1


def test_while_it_is_under_way_others_hear_that(make, kind):
    first, others, message = make(), [make(), make()], a_message()
    refused = []

    def work(fresh):
        for call in (others[0].process, others[1].check_and_mark):
            with pytest.raises(EventInProgress, match="deliver the message again later"):
                call(message)
            refused.append(call)

    assert first.process(message, work) == "processed"

    assert len(refused) == 2
    assert others[0].process(message) == "duplicate"


def test_work_that_fails_is_done_by_the_next_delivery_at_once(make):
    first, second, message = make(), make(), a_message()

    def fail(fresh):
        raise KeyError("boom")

    with pytest.raises(KeyError, match="boom"):
        first.process(message, fail)

    assert second.process(message) == "processed"


def test_a_lease_is_renewed_as_long_as_the_work_takes(make, redis_client, prefix):
    process, (one,) = make(lease="900ms"), ids(1)
    key, seen = f"{prefix}:billing:{one}", []

    def work(fresh):
        def left():
            seen.append(redis_client.pttl(key))
            return sum(later > sooner for sooner, later in pairwise(seen)) >= 4  # renewed four times

        eventually(left)
        assert not fresh.lease_lost

    assert process.process(one, work) == "processed"
    assert min(seen) > 0


def test_the_lease_of_a_dead_process_ends_and_the_next_delivery_does_the_work(make, redis_client, prefix):
    dead, (one,) = "running:of-somebody-who-was-killed", ids(1)
    redis_client.set(f"{prefix}:billing:{one}", dead, px=1000)
    process = make()
    with pytest.raises(EventInProgress):
        process.process(one)

    eventually(lambda: redis_client.get(f"{prefix}:billing:{one}") is None)

    assert process.process(one) == "processed"


def test_who_lost_the_lease_to_another_hears_of_it_and_changes_nothing(make, redis_client, prefix):
    # given work whose lease ended (its process stood still), and another delivery that has taken it over
    first, (one,) = make(lease="300ms"), ids(1)
    key, theirs = f"{prefix}:billing:{one}", b"running:another"

    def work(fresh):
        redis_client.set(key, theirs, px=60_000)
        eventually(lambda: fresh.lease_lost)

    # when the first one ends
    with pytest.raises(LeaseLost, match="may have been done twice"):
        first.process(one, work)

    # then the other's lease is still there: neither marked as done, nor prolonged, nor given back
    assert redis_client.get(key) == theirs
    assert 50_000 < redis_client.pttl(key) <= 60_000


def test_who_lost_the_lease_and_fails_does_not_give_anothers_back(make, redis_client, prefix):
    process, (one,) = make(), ids(1)
    key = f"{prefix}:billing:{one}"

    def work(fresh):
        redis_client.set(key, "running:another", px=60_000)
        raise KeyError("boom")

    with pytest.raises(KeyError):
        process.process(one, work)

    assert redis_client.get(key) == b"running:another"


def test_done_is_not_undone_by_one_that_comes_late(make, redis_client, prefix):
    process, (one,) = make(), ids(1)
    key = f"{prefix}:billing:{one}"

    with pytest.raises(LeaseLost):
        process.process(one, lambda fresh: redis_client.set(key, "done:another"))

    assert redis_client.get(key) == b"done:another"


def test_work_whose_lease_ended_without_a_successor_is_recorded(make, redis_client, prefix):
    process, (one,) = make(), ids(1)

    assert process.process(one, lambda fresh: redis_client.delete(f"{prefix}:billing:{one}")) == "processed"

    assert process.process(one) == "duplicate"


def test_a_guard_that_is_not_asked_says_so_at_the_very_first_message(make, kind):
    process, message = make(), a_message()
    guard = process.idempotency.guard

    def careless():
        with guard(message):
            pass

    async def careless_async():
        async with guard(message):
            pass

    for _ in range(2):  # the first delivery and a duplicate of it
        with pytest.raises(ConsumeError, match="if fresh:"):
            careless() if kind is Sync else process.runner.run(careless_async())


def test_a_client_that_asks_again_after_a_lost_answer_is_not_told_that_it_was_somebody_else(make, kind, own_redis):
    """As redis-py does by itself: the first SET was executed and its answer lost, the second one finds the key."""
    # given a client of the user's that retries, and a network that brings requests and no answers
    clients, retry = (redis.asyncio.Redis, AsyncRetry) if kind is Async else (Redis, Retry)
    again = {"retry": retry(ConstantBackoff(0.1), 100), "retry_on_error": [RedisTimeout, RedisConnectionError]}
    client = clients.from_url(own_redis.url, socket_timeout=0.2, **again)
    process = make(url=client)
    process.check_and_mark(a_message())
    own_redis.proxy.black_hole("answers")

    def heal_once_the_key_is_there():
        with client_of(f"redis://127.0.0.1:{own_redis.port}/0") as server:
            eventually(lambda: server.dbsize() == 2)
        own_redis.proxy.reset()
        own_redis.proxy.heal()

    healing = threading.Thread(target=heal_once_the_key_is_there)
    healing.start()

    assert process.check_and_mark(a_message()) is False
    healing.join()
    process.runner.run(client.aclose()) if kind is Async else client.close()


# Errors.


def outage_free(work):
    """Errors of Redis come out as one kind."""
    with pytest.raises(RedisUnavailable) as raised:
        work()
    return str(raised.value)


@pytest.mark.parametrize("call", ["check_and_mark", "process"])
def test_without_redis_nothing_is_decided_and_nothing_done(make, own_redis, call):
    done, message = [], a_message()
    process = make(url=own_redis.url)
    process.check_and_mark(a_message())
    own_redis.kill()

    said = outage_free(lambda: getattr(process, call)(message, *([done.append] if call == "process" else [])))

    assert "nobody else knows" in said
    assert done == []
    own_redis.restart()
    assert process.process(message, done.append) == "processed"
    assert len(done) == 1


@pytest.mark.parametrize("command", [("CONFIG", "SET", "maxmemory", "1"), ("REPLICAOF", "127.0.0.1", "1")])
def test_a_redis_that_cannot_write_is_an_error_too(make, own_redis, command):
    with client_of(own_redis.url) as server:
        server.execute_command(*command)

    process = make(url=own_redis.url)

    assert any(word in outage_free(lambda: process.check_and_mark(a_message())) for word in ("maxmemory", "read only"))
    outage_free(lambda: process.process(a_message()))


def test_a_value_of_a_foreign_type_is_an_error_and_stays(make, redis_client, prefix):
    process, (one,) = make(), ids(1)
    redis_client.hset(f"{prefix}:billing:{one}", "a", "b")

    assert "wrong kind of value" in outage_free(lambda: process.check_and_mark(one))
    outage_free(lambda: process.process(one))

    assert redis_client.hgetall(f"{prefix}:billing:{one}") == {b"a": b"b"}


def test_a_redis_that_stands_still_is_waited_for_once(make, own_redis):
    process = make(url=own_redis.url)
    process.check_and_mark(a_message())
    own_redis.pause()
    came = own_redis.proxy.counters.connections

    assert "Timeout" in outage_free(lambda: process.check_and_mark(a_message()))

    assert own_redis.proxy.counters.connections == came


def test_what_is_done_is_recorded_when_redis_comes_back_within_the_lease(make, own_redis):
    process, message = make(url=own_redis.url), a_message()

    back = threading.Timer(0.3, own_redis.proxy.heal)

    def work(fresh):
        own_redis.proxy.cut()
        back.start()

    assert process.process(message, work) == "processed"

    assert process.process(message) == "duplicate"


def test_what_is_done_and_cannot_be_recorded_says_that_it_will_be_done_again(make, own_redis):
    process, message = make(url=own_redis.url, lease="300ms"), a_message()

    said = outage_free(lambda: process.process(message, lambda fresh: own_redis.proxy.cut()))

    assert "was processed, but that could not be recorded" in said


def test_an_error_of_the_work_comes_out_also_where_the_lease_cannot_be_given_back(make, own_redis, caplog):
    process = make(url=own_redis.url)

    def work(fresh):
        own_redis.kill()
        raise KeyError("boom")

    with pytest.raises(KeyError, match="boom"):
        process.process(a_message(), work)

    assert "ends by itself" in caplog.text


def test_passwords_are_in_no_error(make, own_redis):
    with client_of(own_redis.url) as server:
        server.config_set("requirepass", "right-one")
    process = make(url=f"redis://:wrong-one@127.0.0.1:{own_redis.port}/0")

    said = outage_free(lambda: process.check_and_mark(a_message()))

    assert "wrong-one" not in said
    assert "right-one" not in said


def test_bad_input_is_refused_before_anything_is_sent(make, redis_client, prefix):
    process = make()

    with pytest.raises(MissingEventId):
        process.check_and_mark({"headers": {}})
    with pytest.raises(MalformedEventId):
        process.check_and_mark("order-17")
    with pytest.raises(MalformedEventId):
        process.process("")
    assert redis_client.keys(f"{prefix}:*") == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"consumer": " billing"}, "write 'billing'"),
        ({"consumer": ""}, "cannot be empty"),
        ({"ttl": "720"}, "ttl: write a duration with its unit"),
        ({"ttl": "10ms"}, "ttl: write 1s or more"),
        ({"lease": "0"}, "lease: write 100ms or more"),
        ({"lease": "1h", "ttl": "1m"}, "lease 1h is longer than ttl 1m"),
        ({"redis": "http://localhost"}, "redis-url"),
    ],
)
@pytest.mark.parametrize("which", [RedisIdempotency, AsyncRedisIdempotency])
def test_options_that_cannot_work_are_refused(which, options, said):
    with pytest.raises(ConfigurationError, match=said):
        which(**{"redis": "redis://localhost", "consumer": "billing", **options})


def test_the_wrong_kind_of_client_is_refused():
    with pytest.raises(TypeError, match="AsyncRedisIdempotency"):
        RedisIdempotency(redis.asyncio.Redis(), "billing")
    with pytest.raises(TypeError, match=r"redis\.asyncio"):
        AsyncRedisIdempotency(Redis(), "billing")
