"""kill -9 of a consumer before, in and after its COMMIT: the message is delivered again, and its effect is there once."""

import json
import random
from collections import Counter
from collections.abc import Iterator
from uuid import UUID

import pytest

from outbox_consumer import Status
from outbox_consumer.schema import create_tables
from outbox_shared.ids import new_event_id
from tests.consuming import ConsumingDatabase, a_message, book, eventually
from tests.failure.killing import PATIENCE, Forge, other_sessions

pytestmark = pytest.mark.slow


class Consumers(Forge):
    """The process that forks consumers; see consumer_victim.py."""

    def start(self, database: ConsumingDatabase, events: list[UUID], stands: str) -> None:
        """A consumer of these events, in their order."""
        order = {"driver": database.driver, "url": database.url, "events": list(map(str, events)), "stands": stands}
        self.order(json.dumps(order))


@pytest.fixture(scope="module")
def forge() -> Iterator[Consumers]:
    consumers = Consumers("tests.failure.consumer_victim")
    yield consumers
    consumers.close()


@pytest.fixture
def consumers(forge: Consumers) -> Iterator[Consumers]:
    yield forge
    forge.kill_what_lives()


@pytest.fixture
def database(database: ConsumingDatabase) -> ConsumingDatabase:
    create_tables(database.engine)
    return database


def deliver_again(database: ConsumingDatabase, event_id: UUID) -> Status:
    """To a consumer that came up in its place, after the server has ended what the killed one had open."""
    eventually(lambda: other_sessions(database.engine) == 0, within=PATIENCE)
    outcome = database.consumer().consume(a_message(event_id), book)
    status: Status = outcome.status
    return status


@pytest.mark.parametrize(
    ("border", "said", "status"),
    [
        ("h", b"h", Status.CONSUMED),
        ("e", b"he", Status.CONSUMED),
        ("r", b"her", Status.DUPLICATE),
        ("d", b"herd", Status.DUPLICATE),
    ],
    ids=["before the handler's work", "after the handler", "after COMMIT", "before the acknowledgement"],
)
def test_the_effect_is_there_once(
    database: ConsumingDatabase, consumers: Consumers, border: str, said: bytes, status: Status
):
    # given a consumer that stands at a border
    event_id = new_event_id()
    consumers.start(database, [event_id], stands=border)
    consumers.expect(said)

    # when it is killed, and its message, which was not acknowledged, comes again
    consumers.kill()
    again = deliver_again(database, event_id)

    # then the effect is there once, whoever had it
    assert again is status
    assert database.effects() == [str(event_id)]
    assert database.marks() == ["billing"]
    assert deliver_again(database, event_id) is Status.DUPLICATE


@pytest.mark.timeout(900)
@pytest.mark.parametrize("wanted", [10, pytest.param(200, marks=pytest.mark.full)])
def test_the_effect_is_there_once_when_it_is_killed_around_its_commit(
    database: ConsumingDatabase, consumers: Consumers, wanted: int, record_property
):
    found: Counter[str] = Counter()
    events = [new_event_id() for _ in range(wanted)]
    for event_id in events:
        # given a consumer whose handler is about to return
        consumers.start(database, [event_id], stands="ed")
        consumers.expect(b"he")

        # when it goes on, and is killed some moments later
        consumers.go()
        consumers.expect(b"g")
        consumers.says_something(within=random.uniform(0, 0.004))
        consumers.kill()

        # then the redelivery completes what is missing
        found[deliver_again(database, event_id).value] += 1
    print(f"\n{database.driver}: killed {wanted} times around COMMIT, {dict(found)}")
    record_property("found", dict(found))
    assert database.effects() == sorted(map(str, events))
    assert len(database.marks()) == wanted
