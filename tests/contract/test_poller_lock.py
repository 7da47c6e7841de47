"""The optional single-poller lock: one relay works, the others wait until it closes or dies; without Redis all go on."""

from contextlib import ExitStack

import pytest
from redis import Redis
from sqlalchemy import select, update

from outbox_publisher import PublisherSettings, Relay, Turn
from outbox_publisher.relay.lock import LEASE_NAME
from outbox_publisher.senders import MemorySender
from outbox_shared.errors import ConfigurationError
from outbox_shared.sqltypes import wall_time_plus
from outbox_shared.state import LEASE
from tests.clocks import HandHeldClock, time_of
from tests.consuming import eventually
from tests.fixtures import OutboxDatabase

KEY = "lock:outbox:poller"


class Lock:
    """What a test may see of the lock, and do to it."""

    def __init__(self, database: OutboxDatabase) -> None:
        self.database = database
        self.settings = {"lock": "database"}

    def seconds_left(self) -> float | None:
        """How long it will be held if nobody renews it; None where it is free."""
        state = self.database.store.tables.state
        with self.database.engine.connect() as connection:
            until = connection.execute(
                select(state.c.until).where(state.c.kind == LEASE, state.c.name == LEASE_NAME)
            ).scalar()
        return None if until is None else (until - time_of(self.database)).total_seconds()

    def run_out(self) -> None:
        """As if its holder had not renewed it for 30 s."""
        state = self.database.store.tables.state
        with self.database.engine.begin() as connection:
            connection.execute(update(state).where(state.c.name == LEASE_NAME).values(until=wall_time_plus(-1.0)))

    def shorten(self) -> None:
        """As if 25 of its 30 s had passed."""
        state = self.database.store.tables.state
        with self.database.engine.begin() as connection:
            connection.execute(update(state).where(state.c.name == LEASE_NAME).values(until=wall_time_plus(5.0)))


class LockInRedis(Lock):
    def __init__(self, database: OutboxDatabase, url: str) -> None:
        super().__init__(database)
        self.settings = {"lock": "redis", "redis_url": url}
        self.client = Redis.from_url(url)

    def seconds_left(self) -> float | None:
        left = self.client.pttl(KEY)
        return None if left == -2 else left / 1000

    def run_out(self) -> None:
        self.client.delete(KEY)

    def shorten(self) -> None:
        assert self.client.expire(KEY, 5)


@pytest.fixture
def own_redis(own_server):
    """The lock's key is one for a whole Redis: other tests may not see ours."""
    return own_server("redis")


@pytest.fixture
def redis_lock(own_redis, sqlite_outbox):
    lock = LockInRedis(sqlite_outbox, own_redis.url)
    yield lock
    lock.client.close()


@pytest.fixture(params=["sqlite", "postgresql", "mariadb", "redis"])
def lock(request):
    if request.param == "redis":
        return request.getfixturevalue("redis_lock")
    return Lock(request.getfixturevalue(f"{request.param}_outbox"))


@pytest.fixture
def relay(lock):
    """relay(**options) -> a relay under the lock; closed at the end."""
    with ExitStack() as made:

        def make(**options):
            sender = options.pop("sender", None) or MemorySender()
            one = Relay(lock.database.settings(**lock.settings), engine=lock.database.engine, sender=sender, **options)
            made.callback(one.close)
            return one

        yield make


def test_one_of_two_relays_works(lock, relay):
    lock.database.publish(5)
    first, second = relay(), relay()

    assert first.run_once() == Turn(claimed=5, delivered=5)
    lock.database.publish(3)
    assert [second.run_once() for _ in range(3)] == [Turn()] * 3
    assert lock.database.statuses() == {"PROCESSED": 5, "PENDING": 3}
    assert first.run_once() == Turn(claimed=3, delivered=3)


def test_the_other_takes_over_when_the_first_closes(lock, relay):
    first, second = relay(), relay()
    first.run_once()
    lock.database.publish(3)
    assert second.run_once() == Turn()

    first.close()

    assert lock.seconds_left() is None
    assert second.run_once() == Turn(claimed=3, delivered=3)


def test_the_other_takes_over_when_the_first_has_died(lock, relay):
    first, second = relay(), relay()
    first.run_once()
    lock.database.publish(3)
    assert second.run_once() == Turn()

    lock.run_out()

    assert second.run_once() == Turn(claimed=3, delivered=3)


def test_the_lock_lasts_thirty_seconds_and_is_renewed_every_ten(lock, relay):
    clock = HandHeldClock()
    first = relay(clock=clock)

    first.run_once()
    assert 20 < lock.seconds_left() <= 30
    lock.shorten()
    clock.sleep(9.0)
    first.run_once()
    assert lock.seconds_left() <= 5
    clock.sleep(2.0)
    first.run_once()

    assert 20 < lock.seconds_left() <= 30


def test_one_that_lost_the_lock_notices_and_waits(lock, relay):
    # given a relay that slept through the end of its lock, while another one took it
    clock = HandHeldClock()
    first, second = relay(clock=clock), relay()
    first.run_once()
    lock.run_out()
    second.run_once()
    lock.database.publish(2)

    # when it wakes up
    clock.sleep(60)

    # then it leaves the work to the other, and closing it takes nothing away
    assert first.run_once() == first.run_once() == Turn()
    first.close()
    assert lock.seconds_left() is not None
    assert second.run_once() == Turn(claimed=2, delivered=2)


def test_the_loser_that_closes_leaves_the_lock_alone(lock, relay):
    first, second = relay(), relay()
    first.run_once()
    second.run_once()

    second.close()

    assert lock.seconds_left() > 0


def test_without_a_lock_both_work(outbox_database):
    outbox_database.publish(2)
    first, second = outbox_database.relay(lock="none"), outbox_database.relay(lock="none")

    assert first.run_once().delivered == 2
    outbox_database.publish(2)
    assert second.run_once().delivered == 2


def test_running_relays_hand_over_without_losing_or_doubling_anything(lock):
    settings = lock.database.settings(**lock.settings, defaults={"topic": "t", "fixed-delay": "20ms"})
    senders = [MemorySender(), MemorySender()]
    relays = [Relay(settings, engine=lock.database.engine, sender=sender) for sender in senders]

    with relays[1].background():
        with relays[0].background():
            lock.database.publish(10)
            eventually(lambda: lock.database.statuses() == {"PROCESSED": 10})
            assert sorted(len(sender.sent) for sender in senders) == [0, 10]
            lock.database.publish(10)
        eventually(lambda: lock.database.statuses() == {"PROCESSED": 20})

    sent = [event.id for sender in senders for event in sender.sent]
    assert len(sent) == len(set(sent)) == 20


# Redis alone.


def test_the_key_in_redis_has_its_name_and_its_ttl(redis_lock, own_redis):
    first = Relay(redis_lock.database.settings(**redis_lock.settings), sender=MemorySender())

    first.run_once()

    assert redis_lock.client.keys() == [KEY.encode()]
    assert 20_000 < redis_lock.client.pttl(KEY) <= 30_000
    first.close()
    assert redis_lock.client.keys() == []


def test_anybody_else_who_holds_the_key_keeps_relays_waiting(redis_lock):
    """The name is not ours alone: other programs for the same outbox take it too."""
    redis_lock.database.publish(1)
    redis_lock.client.set(KEY, "somebody", px=60_000)
    relay = Relay(redis_lock.database.settings(**redis_lock.settings), sender=MemorySender())

    assert relay.run_once() == Turn()
    relay.close()
    assert redis_lock.client.get(KEY) == b"somebody"


def test_without_redis_every_relay_goes_on_and_the_lock_returns_with_it(redis_lock, own_redis, caplog):
    # given two relays, one of which holds the lock
    clock = HandHeldClock()
    database = redis_lock.database
    settings = database.settings(**redis_lock.settings)
    first, second = (Relay(settings, engine=database.engine, sender=MemorySender(), clock=clock) for _ in range(2))
    first.run_once()
    assert second.run_once() == Turn()

    # when Redis dies
    own_redis.kill()
    clock.sleep(11)

    # then both work, since claims need no lock, and say once that it is away
    for relay in (first, second, first, second):
        database.publish(1)
        assert relay.run_once() == Turn(claimed=1, delivered=1)
    assert caplog.text.count("Redis is away") == 2

    # and when it is back one of them works
    own_redis.restart()
    redis_lock.run_out()
    database.publish(1)
    for _ in range(2):
        first.run_once()
    database.publish(1)
    assert second.run_once() == Turn()
    assert first.run_once() == Turn(claimed=1, delivered=1)
    first.close()
    second.close()


def test_a_relay_stops_in_peace_while_redis_is_away(redis_lock, own_redis):
    relay = Relay(redis_lock.database.settings(**redis_lock.settings), sender=MemorySender())
    relay.run_once()

    own_redis.kill()

    relay.close()


def test_a_lock_in_redis_without_an_address_names_the_key(sqlite_outbox):
    with pytest.raises((ConfigurationError, ValueError), match="redis-url"):
        sqlite_outbox.settings(lock="redis")


# The database alone.


def test_a_relay_stops_in_peace_while_its_database_is_away(own_server):
    """The lock's row ends by itself."""
    server = own_server("postgresql")
    settings = {"database_url": server.url, "name": "test", "lock": "database", "defaults": {"topic": "t"}}
    relay = Relay(PublisherSettings(**settings), sender=MemorySender())
    relay.run_once()

    server.kill()

    relay.close()
