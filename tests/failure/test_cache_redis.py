"""Whatever Redis does behind a cache changes speed only: effects happen once, nobody waits twice, and it is said once."""

import os
import random
import threading

import pytest
from redis import Redis
from redis.exceptions import RedisError
from sqlalchemy import make_url

from outbox_consumer.cache import InProcessCache, RedisCache, TieredCache
from outbox_consumer.cache.circuit import LONGEST_PAUSE
from tests.caching import CachedConsumer, client_of, ids
from tests.clocks import HandHeldClock
from tests.consuming import a_message, eventually

PREFIX = "outbox:consumed"


@pytest.fixture
def clock():
    return HandHeldClock()


@pytest.fixture
def cache(own_redis, clock):
    made = RedisCache(own_redis.url, prefix=PREFIX, clock=clock)
    yield made
    made.close()


@pytest.fixture
def server(own_redis):
    """A way to its Redis that nothing of the test stands in."""
    with client_of(f"redis://127.0.0.1:{own_redis.port}/0") as client:
        yield client


# Ways to go wrong, and what makes it good again.


def killed(own_redis, server):
    own_redis.kill()
    yield
    own_redis.restart()


def restarted(own_redis, server):
    own_redis.stop()
    own_redis.restart()
    yield


def paused(own_redis, server):
    own_redis.pause()
    yield
    own_redis.resume()


def in_a_black_hole(own_redis, server):
    own_redis.proxy.black_hole()
    yield
    own_redis.proxy.reset()
    own_redis.proxy.heal()


def answers_lost(own_redis, server):
    own_redis.proxy.black_hole("answers")
    yield
    own_redis.proxy.reset()
    own_redis.proxy.heal()


def cut_off(own_redis, server):
    own_redis.proxy.cut()
    yield
    own_redis.proxy.heal()


def flushed(own_redis, server):
    server.flushall()
    yield


def full(own_redis, server):
    server.config_set("maxmemory-policy", "noeviction")
    server.config_set("maxmemory", 1)
    yield
    server.config_set("maxmemory", 0)


def evicting(own_redis, server):
    server.config_set("maxmemory-policy", "allkeys-random")
    server.config_set("maxmemory", server.info("memory")["used_memory"] + 20_000)
    yield
    server.config_set("maxmemory", 0)


def a_replica(own_redis, server):
    server.config_set("replica-serve-stale-data", "yes")
    server.replicaof("127.0.0.1", 1)
    yield
    server.replicaof("NO", "ONE")


def with_another_password(own_redis, server):
    server.config_set("requirepass", "changed")
    server.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    yield
    server.execute_command("AUTH", "changed")
    server.config_set("requirepass", "")


def without_rights(own_redis, server):
    server.execute_command("ACL", "SETUSER", "default", "-mget", "-set")
    yield
    server.execute_command("ACL", "SETUSER", "default", "+@all")


def holding_other_things(own_redis, server):
    """Under our keys there are values of strangers."""
    for number, key in enumerate(server.keys(f"{PREFIX}:*")):
        server.delete(key)
        if number % 3 == 0:
            server.hset(key, "a", "b")
        elif number % 3 == 1:
            server.rpush(key, "a")
        else:
            server.set(key, b"\xff\x00")
    yield


CALAMITIES = [
    killed, restarted, paused, in_a_black_hole, answers_lost, cut_off, flushed, full, evicting, a_replica, with_another_password,
    without_rights, holding_other_things,
]  # fmt: skip


@pytest.fixture(params=CALAMITIES, ids=lambda calamity: calamity.__name__)
def calamity(request, own_redis, server):
    return request.param(own_redis, server)


@pytest.mark.parametrize("tiers", [1, 2])
def test_effects_happen_once_whatever_redis_does_and_its_help_returns(
    calamity, cache, clock, server, consuming_on_postgresql, tiers
):
    # given two processes, and events that come three times in any order, before, during and after it
    database = consuming_on_postgresql
    consumers = [
        CachedConsumer(database, cache if tiers == 1 else TieredCache(InProcessCache(), cache), clock=clock)
        for _ in range(2)
    ]
    messages = [a_message() for _ in range(30)]
    deliveries = [message for message in messages for _ in range(3)]
    chance = random.Random(7)
    chance.shuffle(deliveries)

    for number, message in enumerate(deliveries):
        if number == 20:
            next(calamity)
        if number == 60:
            next(calamity, None)
        clock.sleep(0.05)
        chance.choice(consumers).deliver(message)

    assert database.effects() == sorted(message["outbox_event_id"] for message in messages)

    # then, when it is over, processes that begin anew find in Redis what the first of them was told by the database
    clock.sleep(LONGEST_PAUSE)
    first, second = (CachedConsumer(database, cache, clock=clock) for _ in range(2))
    for consumer in (first, first, second):
        for message in messages:
            consumer.deliver(message)
    assert second.hits == len(messages)
    assert len(database.effects()) == len(messages)


@pytest.mark.parametrize("how", [paused, in_a_black_hole, answers_lost])
def test_a_redis_that_does_not_answer_is_waited_for_once_and_then_left_alone(own_redis, server, cache, clock, how):
    some = ids(1)
    cache.remember("billing", some)
    outage = how(own_redis, server)
    next(outage)
    came = own_redis.proxy.counters.connections

    # the first look waits for its timeout, on the connection that it had; nothing after it even connects
    assert cache.known("billing", some) == set()
    for _ in range(100):
        assert cache.known("billing", some) == set()
        cache.remember("billing", some)
        cache.forget("billing", some)
    assert own_redis.proxy.counters.connections == came

    # after the pause one look tries again, once
    clock.sleep(1.0)
    for _ in range(100):
        cache.known("billing", some)
    assert own_redis.proxy.counters.connections == came + 1

    next(outage, None)
    clock.sleep(LONGEST_PAUSE)
    assert cache.known("billing", some) == set(some)


def test_threads_that_wait_for_it_at_once_all_go_on(own_redis, server, cache):
    own_redis.pause()
    some, start, answers = ids(1), threading.Barrier(16), []

    def look():
        start.wait()
        answers.append(cache.known("billing", some))

    threads = [threading.Thread(target=look) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)

    assert answers == [set()] * 16


def test_a_full_redis_is_asked_on_and_told_nothing_and_neither_is_said_for_each_message(
    own_redis, server, cache, clock, caplog
):
    caplog.set_level("INFO")
    known, new = ids(2), ids(50)
    cache.remember("billing", known)
    fullness = full(own_redis, server)
    next(fullness)

    refused = server.info("stats")["total_error_replies"]
    for number, event_id in enumerate(new):
        assert cache.known("billing", [*known, event_id]) == set(known)
        cache.remember("billing", [event_id] if number % 2 else new[:3])
        clock.sleep(0.05)

    assert (
        server.info("stats")["total_error_replies"] - refused <= 2 + 3 * 2
    )  # at once, after 1 s, after 2 s; three in a batch
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "takes no ids" in caplog.text
    assert "maxmemory" in caplog.text

    next(fullness, None)
    clock.sleep(LONGEST_PAUSE)
    cache.remember("billing", new)
    assert cache.known("billing", new) == set(new)
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


def test_an_outage_is_said_once_at_its_beginning_and_once_at_its_end(own_redis, cache, clock, caplog):
    caplog.set_level("INFO")
    some = ids(1)
    cache.known("billing", some)
    own_redis.kill()

    for _ in range(200):
        cache.known("billing", some)
        cache.remember("billing", some)
        clock.sleep(0.5)
    own_redis.restart()
    for _ in range(100):
        cache.known("billing", some)
        clock.sleep(0.5)

    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert str(some[0]) not in caplog.text


def test_a_wrong_password_is_no_error_and_neither_password_is_ever_logged(own_redis, server, clock, caplog):
    caplog.set_level("DEBUG")
    server.config_set("requirepass", "right-one")
    cache = RedisCache(f"redis://:wrong-one@127.0.0.1:{own_redis.port}/0", clock=clock)
    some = ids(1)

    cache.remember("billing", some)
    assert cache.known("billing", some) == set()

    assert caplog.text.count("is away") == 1
    assert "wrong-one" not in caplog.text + repr(cache)
    assert "right-one" not in caplog.text
    cache.close()


@pytest.mark.parametrize(
    "url",
    [
        "redis://no-such-host.invalid:6379/0",
        f"redis://{'x' * 70}.invalid/0",
        "unix:///nowhere/redis.sock",
        "redis://127.0.0.1:1/0",
    ],
)
def test_an_address_where_nobody_is_costs_nothing_but_a_line(url, clock, caplog):
    cache = RedisCache(url, clock=clock)
    some = ids(2)

    cache.remember("billing", some)
    assert cache.known("billing", some) == set()
    cache.forget("billing", some)

    assert caplog.text.count("is away") == 1
    cache.close()


def test_somebody_else_than_redis_at_the_address_is_no_error(postgresql_server, clock):
    url = make_url(postgresql_server)
    cache = RedisCache(f"redis://{url.host}:{url.port}/0", clock=clock)
    some = ids(1)

    cache.remember("billing", some)

    assert cache.known("billing", some) == set()
    cache.close()


def test_a_batch_is_one_command_to_look_and_one_round_trip_to_remember(own_redis, server, cache, clock):
    some = ids(100)
    assert cache.known("billing", some) == set()

    # all hundred are sent before an answer is waited for: here none comes
    own_redis.proxy.black_hole("answers")
    cache.remember("billing", some)
    eventually(lambda: server.dbsize() == 100)
    own_redis.proxy.reset()
    own_redis.proxy.heal()
    clock.sleep(LONGEST_PAUSE)

    assert cache.known("billing", some) == set(some)
    stats = server.info("commandstats")
    assert stats["cmdstat_mget"]["calls"] == 2
    assert not {"cmdstat_exec", "cmdstat_get"} & set(stats)


def test_an_answer_that_belongs_to_another_command_hides_no_event(own_redis, server, cache):
    """A reply that was left on a connection would be read as the next one's; redis-py drops such connections, and values name their id."""
    (consumed,), (new,) = ids(1), ids(1)
    cache.remember("billing", [consumed])
    value = server.get(f"{PREFIX}:billing:{consumed}")

    server.set(f"{PREFIX}:billing:{new}", value)

    assert cache.known("billing", [new]) == set()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_has_sockets_of_its_own(own_redis, server, cache):
    some = ids(1)
    cache.remember("billing", some)
    ours = {client["id"] for client in server.client_list()}

    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        known = cache.known("billing", some) == set(some)
        os.write(write, b"1" if known else b"0")
        os.read(read, 0)
        os.kill(os.getpid(), 19)  # stands still, with its connection open
    assert os.read(read, 1) == b"1"
    os.waitpid(child, os.WUNTRACED)

    theirs = {client["id"] for client in server.client_list()} - ours
    assert len(theirs) == 1
    assert cache.known("billing", some) == set(some)
    os.kill(child, 9)
    os.waitpid(child, 0)


def test_a_client_of_ones_own_is_used_as_it_is_and_left_open(own_redis):
    with Redis.from_url(own_redis.url) as client:
        cache, some = RedisCache(client), ids(1)
        cache.remember("billing", some)
        cache.close()

        assert cache.known("billing", some) == set(some)
        try:
            assert client.ping()
        except RedisError:
            pytest.fail("the cache closed a client that is not its own")
