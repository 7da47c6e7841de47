"""A relay is killed, or stands still and wakes up too late, at each border of its way: nothing is lost, and little is sent twice."""

from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from uuid import UUID

import pytest
from sqlalchemy import select

from tests.clocks import time_of
from tests.consuming import eventually, lock_waits
from tests.failure.victim import BORDERS
from tests.fixtures import OutboxDatabase
from tests.outages import KafkaPlaces, Places, RabbitPlaces, relaying
from tests.victims import (
    LEASE,
    RECOVERY,
    Victim,
    everything,
    held_by,
    hurried,
    is_being_settled,
    is_in_a_transaction,
    leases_of,
    let_it_be_forgotten,
    rows_under,
)

BATCH = 100
SLACK = 5.0
"""Seconds beyond the lease and one interval of recovery, for a machine that has other things to do."""


@pytest.fixture
def places(request: pytest.FixtureRequest) -> Iterator[Places]:
    if request.param == "kafka":
        yield KafkaPlaces(request.getfixturevalue("kafka_url"))
        return
    rabbit = RabbitPlaces(request.getfixturevalue("rabbitmq_url"))
    yield rabbit
    rabbit.remove()


WINDOWS = pytest.mark.parametrize("window", [4, pytest.param(1, marks=pytest.mark.full)])
on_kafka = pytest.mark.parametrize("places", ["kafka"], indirect=True)

# kill -9.


@pytest.mark.slow
@pytest.mark.parametrize("border", BORDERS)
@WINDOWS
@pytest.mark.parametrize(
    ("kind", "places"),
    [("postgresql", "kafka"), ("mariadb", "kafka"), ("sqlite", "kafka"), ("postgresql", "rabbitmq")],
    indirect=["places"],
)
def test_a_killed_relay_loses_nothing_and_no_more_than_its_batch_is_sent_again(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str, places: Places, border: str, window: int
):
    # given a relay that stands at a border of its second batch, by the database's own account
    database: OutboxDatabase = request.getfixturevalue(f"{kind}_outbox")
    published = database.publish(5 * BATCH, topic=(place := places.new()))
    settings = hurried(places, BATCH, window)
    with Victim(database, tmp_path, settings, stands_at=[border]) as victim:
        batch = victim.stands(border)
        held = held_by(database, victim.relay)
        in_the_air = {row.id for row in held}
        assert batch <= in_the_air
        assert len(batch) == BATCH
        assert len(in_the_air) <= window * BATCH
        assert border != "during settle" or is_being_settled(database, victim.relay)

        # when it is killed
        victim.kill()

    # then its rows stay under its claims as long as their leases last
    assert held_by(database, victim.relay) == held
    leases = leases_of(database, victim.relay)
    assert database.relay().duties.recovery.run_once() == 0
    assert time_of(database) < leases[0] <= leases[-1] < time_of(database) + timedelta(seconds=LEASE)

    # and no longer: another one takes them over, and sends everything
    with relaying(database, settings["sender"], **settings):
        seen_free = when_free(database, {row.claim_token for row in held})
        eventually(lambda: database.statuses() == {"PROCESSED": len(published)})
    assert leases[0] <= seen_free < leases[-1] + timedelta(seconds=RECOVERY + SLACK)

    # and nothing is lost, only what it held can have been sent twice, and only its rows know of its death
    arrived = places.ids(place)
    assert_all_arrived(arrived, published, copies_of=in_the_air)
    if CERTAINLY_SENT[border] is not None:
        assert sent_twice(arrived) & batch == (batch if CERTAINLY_SENT[border] else set())
    rows = {(row.id in in_the_air, row.attempts, row.lost_claims, row.maybe_sent) for row in database.events()}
    assert rows == {(True, 0, 1, True), (False, 0, 0, False)} or len(in_the_air) == len(published)
    assert (database.dead_letters(), database.claims()) == ([], 0)


CERTAINLY_SENT = {"after claim": False, "after produce": None, "after ack": True, "during settle": True}
"""Whether the broker had the victim's batch; None where it may have had some of it."""


def when_free(database: OutboxDatabase, tokens: set[UUID]) -> datetime:
    """By the database's clock, just after no row is under these claims any more."""
    eventually(lambda: rows_under(database, tokens) == 0, within=LEASE + RECOVERY + 2 * SLACK)
    return time_of(database)


def sent_twice(arrived: list[str]) -> set[UUID]:
    return {UUID(event_id) for event_id, count in Counter(arrived).items() if count > 1}


def assert_all_arrived(arrived: list[str], published: list[UUID], *, copies_of: set[UUID]) -> None:
    copies = Counter(arrived)
    assert copies.keys() == set(map(str, published))
    assert max(copies.values()) <= 2
    assert sent_twice(arrived) <= copies_of


# Paused, and awake again too late.


@pytest.mark.slow
@pytest.mark.parametrize("border", ["after claim", "after produce", "after ack"])
@WINDOWS
@on_kafka
def test_a_relay_that_wakes_up_when_others_have_settled_its_rows_changes_nothing_and_goes_on(
    outbox_database: OutboxDatabase, tmp_path: Path, places: Places, border: str, window: int
):
    # given a relay that stands still, outside of any transaction
    database, settings = outbox_database, hurried(places, BATCH, window)
    published = database.publish(5 * BATCH, topic=(place := places.new()))
    with Victim(database, tmp_path, settings, stands_at=[border, "after settle"]) as victim:
        victim.stands(border)
        pause_between_transactions(database, victim)
        in_the_air = {row.id for row in held_by(database, victim.relay)}
        assert len(in_the_air) >= BATCH

        # when others have taken over and settled all it had, and then it wakes up
        let_it_be_forgotten(database, victim.relay)
        with relaying(database, settings["sender"], **settings):
            eventually(lambda: database.statuses() == {"PROCESSED": len(published)})
        before = everything(database)
        victim.resume()
        victim.go_on()
        victim.stands("after settle")

        # then no row is another one than before
        assert everything(database) == before

        # and it says so, and goes on working
        victim.go_on()
        eventually(lambda: f"{BATCH} order-created events were no longer ours to settle" in victim.log())
        published += database.publish(BATCH, topic=place)
        eventually(lambda: database.statuses() == {"PROCESSED": len(published)})
        assert victim.stop() == 0, victim.log()
    assert_all_arrived(places.ids(place), published, copies_of=in_the_air)
    assert database.dead_letters() == []


@pytest.mark.slow
@WINDOWS
@on_kafka
def test_a_relay_that_wakes_up_while_another_one_sends_its_rows_leaves_them_to_it(
    outbox_database: OutboxDatabase, tmp_path: Path, places: Places, window: int
):
    # given a relay that stands still with its rows acknowledged
    database, settings = outbox_database, hurried(places, BATCH, window)
    published = database.publish(2 * BATCH, topic=(place := places.new()))
    with Victim(database, tmp_path, settings, stands_at=["after ack", "after settle"]) as first:
        first.stands("after ack")
        pause_between_transactions(database, first)
        in_the_air = {row.id for row in held_by(database, first.relay)}

        # when another one has claimed some of them anew, and then it wakes up
        let_it_be_forgotten(database, first.relay)
        with Victim(database, tmp_path, settings, stands_at=["after ack"], batch=1) as second:
            second.stands("after ack")
            claimed = held_by(database, second.relay)
            assert 0 < len(claimed) < BATCH
            first.resume()
            first.go_on()
            first.stands("after settle")

            # then the rows are the other one's still
            assert held_by(database, second.relay) == claimed

            # and it is the other one that settles them
            second.go_on()
            its = {row.id for row in claimed}
            eventually(lambda: its <= {row.id for row in database.events() if row.status == "PROCESSED"})
            first.go_on()
            eventually(lambda: database.statuses() == {"PROCESSED": len(published)})
            assert "no longer ours" in first.log()
            assert "no longer ours" not in second.log()
            assert [first.stop(), second.stop()] == [0, 0]
    assert_all_arrived(places.ids(place), published, copies_of=in_the_air)
    assert (database.dead_letters(), database.claims()) == ([], 0)


@pytest.mark.slow
@WINDOWS
@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])  # nobody can write to SQLite meanwhile
@on_kafka
def test_a_relay_that_stands_still_in_its_settle_loses_its_rows_all_the_same(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str, places: Places, window: int
):
    # given a relay that stands still with its rows locked
    database: OutboxDatabase = request.getfixturevalue(f"{kind}_outbox")
    settings = hurried(places, BATCH, window)
    published = database.publish(3 * BATCH, topic=(place := places.new()))
    with Victim(database, tmp_path, settings, stands_at=["during settle"]) as victim:
        victim.stands("during settle")
        victim.pause()
        in_the_air = {row.id for row in held_by(database, victim.relay)}
        assert len(in_the_air) >= BATCH
        assert is_being_settled(database, victim.relay)

        # when its lease is over, then others settle all it had
        with relaying(database, settings["sender"], **settings):
            eventually(
                lambda: database.statuses() == {"PROCESSED": len(published)}, within=LEASE + RECOVERY + 3 * SLACK
            )
        before = everything(database)

        # and when it wakes up and tries again, it changes nothing and goes on working
        victim.resume()
        victim.go_on()
        victim.stands("during settle")
        victim.go_on()
        eventually(lambda: f"{BATCH} order-created events were no longer ours to settle" in victim.log())
        assert everything(database) == before
        published += database.publish(BATCH, topic=place)
        eventually(lambda: database.statuses() == {"PROCESSED": len(published)})
        assert victim.stop() == 0, victim.log()
    assert_all_arrived(places.ids(place), published, copies_of=in_the_air)
    assert database.dead_letters() == []


# What has left in one write needs its relay no more.


@pytest.mark.slow
@pytest.mark.parametrize("way", ["killed", "paused"])
@on_kafka
def test_a_settle_that_has_left_is_kept_whatever_becomes_of_its_relay(
    postgresql_outbox: OutboxDatabase, tmp_path: Path, places: Places, way: str
):
    # given a relay whose settle has left while somebody else has one of its rows locked, so that the server is in the middle of it
    database, settings = postgresql_outbox, hurried(places, BATCH)
    published = database.publish(3 * BATCH, topic=(place := places.new()))
    events = database.store.tables.events
    with Victim(database, tmp_path, settings, stands_at=["after ack", "settle sent"]) as victim:
        batch = victim.stands("after ack")
        with database.engine.begin() as stranger:
            stranger.execute(select(events.c.id).where(events.c.id == min(batch)).with_for_update())
            victim.go_on()
            victim.stands("settle sent")
            eventually(lambda: lock_waits(database.engine) == 1)
            assert batch <= {row.id for row in held_by(database, victim.relay)}

            # when the relay is gone, or stands still, before the server is through
            if way == "killed":
                victim.kill()
            else:
                victim.pause()

        # then the settle is committed, and no lock stays behind
        eventually(lambda: batch <= {row.id for row in database.events() if row.status == "PROCESSED"})
        assert not is_being_settled(database, victim.relay)

        # and the rest goes its way: by the relay itself when it wakes up, or by another one
        if way == "paused":
            victim.resume()
            victim.go_on()
            eventually(lambda: database.statuses() == {"PROCESSED": len(published)})
            assert "no longer ours" not in victim.log()
        else:
            with relaying(database, settings["sender"], **settings):
                eventually(lambda: database.statuses() == {"PROCESSED": len(published)})
    assert sent_twice(places.ids(place)) & batch == set()
    assert (database.dead_letters(), database.claims()) == ([], 0)


def pause_between_transactions(database: OutboxDatabase, victim: Victim) -> None:
    """Its heartbeat may be in one, and would stand still with its locks."""

    def paused() -> bool:
        victim.pause()
        if is_in_a_transaction(database, victim.relay):
            victim.resume()
            return False
        return True

    eventually(paused)
