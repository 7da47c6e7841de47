"""What can never be sent is rejected alone and with its reason: a whole relay, its real sender, a real broker, a batch of 500."""

import logging
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from sqlalchemy import update

from outbox_publisher import Event, EventDraft, Handlers, HandlerSender, Outbox, Reject, Relay, Turn
from outbox_publisher.senders import sender_for
from outbox_publisher.settings import SenderSettings
from tests.consuming import eventually
from tests.fixtures import OutboxDatabase
from tests.outages import KafkaPlaces, RabbitPlaces, rabbitmqctl, relaying

BATCH, BAD = 500, 137
GOOD_PAYLOAD, LARGE = b'{"ok":true}', b"x" * 2_000_000
WHOLE_BATCH = {"topic": "orders", "batch_size": BATCH, "fixed_delay": "50ms"}


def publish(
    database: OutboxDatabase, topic: str, payload: bytes = GOOD_PAYLOAD, bad: Mapping[str, Any] | None = None
) -> list[UUID]:
    """A batch of events in one transaction; `bad` is what number 137 has instead. Returns their ids."""
    outbox = Outbox(database.settings(max_payload=10_000_000))
    drafts = [
        EventDraft("order-created", **{"payload": payload, "topic": topic, "key": "one", **((bad or {}) if n == BAD else {})})
        for n in range(BATCH)
    ]  # fmt: skip
    with database.engine.begin() as connection:
        return list(outbox.publish_batch(connection, drafts).ids)


def relay_once(database: OutboxDatabase, sender_settings: dict[str, Any]) -> Turn:
    """One round of a relay with its real sender."""
    settings = database.settings(sender=sender_settings, defaults=WHOLE_BATCH)
    with_sender = sender_for(settings)
    try:
        return Relay(settings, engine=database.engine, sender=with_sender).run_once()
    finally:
        with_sender.close()


def assert_only_one_was_rejected(
    database: OutboxDatabase, ids: list[UUID], arrived: list[str], said: str, **had: Any
) -> None:
    """It is a dead letter with everything that it had, and its neighbours are with the broker and done."""
    assert set(arrived) == {str(one) for n, one in enumerate(ids) if n != BAD}
    assert {(row.status, row.attempts) for row in database.events()} == {("PROCESSED", 0)}
    assert len(database.events()) == BATCH - 1
    (letter,) = database.dead_letters()
    had = {"id": ids[BAD], "payload": GOOD_PAYLOAD, "key": "one", **had}
    assert {name: getattr(letter, name) for name in had} == had
    assert (letter.reason, letter.dlq_status, letter.attempts) == ("rejected", "MOVED", 1)
    assert said in letter.last_error
    assert database.claims() == 0


# Kafka: too large.


@pytest.fixture
def kafka(kafka_url: str) -> KafkaPlaces:
    return KafkaPlaces(kafka_url)


def test_kafkas_client_refuses_one_of_500_and_the_others_arrive(postgresql_outbox: OutboxDatabase, kafka: KafkaPlaces):
    topic = kafka.new()
    ids = publish(postgresql_outbox, topic, bad={"payload": LARGE})

    turn = relay_once(postgresql_outbox, kafka.settings())

    arrived = kafka.ids(topic)
    assert (turn.claimed, turn.delivered, turn.buried) == (BATCH, BATCH - 1, 1)
    assert_only_one_was_rejected(postgresql_outbox, ids, arrived, "Message size too large", payload=LARGE)
    assert len(arrived) == BATCH - 1


def refused_together(url: str, topic: str, messages: list[dict[str, Any]], **properties: Any) -> int:
    """How many of these messages a broker refuses where each is given to the client once: the trap."""
    refused: list[int] = []
    producer = Producer({"bootstrap.servers": url, "enable.idempotence": True, "linger.ms": 100, **properties})
    for message in messages:
        producer.produce(topic, on_delivery=lambda error, _: refused.append(error is not None), **message)
    assert producer.flush(30) == 0
    return sum(refused)


YEARS_AGO = datetime(2020, 1, 31, tzinfo=UTC)
REFUSALS: dict[str, tuple[dict[str, str], dict[str, Any], dict[str, Any], str]] = {
    "too large": ({}, {"payload": LARGE}, {"value": LARGE}, "Broker: Message size too large"),
    "no key in a compacted topic": (
        {"cleanup.policy": "compact"}, {"key": None}, {"key": None}, "Broker: Broker failed to validate record"
    ),
    "too old for its topic": (
        {"message.timestamp.before.max.ms": "3600000"}, {"occurred_at": YEARS_AGO},
        {"timestamp": int(YEARS_AGO.timestamp() * 1000)}, "Broker: Invalid timestamp",
    ),
}  # fmt: skip
"""What the topic is like, what the bad event has, what a bare message would have, and what the broker says."""


@pytest.mark.parametrize("why", REFUSALS)
def test_kafka_refuses_one_of_500_by_a_verdict_on_all_and_the_others_arrive(
    postgresql_outbox: OutboxDatabase, kafka: KafkaPlaces, why: str
):
    # given a client that lets anything through, and a broker whose verdict on one covers the whole wire batch
    config, bad, bare, said = REFUSALS[why]
    properties = {"message.max.bytes": 5_000_000, "batch.size": 5_000_000}
    messages = [{"value": GOOD_PAYLOAD, "key": "one", **(bare if n == BAD else {})} for n in range(BATCH)]
    assert refused_together(kafka.url, create_topic(kafka.url, config=config), messages, **properties) > BATCH // 2
    topic = create_topic(kafka.url, config=config)
    ids = publish(postgresql_outbox, topic, bad=bad)

    # when they are relayed, with a little patience so that they do share a wire batch
    settings = kafka.settings(kafka={"properties": {**properties, "linger.ms": 5}}, publish_timeout="20s")
    turn = relay_once(postgresql_outbox, settings)

    # then only the bad one is dead, and nobody was sent twice
    arrived = kafka.ids(topic)
    assert (turn.claimed, turn.delivered, turn.buried) == (BATCH, BATCH - 1, 1)
    assert_only_one_was_rejected(postgresql_outbox, ids, arrived, said, **bad)
    assert len(arrived) == BATCH - 1


def test_kafka_refuses_500_legal_messages_for_their_sum_and_all_arrive(
    postgresql_outbox: OutboxDatabase, kafka: KafkaPlaces
):
    # given a topic that takes 10 kB, and not what the client makes of several
    payload = b"x" * 10_000
    small = {"config": {"max.message.bytes": "50000"}}
    assert refused_together(kafka.url, create_topic(kafka.url, **small), [{"value": payload}] * 100) > 50
    topic = create_topic(kafka.url, **small)
    ids = publish(postgresql_outbox, topic, payload)

    # when
    turn = relay_once(postgresql_outbox, kafka.settings(publish_timeout="20s"))

    # then
    assert (turn.claimed, turn.delivered) == (BATCH, BATCH)
    assert sorted(kafka.ids(topic)) == sorted(str(one) for one in ids)
    assert {(row.status, row.attempts) for row in postgresql_outbox.events()} == {("PROCESSED", 0)}
    assert postgresql_outbox.dead_letters() == []


def create_topic(url: str, name: str = "", **options: Any) -> str:
    name = name or f"small.{uuid4().hex[:12]}"
    admin = AdminClient({"bootstrap.servers": url})
    for future in admin.create_topics([NewTopic(name, 1, 1, **options)], operation_timeout=20).values():
        future.result(30)
    eventually(lambda: name in admin.list_topics(timeout=10).topics)
    return name


CRASHES = """
import sys
sys.path.insert(0, {root!r})
from outbox_publisher import PublisherSettings, Relay
turn = Relay(PublisherSettings(database_url={url!r}, sender={sender!r}, defaults={defaults!r})).run_once()
print(turn.delivered, turn.buried)
"""


def test_a_header_that_would_crash_the_process_is_rejected_before_the_client_sees_it(
    postgresql_outbox: OutboxDatabase, kafka: KafkaPlaces
):
    # given a row that another program has written; its header's name ends the interpreter where Kafka's client is given it
    plain = (
        f"from confluent_kafka import Producer; producer = Producer({{'bootstrap.servers': {kafka.url!r}}}); "
        "producer.produce('t', b'', headers={chr(0xd800): b'x'})"
    )
    assert subprocess.run([sys.executable, "-c", plain], check=False).returncode == -signal.SIGSEGV
    topic = kafka.new()
    ids = publish(postgresql_outbox, topic)
    events = postgresql_outbox.store.tables.events
    with postgresql_outbox.engine.begin() as connection:
        connection.execute(update(events).where(events.c.id == ids[BAD]).values(headers='{"\\ud800": "x"}'))

    # when a process of its own relays it
    script = CRASHES.format(
        root=str(Path(__file__).parents[2]), url=postgresql_outbox.url, sender=kafka.settings(), defaults=WHOLE_BATCH
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=60)

    # then
    assert done.stdout.split() == [str(BATCH - 1), "1"]
    assert_only_one_was_rejected(postgresql_outbox, ids, kafka.ids(topic), "header")


# RabbitMQ: too large, and what closes the channel.


@pytest.fixture
def rabbitmq(rabbitmq_url: str) -> Iterator[RabbitPlaces]:
    places = RabbitPlaces(rabbitmq_url)
    yield places
    places.remove()


def test_rabbitmq_takes_two_megabytes_like_any_other_message(postgresql_outbox: OutboxDatabase, rabbitmq: RabbitPlaces):
    exchange = rabbitmq.new()
    ids = publish(postgresql_outbox, exchange, bad={"payload": LARGE})

    turn = relay_once(postgresql_outbox, rabbitmq.settings())

    assert turn.delivered == BATCH
    assert rabbitmq.ids(exchange) == [str(one) for one in ids]


def test_rabbitmq_closes_the_channel_over_one_of_500_and_the_others_arrive(
    postgresql_outbox: OutboxDatabase, rabbitmq: RabbitPlaces
):
    # the header CC has a meaning of its own, and where it is no list RabbitMQ closes the channel, without a word whose fault it was
    exchange = rabbitmq.new()
    ids = publish(postgresql_outbox, exchange, bad={"headers": {"CC": "x"}})

    turn = relay_once(postgresql_outbox, rabbitmq.settings(publish_timeout="20s"))

    assert (turn.claimed, turn.delivered, turn.buried) == (BATCH, BATCH - 1, 1)
    assert_only_one_was_rejected(postgresql_outbox, ids, rabbitmq.ids(exchange), "PRECONDITION_FAILED")


@pytest.mark.slow
def test_a_rabbitmq_with_a_limit_refuses_one_of_500_and_the_others_arrive(
    postgresql_outbox: OutboxDatabase, own_server
):
    broker = own_server("rabbitmq")
    rabbitmqctl(broker, "eval", "application:set_env(rabbit, max_message_size, 1000000).")
    places = RabbitPlaces(broker.url)
    exchange = places.new()
    ids = publish(postgresql_outbox, exchange, bad={"payload": LARGE})

    turn = relay_once(postgresql_outbox, places.settings(publish_timeout="20s"))

    assert (turn.claimed, turn.delivered, turn.buried) == (BATCH, BATCH - 1, 1)
    assert_only_one_was_rejected(
        postgresql_outbox,
        ids,
        places.ids(exchange),
        "message size 2000000 is larger than configured max size",
        payload=LARGE,
    )


# Nowhere to go.


class Nowhere:
    """A place that is missing, a way to make it, and what came there."""

    def __init__(self, places: KafkaPlaces | RabbitPlaces, kind: str) -> None:
        self.places, self.kind = places, kind
        self.name = f"late-{uuid4().hex[:12]}"
        if kind == "route":
            assert isinstance(places, RabbitPlaces)
            places.new(self.name, queue=False)

    def appear(self) -> None:
        if isinstance(self.places, KafkaPlaces):
            create_topic(self.places.url, self.name)
        elif self.kind == "route":
            self.places.bind(self.name)
        else:
            self.places.new(self.name)


SAID = {"topic": "nknown topic", "exchange": "NOT_FOUND - no exchange", "route": "NO_ROUTE"}


@pytest.fixture(params=["kafka-topic", "rabbitmq-exchange", "rabbitmq-route"])
def nowhere(request: pytest.FixtureRequest) -> Nowhere:
    broker, kind = request.param.split("-")
    return Nowhere(request.getfixturevalue(broker), kind)


def waiting(database: OutboxDatabase) -> list[Any]:
    """Rows that were refused, and wait."""
    return [row for row in database.events() if row.status == "PENDING" and row.last_error]


@pytest.mark.slow
def test_a_place_that_stays_missing_beyond_its_grace_costs_its_own_event_alone(
    postgresql_outbox: OutboxDatabase, nowhere: Nowhere
):
    # given 499 events for a place that is there and one for a place that is not
    database, here = postgresql_outbox, nowhere.places.new()
    ids = publish(database, here, bad={"topic": nowhere.name})
    settings = nowhere.places.settings(unknown_topic_grace="3s")

    # when a relay runs
    with relaying(database, settings, defaults=WHOLE_BATCH):
        # then the one waits at first, uncharged, while the others go
        eventually(lambda: database.statuses() == {"PROCESSED": BATCH - 1, "PENDING": 1})
        eventually(lambda: waiting(database) != [])
        (late,) = waiting(database)
        assert (late.id, late.attempts) == (ids[BAD], 0)
        assert SAID[nowhere.kind] in late.last_error
        assert database.dead_letters() == []

        # and is rejected when the grace is over
        eventually(lambda: database.dead_letters() != [])
    assert_only_one_was_rejected(database, ids, nowhere.places.ids(here), SAID[nowhere.kind])
    (letter,) = database.dead_letters()
    assert nowhere.name in letter.last_error
    assert "stayed so for 3 s" in letter.last_error


@pytest.mark.slow
def test_a_place_that_appears_within_its_grace_receives_its_event(postgresql_outbox: OutboxDatabase, nowhere: Nowhere):
    # given a relay that has met a missing place
    database, here = postgresql_outbox, nowhere.places.new()
    ids = publish(database, here, bad={"topic": nowhere.name})
    with relaying(database, nowhere.places.settings(unknown_topic_grace="2m"), defaults=WHOLE_BATCH):
        eventually(lambda: len(waiting(database)) == 1)

        # when it appears
        nowhere.appear()

        # then the event goes there, and nothing was charged for the wait
        eventually(lambda: database.statuses() == {"PROCESSED": BATCH}, within=30)
    assert nowhere.places.ids(nowhere.name) == [str(ids[BAD])]
    assert len(nowhere.places.ids(here)) == BATCH - 1
    assert {(row.attempts, row.lost_claims) for row in database.events()} == {(0, 0)}
    assert database.dead_letters() == []


# Words that no database stores as they are.

NASTY = "broken \x00 off \ud800 here \udfff and 'there'"
CLEANED = "broken \ufffd off ? here ? and 'there'"


@pytest.mark.parametrize(
    ("error", "becomes"),
    [(Reject(NASTY), "rejected"), (ValueError(NASTY), "retry")],
    ids=["rejected", "retry"],
)
def test_an_error_text_with_nul_and_surrogates_costs_its_own_event_alone(
    outbox_database: OutboxDatabase, caplog: pytest.LogCaptureFixture, error: Exception, becomes: str
):
    caplog.set_level(logging.ERROR)  # the words of a traceback are the handler's own, and no report can carry these
    # given a handler that stumbles over one of 500, in words that would fail the statement which carries them
    ids = publish(outbox_database, "orders")
    done: list[Event] = []

    def handle(event: Event) -> None:
        if event.id == ids[BAD]:
            raise error
        done.append(event)

    handlers = Handlers()
    handlers.add("order-created", handle)
    sender = HandlerSender(handlers, SenderSettings())

    # when
    turn = outbox_database.relay(sender, defaults=WHOLE_BATCH).run_once()
    sender.close()

    # then the words are stored as far as they can be, and the others are done
    assert (turn.claimed, turn.delivered, turn.fenced) == (BATCH, BATCH - 1, 0)
    if becomes == "rejected":
        assert_only_one_was_rejected(outbox_database, ids, [str(event.id) for event in done], CLEANED)
        return
    (row,) = waiting(outbox_database)
    assert (row.id, row.attempts, row.last_error) == (ids[BAD], 1, f"ValueError: {CLEANED}")
    assert outbox_database.statuses() == {"PROCESSED": BATCH - 1, "PENDING": 1}
    assert outbox_database.claims() == 0
