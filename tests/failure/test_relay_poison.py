"""An event that kills whatever process sends it is found and put aside; kills for another reason condemn no event."""

import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import pytest

from tests.consuming import eventually
from tests.failure.victim import POISONED
from tests.fixtures import OutboxDatabase
from tests.outages import KafkaPlaces, relaying
from tests.victims import PATIENCE, Victim, held_by, hurried, let_it_be_forgotten

# Poison.

BATCH, POISON = 500, 250
COMPANY = [BATCH, BATCH // 8, BATCH // 64, 1, 1]
"""How many rows each of the five relays held when it died: ever fewer, and the last two the poison alone."""


@pytest.mark.slow
def test_a_row_that_kills_its_relays_becomes_a_dead_letter_and_its_neighbours_are_delivered(
    outbox_database: OutboxDatabase, kafka_url: str, tmp_path: Path
):
    """Here each lease ends by the test's hand; the next test waits for it."""
    assert_poison_is_found(outbox_database, kafka_url, tmp_path, let_it_be_forgotten)


@pytest.mark.full
def test_a_supervisor_that_only_restarts_its_relay_gets_rid_of_a_poison_row(
    outbox_database: OutboxDatabase, kafka_url: str, tmp_path: Path
):
    assert_poison_is_found(outbox_database, kafka_url, tmp_path, lambda _database, _relay: None)


def assert_poison_is_found(
    database: OutboxDatabase, kafka_url: str, folder: Path, after_each_death: Callable[[OutboxDatabase, str], None]
) -> None:
    # given a full batch with a row in its middle that kills its process
    kafka = KafkaPlaces(kafka_url)
    published = database.publish(BATCH, topic=(topic := kafka.new()))
    poison = database.events()[POISON]
    neighbours = set(published) - {poison.id}
    settings = hurried(kafka, BATCH)
    companies: list[int] = []

    # when somebody starts the relay again each time that it dies
    while is_open(database):
        assert len(companies) <= len(COMPANY)
        with Victim(database, folder, settings, poison=poison.payload) as victim:
            if not dies(victim, database):
                assert victim.stop() == 0, victim.log()
                break
        assert victim.exit_code == POISONED, victim.log()
        held = held_by(database, victim.relay)
        assert poison.id in {row.id for row in held}
        companies.append(len(held))
        after_each_death(database, victim.relay)

    # then it took ever fewer along
    assert companies == COMPANY

    # and is a dead letter, the only one
    (letter,) = database.dead_letters()
    assert (letter.id, letter.reason, letter.attempts) == (poison.id, "kills its relay", 0)
    assert letter.payload == poison.payload

    # and all its neighbours are delivered, uncharged
    arrived = Counter(map(UUID, kafka.ids(topic)))
    assert arrived.keys() == neighbours
    assert max(arrived.values()) <= len(COMPANY)
    assert {row.id: (row.status, row.attempts) for row in database.events()} == dict.fromkeys(
        neighbours, ("PROCESSED", 0)
    )
    assert database.claims() == 0


def dies(victim: Victim, database: OutboxDatabase) -> bool:
    """False where nothing is left to do for it."""
    eventually(lambda: victim.exit_code is not None or not is_open(database), within=PATIENCE)
    return victim.exit_code is not None


def is_open(database: OutboxDatabase) -> bool:
    return not database.statuses().keys().isdisjoint({"PENDING", "IN_PROCESS"})


# Kills for another reason.

SMALL, KILLS = 100, 5


@pytest.mark.slow
def test_five_kills_in_the_middle_of_full_batches_condemn_nobody(
    outbox_database: OutboxDatabase, kafka_url: str, tmp_path: Path
):
    # given a relay that always has more than enough to do
    database, kafka = outbox_database, KafkaPlaces(kafka_url)
    topic = kafka.new()
    settings = hurried(kafka, SMALL)
    recovery = database.relay().duties.recovery
    published: list[UUID] = []
    lost: Counter[UUID] = Counter()
    full = 0

    # when it is killed at any moment, again and again, until it has had a whole batch in its hands five times
    while full < KILLS:
        assert len(published) < 100 * SMALL, f"{full} kills met a full batch"
        published += database.publish(4 * SMALL, topic=topic)
        with Victim(database, tmp_path, settings) as victim:
            eventually(lambda: held_by(database, victim.relay))
            time.sleep(random.uniform(0, 0.05))
            victim.kill()
        held = held_by(database, victim.relay)
        let_it_be_forgotten(database, victim.relay)
        returned = recovery.run_once()
        if returned:  # else its last commit had been on its way
            assert returned == len(held)
            lost.update(row.id for row in held)
            full += returned >= SMALL

    # then the next relay delivers everything
    with relaying(database, settings["sender"], **settings):
        eventually(lambda: database.statuses() == {"PROCESSED": len(published)}, within=PATIENCE)

    # and no event is a dead letter, or charged, though each kill is remembered
    assert database.dead_letters() == []
    rows = database.events()
    assert {row.attempts for row in rows} == {0}
    assert Counter({row.id: row.lost_claims for row in rows if row.lost_claims}) == lost
    assert lost.total() >= KILLS * SMALL

    # and nothing is lost, and only what a killed relay held can have been sent again
    arrived = Counter(map(UUID, kafka.ids(topic)))
    assert arrived.keys() == set(published)
    assert all(count <= 1 + lost[event_id] for event_id, count in arrived.items())
    print(f"\n{len(published)} events, {lost.total()} lost claims, {arrived.total() - len(arrived)} copies")
