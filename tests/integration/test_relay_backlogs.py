"""A long backlog that cannot be sent stands in front of a short one that can."""

import pytest
from sqlalchemy import func, select

from outbox_publisher import Event
from outbox_publisher.senders import MemorySender, SendResult
from tests.backlogs import fill
from tests.fixtures import OutboxDatabase

LIVE = 1_000


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
@pytest.mark.parametrize("dead", [20_000, pytest.param(1_000_000, marks=[pytest.mark.full, pytest.mark.timeout(900)])])
def test_a_long_backlog_for_a_dead_topic_does_not_hold_up_a_live_one_of_the_same_type(
    request: pytest.FixtureRequest, kind: str, dead: int
):
    # given rows of one type for a topic that is away and, due after all of them, some for one that is not
    database: OutboxDatabase = request.getfixturevalue(f"{kind}_outbox")
    fill(database, dead, "A", topic="dead", due_in=-7200)
    fill(database, LIVE, "A", topic="live", due_in=-3600)
    away: list[Event] = []

    def answer(event: Event) -> SendResult | None:
        if event.topic == "live":
            return None
        away.append(event)
        return SendResult.unavailable("no leader", scope="topic")

    sender = MemorySender(answer)
    sender.trouble = "no leader"  # of the topic, whenever it is asked for
    relay = database.relay(sender)

    # when a relay goes round a few times
    rounds = [relay.run_once() for _ in range(4)]

    # then the thousand are delivered, each once
    assert sum(turn.delivered for turn in rounds) == LIVE
    assert len({event.id for event in sender.sent}) == len(sender.sent) == LIVE

    # and of the others one batch was tried, which cost them nothing
    assert len(away) == 500
    events = database.store.tables.events
    states = select(events.c.topic, events.c.status, events.c.attempts, func.count())
    with database.engine.connect() as connection:
        found = {tuple(row) for row in connection.execute(states.group_by(*states.selected_columns[:3]))}
    assert found == {("dead", "PENDING", 0, dead), ("live", "PROCESSED", 0, LIVE)}
