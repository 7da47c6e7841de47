"""A broker goes away in the middle of a batch, in every way that a broker can: the relay lives through it, and nobody pays for it."""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import func, select

from tests.consuming import eventually
from tests.fixtures import OutboxDatabase
from tests.outages import (
    KafkaPlaces,
    MiddleOfABatch,
    Places,
    RabbitPlaces,
    cut_off,
    in_a_black_hole,
    killed,
    paused,
    private_servers,
    rabbitmqctl,
    relaying,
    restarted,
)
from tests.services.client import BenchClient, OwnServer

BATCH = 200
PUBLISH_TIMEOUT = "2500ms"
"""Long enough for a busy machine to see the batch under way, and short enough to wait for."""


@pytest.fixture(scope="module")
def servers(bench: BenchClient) -> Iterator[Callable[[str], OwnServer]]:
    with private_servers(bench) as lend:
        yield lend


def places_of(server: OwnServer) -> Places:
    if server.name == "kafka":
        return KafkaPlaces(server.url)
    return RabbitPlaces(server.url, beside=server.url.replace(str(server.proxy.port), str(server.port)))


def settings_of(places: Places) -> dict[str, Any]:
    in_one_request = {"kafka": {"properties": {"linger.ms": 200}}} if places.name == "kafka" else {}
    return places.settings(publish_timeout=PUBLISH_TIMEOUT, **in_one_request)


@contextlib.contextmanager
def low_on_memory(server: OwnServer) -> Iterator[None]:
    """It answers, and takes nothing."""
    rabbitmqctl(server, "set_vm_memory_high_watermark", "absolute", "1")
    try:
        server.proxy.heal()
        yield
    finally:
        rabbitmqctl(server, "set_vm_memory_high_watermark", "0.4")


WAYS = [
    ("kafka", restarted, "answers"),
    ("kafka", killed, "answers"),
    ("kafka", paused, "requests"),
    ("kafka", cut_off, "answers"),
    ("kafka", in_a_black_hole, "requests"),
    ("rabbitmq", restarted, "answers"),
    ("rabbitmq", killed, "answers"),
    ("rabbitmq", paused, "requests"),
    ("rabbitmq", cut_off, "answers"),
    ("rabbitmq", in_a_black_hole, "requests"),
    ("rabbitmq", low_on_memory, "requests"),
]


@pytest.mark.slow
@pytest.mark.parametrize("window", [4, pytest.param(1, marks=pytest.mark.full)])
@pytest.mark.parametrize(("name", "goes_away", "hold"), WAYS, ids=[f"{name}-{way.__name__}" for name, way, _ in WAYS])
def test_a_broker_that_goes_away_in_the_middle_of_a_batch_loses_nothing_and_charges_nobody(
    postgresql_outbox: OutboxDatabase, servers, name, goes_away, hold, window
):
    # given a relay in the middle of its second batch
    database, server = postgresql_outbox, servers(name)
    places = places_of(server)
    place = places.new()
    published = database.publish(3 * BATCH, topic=place)
    middle = MiddleOfABatch(server, hold)
    with relaying(database, settings_of(places), middle.catch, window=window):
        middle.wait()
        assert BATCH <= database.statuses()["IN_PROCESS"] <= window * BATCH

        # when the broker goes away until the relay has noticed, and more is published meanwhile
        with goes_away(server):
            eventually(lambda: given_back(database) >= BATCH and "IN_PROCESS" not in database.statuses(), within=30)
            published += database.publish(50, topic=place)

        # then the same relay goes on by itself
        eventually(lambda: database.statuses() == {"PROCESSED": len(published)}, within=60)
        published += database.publish(50, topic=place)
        eventually(lambda: database.statuses() == {"PROCESSED": len(published)})

    # and everything has arrived, while nobody was charged
    copies = Counter(places.ids(place))
    rows = database.events()
    assert set(copies) == {str(event_id) for event_id in published}
    assert {(row.status, row.attempts, row.lost_claims) for row in rows} == {("PROCESSED", 0, 0)}
    assert database.dead_letters() == []
    assert database.claims() == 0

    # and a copy was only ever made of what nobody had an answer for, as the row remembers
    twice = {event_id for event_id, count in copies.items() if count > 1}
    maybe_sent = {str(row.id) for row in rows if row.maybe_sent}
    assert twice <= maybe_sent
    print(f"\n{name} {goes_away.__name__}: {len(maybe_sent)} events had no answer, {len(twice)} of them arrived twice")


def given_back(database: OutboxDatabase) -> int:
    """Rows that a batch gave back because of the broker."""
    events = database.store.tables.events
    waiting = select(func.count()).where(events.c.status == "PENDING", events.c.last_error.is_not(None))
    with database.engine.connect() as connection:
        return connection.execute(waiting).scalar_one()
