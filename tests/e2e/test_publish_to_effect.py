"""From publish() to a consumer's effect on PostgreSQL and a real Kafka, with a relay killed -9 in the middle of its work."""

import random
import time
from collections import Counter
from pathlib import Path
from uuid import UUID

import pytest
from sqlalchemy import Column, Integer, MetaData, Table, Uuid, insert, select
from sqlalchemy.orm import Session, sessionmaker

from outbox_consumer import IdempotentConsumer
from outbox_publisher import Outbox
from outbox_publisher.demo.embedded_kafka import read_topic
from outbox_publisher.demo.relay_process import RelayProcess
from tests.fixtures import OutboxDatabase
from tests.outages import KafkaPlaces
from tests.victims import LEASE, RECOVERY, Victim, held_by, hurried

SLACK = 2.0  # a poll of this test, and a machine that is busy
SETTINGS = """
outbox:
  database-url: {url}
  publisher:
    lease: {lease}s
    stuck-recovery: {{fixed-delay: {recovery}s}}
    sender: {{type: kafka, publish-timeout: 2s, kafka: {{bootstrap-servers: "{kafka}"}}}}
    defaults: {{topic: {topic}, batch-size: {batch}, fixed-delay: 50ms}}
"""

EFFECTS = Table("effects", MetaData(), Column("n", Integer, primary_key=True), Column("event_id", Uuid))


def publish(database: OutboxDatabase, topic: str, count: int) -> tuple[set[UUID], set[UUID]]:
    outbox = Outbox(database.settings(defaults={"topic": topic}))
    committed: set[UUID] = set()
    rolled_back: set[UUID] = set()
    with Session(database.engine) as session:
        while len(committed) < count:
            session.begin()
            ids = {outbox.publish(session, "order-created", {"n": n}, key=n).id for n in range(20)}
            if len(rolled_back) < len(committed) / 10:
                session.rollback()
                rolled_back |= ids
            else:
                session.commit()
                committed |= ids
    return committed, rolled_back


@pytest.mark.slow
@pytest.mark.timeout(420)
@pytest.mark.parametrize(("count", "batch"), [(1000, 50), pytest.param(10_000, 200, marks=pytest.mark.full)])
def test_every_event_arrives_and_has_one_effect_although_a_relay_is_killed(
    postgresql_outbox: OutboxDatabase, kafka_url: str, kafka_topic, tmp_path: Path, count: int, batch: int
):
    database, topic = postgresql_outbox, kafka_topic(partitions=4)
    committed, rolled_back = publish(database, topic, count)
    victims = hurried(KafkaPlaces(kafka_url), batch)
    settings = SETTINGS.format(
        url=database.url, kafka=kafka_url, topic=topic, batch=batch, lease=LEASE, recovery=RECOVERY
    )
    survivor = RelayProcess(tmp_path, settings)

    # given two relay processes in the middle of the backlog
    with Victim(database, tmp_path, victims, stands_at=["after produce"], batch=random.randint(1, 8)) as victim:
        victim.stands("after produce")
        survivor.start()
        try:
            # when one of them is killed while the database shows that it holds rows
            held = {row.id for row in held_by(database, victim.relay)}
            assert len(held) >= batch
            victim.kill()
            killed = time.monotonic()
            assert {row.id for row in held_by(database, victim.relay)} == held

            # then its rows are free again after lease and one recovery interval, and everything is relayed
            bound = LEASE + RECOVERY * 1.1 + SLACK
            wait_until(lambda: not held_by(database, victim.relay), bound, "the rows of the victim to be free")
            freed = time.monotonic() - killed
            wait_until(lambda: database.statuses() == {"PROCESSED": count}, 120, "the whole backlog")
        except BaseException:
            print(victim.log(), survivor.log_tail(), database.statuses(), sep="\n")
            raise
        finally:
            survivor.stop()

    # and every committed event is in the broker, nothing else is, and each has exactly one effect
    messages = read_topic(kafka_url, topic)
    arrived = Counter(UUID(dict(message.headers() or [])["outbox_event_id"].decode()) for message in messages)
    assert set(arrived) == committed
    assert not set(arrived) & rolled_back
    copies = len(messages) - count
    assert copies <= len(held)
    assert database.claims() == 0
    assert consume_everything(database, messages) == committed
    print(f"\n{count} events, {copies} sent twice, {len(rolled_back)} rolled back")
    print(f"the victim held {len(held)}, free after {freed:.1f} s")


def consume_everything(database: OutboxDatabase, messages) -> set[UUID]:
    """Deliver each message twice; returns the events that had exactly one effect, and fails for any other number."""
    EFFECTS.create(database.engine)
    consumer = IdempotentConsumer(sessionmaker(database.engine), name="billing")

    def effect(session: Session, message) -> None:
        session.execute(insert(EFFECTS).values(event_id=UUID(dict(message.headers())["outbox_event_id"].decode())))

    for message in [*messages, *messages]:
        consumer.consume(message, effect)
    with database.engine.connect() as connection:
        effects = Counter(connection.execute(select(EFFECTS.c.event_id)).scalars())
    assert set(effects.values()) == {1}
    return set(effects)


def wait_until(condition, seconds: float, what: str) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, f"waited {seconds:.1f} s in vain for {what}"
        time.sleep(0.05)
