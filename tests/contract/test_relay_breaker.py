"""A broker, or a topic, that is away: nothing is charged, nothing is claimed in vain, and it is tried again ever more rarely.

The relay's own loop runs here, on a clock in our hands: ten minutes pass in a moment.
"""

from itertools import pairwise

import pytest
from sqlalchemy import event, update

from outbox_publisher import Relay
from outbox_publisher.senders import MemorySender, SendResult
from tests.clocks import HandHeldClock

PAUSES = [1.0, 2.0, 4.0, 8.0]
"""Seconds, of a relay that polls every 500 ms; then 10 for ever."""


class Broker(MemorySender):
    """Can be away as a whole or for some topics; remembers when it was sent to and when it was asked."""

    def __init__(self, clock):
        super().__init__(answer=self._answer)
        self.clock = clock
        self.down = False
        self.dead_topics = set()
        self.batches = []
        self.probes = []

    def send(self, events, deadline):
        self.batches.append((self.clock.elapsed, [one.topic for one in events]))
        return super().send(events, deadline)

    def probe(self, topic, seconds):
        self.probes.append((self.clock.elapsed, topic))
        if self.down:
            return "connection refused"
        return f"{topic} has no leader" if topic in self.dead_topics else None

    def heal(self):
        self.down = False
        self.dead_topics.clear()

    def _answer(self, one):
        if self.down:
            return SendResult.unavailable("connection refused")
        if one.topic in self.dead_topics:
            return SendResult.unavailable(f"{one.topic} has no leader", scope="topic")
        return None


class SilentBroker(Broker):
    """One that cannot be asked, only sent to."""

    probe = None


@pytest.fixture
def clock():
    return HandHeldClock()


@pytest.fixture
def claims(outbox_database, clock):
    """When rows were claimed: one entry for each claim that found something, whatever became of it."""
    made = []

    @event.listens_for(outbox_database.engine, "after_cursor_execute")
    def _note(_connection, cursor, statement, *_):
        if "INSERT INTO outbox_claims" in statement and cursor.rowcount > 0:
            made.append(clock.elapsed)

    return made


def run(database, broker, clock, seconds, **settings):
    """The relay's loop, until so much of the clock's time has passed."""
    given = {"defaults": {"topic": "orders", "batch-size": 20, "max-retries": 0}, **settings}
    relay = Relay(database.settings(**given), engine=database.engine, sender=broker, clock=clock)
    clock.at(seconds, relay.stop)
    relay._run_workers()
    assert clock.elapsed >= seconds


def pauses_between(times):
    return [later - earlier for earlier, later in pairwise(times)]


def assert_doubling_to_ten_seconds(pauses):
    """Each up to a fifth shorter than it might be, so that many relays do not come back at the same moment."""
    expected = [*PAUSES, *[10.0] * (len(pauses) - len(PAUSES))]
    for pause, longest in zip(pauses, expected, strict=True):
        assert 0.8 * longest - 0.001 <= pause <= longest + 0.001, pauses
    assert len({round(pause, 3) for pause in pauses[len(PAUSES) :]}) > 1, "there is no jitter"


def untouched(database):
    """Whether every row is as it was published, apart from what the broker said."""
    rows = {(row.status, row.attempts, row.lost_claims, row.maybe_sent) for row in database.events()}
    return rows == {("PENDING", 0, 0, False)} and database.dead_letters() == []


def test_ten_minutes_without_a_broker_cost_nothing_and_end_by_themselves(outbox_database, clock, claims):
    # given a broker that is away for ten minutes, and events that may be sent once only
    outbox_database.publish(50)
    broker = Broker(clock)
    broker.down = True
    seen = []
    clock.at(599, lambda: seen.append((untouched(outbox_database), len(claims), outbox_database.claims())))
    clock.at(600, broker.heal)

    # when the relay works all the time
    run(outbox_database, broker, clock, 640)

    # then nothing was charged meanwhile, nothing died, and after the first batch nothing was claimed
    assert seen == [(True, 1, 0)]
    assert [len(topics) for when, topics in broker.batches if when < 600] == [20]

    # and the broker was asked after pauses that double to ten seconds
    asked = [when for when, _ in broker.probes]
    assert_doubling_to_ten_seconds(pauses_between([broker.batches[0][0], *asked]))
    assert len(asked) > 60

    # and within one pause after its return one event went first, then all the others
    back = [(when, len(topics)) for when, topics in broker.batches[1:]]
    assert [count for _, count in back] == [1, 20, 20, 9]
    assert 600 <= back[0][0] <= 610
    assert back[-1][0] - back[0][0] < 2
    assert outbox_database.statuses() == {"PROCESSED": 50}
    assert len(broker.sent) == 50
    assert len(claims) == 5


def test_a_broker_that_cannot_be_asked_is_tried_with_one_row(outbox_database, clock, claims):
    outbox_database.publish(50)
    broker = SilentBroker(clock)
    broker.down = True
    seen = []
    clock.at(599, lambda: seen.append(untouched(outbox_database)))
    clock.at(600, broker.heal)

    run(outbox_database, broker, clock, 640)

    assert seen == [True]
    tries = [(when, len(topics)) for when, topics in broker.batches if when < 600]
    assert [count for _, count in tries] == [20, *[1] * (len(tries) - 1)]
    assert_doubling_to_ten_seconds(pauses_between([when for when, _ in tries]))
    assert [len(topics) for when, topics in broker.batches if when >= 600] == [1, 20, 20, 9]
    assert outbox_database.statuses() == {"PROCESSED": 50}


def test_a_broker_that_looks_fine_and_takes_nothing_is_tried_ever_more_rarely(outbox_database, clock, claims):
    outbox_database.publish(50)
    broker = Broker(clock)
    broker.down = True
    broker.probe = lambda topic, seconds: None

    run(outbox_database, broker, clock, 300)

    assert untouched(outbox_database)
    assert {len(topics) for _, topics in broker.batches[1:]} == {1}
    assert_doubling_to_ten_seconds(pauses_between([when for when, _ in broker.batches]))


def test_a_probe_that_raises_is_a_broker_that_does_not_answer(outbox_database, clock, claims):
    def explode(topic, seconds):
        raise RuntimeError("bug in a probe")

    outbox_database.publish(5)
    broker = Broker(clock)
    broker.down = True
    broker.probe = explode

    run(outbox_database, broker, clock, 120)

    assert untouched(outbox_database)
    assert len(claims) == 1


@pytest.mark.parametrize("types", [("order-created", "order-created"), ("order-created", "order-paid")])
def test_one_dead_topic_does_not_stop_the_others(outbox_database, clock, claims, types):
    # given two topics, of one type or of two, one of which is dead for five minutes
    healthy, ill = types
    outbox_database.publish(30, healthy, topic="healthy")
    outbox_database.publish(30, ill, topic="ill")
    broker = Broker(clock)
    broker.dead_topics = {"ill"}
    for when in range(20, 300, 20):
        clock.at(when, lambda: outbox_database.publish(1, healthy, topic="healthy"))
    seen = []
    clock.at(299, lambda: seen.append({(one.topic, one.status, one.attempts) for one in outbox_database.events()}))
    clock.at(300, broker.heal)

    # when the relay works
    run(outbox_database, broker, clock, 340)

    # then whatever was for the other topic went out all the time, and the dead one's events were charged nothing
    assert seen == [{("healthy", "PROCESSED", 0), ("ill", "PENDING", 0)}]
    assert sum(topics.count("healthy") for when, topics in broker.batches if when < 300) == 30 + len(range(20, 300, 20))

    # and it was met by one batch, then asked only, after pauses that double
    met = [(when, topics.count("ill")) for when, topics in broker.batches if "ill" in topics]
    assert [when < 300 for when, _ in met[:2]] == [True, False]
    asked = [when for when, topic in broker.probes if topic == "ill"]
    assert [topic for _, topic in broker.probes] == ["ill"] * len(asked)
    for pause, longest in zip(pauses_between([met[0][0], *asked]), [*PAUSES, *[10.0] * 100], strict=False):
        assert 0.8 * longest - 0.001 <= pause <= longest + 0.6  # up to a round later

    # and when it is back one event goes first, then all the others
    assert met[1][1] == 1
    assert met[1][0] <= 311
    assert outbox_database.statuses() == {"PROCESSED": 30 + 30 + len(range(20, 300, 20))}
    assert outbox_database.dead_letters() == []


def test_a_topic_that_cannot_be_asked_is_tried_with_one_row(outbox_database, clock, claims):
    outbox_database.publish(10, topic="ill")
    broker = SilentBroker(clock)
    broker.dead_topics = {"ill"}
    clock.at(100, broker.heal)

    run(outbox_database, broker, clock, 130)

    counts = [len(topics) for when, topics in broker.batches if when < 100]
    assert counts == [10, *[1] * (len(counts) - 1)]
    assert 8 <= len(counts) <= 16
    assert [len(topics) for when, topics in broker.batches if when >= 100] == [1, 9]
    assert outbox_database.statuses() == {"PROCESSED": 10}


def test_rows_without_a_topic_pass_a_dead_one(outbox_database, clock, claims):
    outbox_database.publish(5, topic="ill")
    broker = Broker(clock)
    broker.dead_topics = {"ill"}

    def publish_without_a_topic():
        (one,) = outbox_database.publish(1)
        events = outbox_database.store.tables.events
        with outbox_database.engine.begin() as connection:
            connection.execute(update(events).where(events.c.id == one).values(topic=None))

    clock.at(10, publish_without_a_topic)
    run(outbox_database, broker, clock, 30)

    assert [one.topic for one in broker.sent] == ["orders"]


def test_a_dead_topic_of_which_nothing_waits_any_more_is_forgotten(outbox_database, clock, claims):
    outbox_database.publish(2, topic="ill")
    broker = SilentBroker(clock)
    broker.dead_topics = {"ill"}
    relay = Relay(outbox_database.settings(), engine=outbox_database.engine, sender=broker, clock=clock)
    relay.run_once()
    with outbox_database.engine.begin() as connection:
        connection.execute(outbox_database.store.tables.events.delete())
    broker.heal()

    clock.sleep(20)
    relay.run_once()
    outbox_database.publish(7, topic="ill")

    assert relay.run_once().delivered == 7
