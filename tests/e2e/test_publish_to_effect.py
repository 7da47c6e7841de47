"""From publish() to a consumer's effect on PostgreSQL and a real Kafka, with a relay killed -9 in the middle of its work."""

import os
import random
import signal
import time
from collections import Counter
from pathlib import Path
from uuid import UUID

import pytest
from sqlalchemy import Column, Integer, MetaData, Table, Uuid, func, insert, select
from sqlalchemy.orm import Session, sessionmaker

from outbox_consumer import IdempotentConsumer
from outbox_publisher import Outbox
from outbox_publisher.demo.embedded_kafka import read_topic
from outbox_publisher.demo.relay_process import RelayProcess
from tests.fixtures import OutboxDatabase

LEASE, RECOVERY = 6.0, 1.0
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


def held_by(database: OutboxDatabase, pid: int) -> dict[UUID, int]:
    """The claims of the relay process `pid`, with the number of rows that are IN_PROCESS under each."""
    events, claims = database.store.tables.events, database.store.tables.claims
    statement = (
        select(claims.c.token, func.count(events.c.id))
        .join(events, (events.c.claim_token == claims.c.token) & (events.c.status == "IN_PROCESS"))
        .where(claims.c.relay.like(f"%:{pid}:%"))
        .group_by(claims.c.token)
    )
    with database.engine.connect() as connection:
        return {row[0]: row[1] for row in connection.execute(statement).all()}


def rows_under(database: OutboxDatabase, tokens: list[UUID]) -> int:
    events = database.store.tables.events
    with database.engine.connect() as connection:
        return connection.execute(select(func.count()).where(events.c.claim_token.in_(tokens))).scalar_one()


def kill_while_it_holds_rows(database: OutboxDatabase, pid: int) -> dict[UUID, int]:
    """Freeze the relay, read from the database what it holds, and kill it only then: a proof, not a hope."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        os.kill(pid, signal.SIGSTOP)
        first = held_by(database, pid)
        time.sleep(0.05)  # a COMMIT that was already on its way to the server may still arrive
        held = held_by(database, pid)
        if held and held == first:
            os.kill(pid, signal.SIGKILL)
            return held
        os.kill(pid, signal.SIGCONT)
        time.sleep(random.uniform(0.001, 0.02))
    pytest.fail("the relay never held a row")


@pytest.mark.slow
@pytest.mark.timeout(420)
@pytest.mark.parametrize(("count", "batch"), [(1000, 50), pytest.param(10_000, 200, marks=pytest.mark.full)])
def test_every_event_arrives_and_has_one_effect_although_a_relay_is_killed(
    postgresql_outbox: OutboxDatabase, kafka_url: str, kafka_topic, tmp_path: Path, count: int, batch: int
):
    database, topic = postgresql_outbox, kafka_topic(partitions=4)
    settings = SETTINGS.format(
        url=database.url, kafka=kafka_url, topic=topic, batch=batch, lease=LEASE, recovery=RECOVERY
    )
    committed, rolled_back = publish(database, topic, count)
    relays = []
    for name in ("victim", "survivor"):
        (tmp_path / name).mkdir()
        relays.append(RelayProcess(tmp_path / name, settings))
    victim, survivor = relays

    # given two relay processes in the middle of the backlog
    pid = victim.start()
    survivor.start()
    try:
        threshold = random.randint(1, count // 2)
        wait_until(lambda: database.statuses().get("PROCESSED", 0) >= threshold, 120, "a first part of the backlog")

        # when one of them is killed while the database shows that it holds rows
        held = kill_while_it_holds_rows(database, pid)
        killed = time.monotonic()
        victim.kill()
        assert sum(held.values()) > 0
        assert rows_under(database, list(held)) == sum(held.values())

        # then its rows are free again after lease and one recovery interval, and everything is relayed
        bound = LEASE + RECOVERY * 1.1 + SLACK
        wait_until(lambda: rows_under(database, list(held)) == 0, bound, f"the {held} of the victim to be free")
        freed = time.monotonic() - killed
        wait_until(lambda: database.statuses() == {"PROCESSED": count}, 120, "the whole backlog")
    except BaseException:
        print(victim.log_tail(), survivor.log_tail(), database.statuses(), sep="\n")
        raise
    finally:
        victim.kill()
        survivor.stop()

    # and every committed event is in the broker, nothing else is, and each has exactly one effect
    messages = read_topic(kafka_url, topic)
    arrived = Counter(UUID(dict(message.headers() or [])["outbox_event_id"].decode()) for message in messages)
    assert set(arrived) == committed
    assert not set(arrived) & rolled_back
    copies = len(messages) - count
    assert copies <= sum(held.values())
    assert database.claims() == 0
    assert consume_everything(database, messages) == committed
    print(f"\n{count} events, {copies} sent twice, {len(rolled_back)} rolled back")
    print(f"the victim held {sum(held.values())}, free after {freed:.1f} s")


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
