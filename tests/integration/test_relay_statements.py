"""What a batch costs in statements and transactions: the same for one row as for thousands, on every database."""

from uuid import uuid4

import pytest
from sqlalchemy import select, update

from outbox_publisher import Outbox, Turn
from outbox_publisher.senders import MemorySender, SendResult
from outbox_publisher.store import Wanted
from outbox_shared.sqltypes import wall_time_plus
from tests.backlogs import Recorded, recording
from tests.fixtures import OutboxDatabase

SIZES = (1, 10, 500, 2000)
MIXED_SIZES = (4, 40, 800)

# The look (pauses, types), the claim (rows, claim row; on PostgreSQL in one) and the settle (claim row, rows). MariaDB has no
# UPDATE … RETURNING, and finds the first type before it looks at each.
HEALTHY = {
    "postgresql": [("read", 1), ("write", 1), ("write", 2)],
    "sqlite": [("read", 1), ("write", 2), ("write", 2)],
    "mysql": [("read", 3), ("write", 3), ("write", 2)],
}
# One statement for what is rescheduled and one for what failed, a look which of these are still ours, and for each of the two reasons
# a copy into the dead letters and a DELETE.
MIXED = {dialect: [*shape[:2], ("write", 2 + 1 + 1 + 1 + 2 * 2)] for dialect, shape in HEALTHY.items()}


def publish(database: OutboxDatabase, count: int, event_type: str = "order-created", **options) -> None:
    with database.engine.begin() as connection:
        payloads = [{"n": n} for n in range(count)]
        Outbox(database.settings()).publish_batch(
            connection, event_type, payloads, key=lambda one: str(one["n"]), **options
        )


def relayed(database: OutboxDatabase, sender: MemorySender | None = None, **settings) -> tuple[Turn, Recorded]:
    """One round, and what it asked the database for."""
    relay = database.relay(sender, **{"defaults": {"topic": "orders", "batch-size": 2000}, **settings})
    with recording(database.engine) as recorded:
        turn = relay.run_once()
    assert all(one.committed for one in recorded.writes)
    return turn, recorded


def run_by_the_driver(database: OutboxDatabase, recorded: Recorded, *, rows_beyond_the_first: int) -> int:
    """How many statements reached the driver. SQLite runs a prepared statement once for each row that it settles, in this process."""
    by_row = rows_beyond_the_first if database.engine.dialect.name == "sqlite" else 0
    return len(recorded.driver) - by_row


@pytest.mark.parametrize("size", SIZES)
def test_a_healthy_batch_is_two_write_transactions_and_as_many_statements_for_any_size(outbox_database, size):
    publish(outbox_database, size)

    turn, recorded = relayed(outbox_database)

    assert (turn.claimed, turn.delivered) == (size, size)
    assert recorded.shape == HEALTHY[outbox_database.engine.dialect.name]
    # and nothing goes around the engine
    assert run_by_the_driver(outbox_database, recorded, rows_beyond_the_first=size - 1) == len(recorded.statements)
    assert outbox_database.statuses() == {"PROCESSED": size}


@pytest.mark.parametrize("size", [1, 500])
def test_a_batch_that_is_removed_when_delivered_costs_no_more(outbox_database, size):
    publish(outbox_database, size)

    turn, recorded = relayed(outbox_database, **{"clean-up": {"ttl": "0s"}})

    assert turn.delivered == size
    assert recorded.shape == HEALTHY[outbox_database.engine.dialect.name]
    assert len(recorded.driver) == len(recorded.statements)
    assert outbox_database.events() == []


@pytest.mark.parametrize("size", MIXED_SIZES)
def test_a_mixed_batch_costs_as_many_statements_for_any_size(outbox_database, size):
    # given a batch of which a quarter each goes through, is to be retried, has been retried too often, and is rejected
    publish(outbox_database, size)
    events = outbox_database.store.tables.events
    with outbox_database.engine.begin() as connection:
        worn_out = [str(n) for n in range(2, size, 4)]
        connection.execute(update(events).where(events.c.key.in_(worn_out)).values(attempts=3))

    def answer(event):
        timeout = SendResult.retry("timeout")
        return [None, timeout, timeout, SendResult.reject("too large")][int(event.key) % 4]

    # when
    turn, recorded = relayed(outbox_database, MemorySender(answer))

    # then
    assert (turn.delivered, turn.rescheduled, turn.buried) == (size // 4, size // 4, size // 2)
    assert recorded.shape == MIXED[outbox_database.engine.dialect.name]
    by_row = 3 * (size // 4 - 1) + size // 4  # three statements by row, and the third is for two quarters
    assert run_by_the_driver(outbox_database, recorded, rows_beyond_the_first=by_row) == len(recorded.statements)
    assert outbox_database.statuses() == {"PROCESSED": size // 4, "PENDING": size // 4}
    reasons = [letter.reason for letter in outbox_database.dead_letters()]
    assert sorted(reasons) == ["rejected"] * (size // 4) + ["retries exhausted"] * (size // 4)


def test_a_settle_shares_its_transaction_with_the_next_types_claim(outbox_database):
    for event_type in ("a", "b", "c"):
        publish(outbox_database, 5, event_type)

    turn, recorded = relayed(outbox_database)

    assert turn.delivered == 15
    assert len(recorded.writes) == 3 + 1
    assert len(recorded.reads) == 1


@pytest.mark.parametrize("waiting", ["nothing", "what is due tomorrow", "what another relay has claimed"])
def test_an_empty_round_writes_nothing_and_locks_nothing(outbox_database, waiting):
    if waiting == "what is due tomorrow":
        publish(outbox_database, 5, delay="1d")
    elif waiting == "what another relay has claimed":
        publish(outbox_database, 5)
        claim(outbox_database, "another relay", limit=5)
    before = outbox_database.events()

    turn, recorded = relayed(outbox_database)

    assert turn == Turn()
    assert [kind for kind, _ in recorded.shape] == ["read"]
    assert not any("FOR UPDATE" in statement for statement in recorded.driver)
    assert outbox_database.events() == before


def claim(database: OutboxDatabase, relay: str, limit: int):
    """A batch that another thread or process has in flight; returns its token."""
    token = uuid4()
    with database.engine.begin() as connection:
        assert database.store.claim(
            connection, event_type="order-created", wanted=Wanted(limit, 1_000_000), token=token, relay=relay, lease=1.0
        )
    return token


def leases_in_force(database: OutboxDatabase, seconds: float) -> int:
    """How many claims are good for at least so long."""
    claims = database.store.tables.claims
    with database.engine.connect() as connection:
        found = select(claims.c.token).where(claims.c.lease_until > wall_time_plus(seconds))
        return len(connection.execute(found).all())


@pytest.mark.parametrize("batches", [1, 20])
def test_all_batches_in_flight_are_renewed_by_one_update(outbox_database, batches):
    # given a relay that has sent its first heartbeat, and works on some batches whose leases are nearly over
    publish(outbox_database, batches)
    relay = outbox_database.relay()
    heartbeat = relay.duties.heartbeat
    heartbeat.run_once()
    tokens = [claim(outbox_database, relay.name, limit=1) for _ in range(batches)]
    assert leases_in_force(outbox_database, 20.0) == 0

    # when its heart beats again
    for token in tokens:
        heartbeat._inflight.hold(token, relay._clock.monotonic())
    with recording(outbox_database.engine) as recorded:
        renewed = heartbeat.run_once()

    # then one statement has renewed all of them, beside the one for the relay's own row
    assert renewed == batches == leases_in_force(outbox_database, 20.0)
    assert recorded.shape == [("write", 2)]
    assert len(recorded.driver) == 2
    assert sum("UPDATE outbox_claims" in statement for statement in recorded.driver) == 1
