"""Claim, settle and recover on every database: who owns a row, and who may write to it."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from uuid import uuid4

import pytest
from sqlalchemy import insert, update

from outbox_publisher.claims import RowClaims
from outbox_publisher.store import Buried, Delivered, Rescheduled, Settlement, Wanted
from outbox_shared.sqltypes import wall_time_plus

BYTES = 10_000_000


def claims_of(database, lease: float = 30, relay: str = "relay-1") -> RowClaims:
    return RowClaims(database.store, relay, timedelta(seconds=lease))


def claim(database, limit: int = 100, event_type: str = "order-created", **options):
    with database.engine.begin() as connection:
        return claims_of(database, **options).begin_claim(connection, event_type, Wanted(limit, BYTES), uuid4())()


def claim_suspects(database, limit: int = 100):
    with database.engine.begin() as connection:
        return claims_of(database).begin_claim_of_suspects(connection, "order-created", Wanted(limit, BYTES), uuid4())()


def settle(database, token, **fate) -> int:
    with database.engine.begin() as connection:
        return database.store.settle(connection, token, Settlement(**fate)).changed


def recover(database) -> tuple[int, int]:
    with database.engine.begin() as connection:
        done = database.store.recover(connection, 100, 300.0)
        return done.claims, done.rows


def expire(database) -> None:
    with database.engine.begin() as connection:
        connection.execute(update(database.store.tables.claims).values(lease_until=wall_time_plus(-1.0)))


def test_a_claim_takes_due_rows_in_publish_order_and_no_more_than_asked(outbox_database):
    ids = outbox_database.publish(7)

    batch = claim(outbox_database, limit=5)

    assert [event.id for event in batch.events] == ids[:5]
    assert outbox_database.statuses() == {"IN_PROCESS": 5, "PENDING": 2}
    assert {row.claim_token for row in outbox_database.events()[:5]} == {batch.token}
    assert outbox_database.claims() == 1


def test_a_claimed_row_is_nobody_elses(outbox_database):
    outbox_database.publish(3)
    claim(outbox_database)

    assert claim(outbox_database) is None
    assert outbox_database.claims() == 1  # an empty claim leaves no row behind


def test_a_claim_takes_one_type_only(outbox_database):
    outbox_database.publish(2, "a")
    outbox_database.publish(2, "b")

    assert {event.event_type for event in claim(outbox_database, event_type="a").events} == {"a"}


def test_a_type_whose_rows_are_all_claimed_or_due_later_is_not_due(outbox_database):
    (later,) = outbox_database.publish(1, "later")
    batch = claim(outbox_database, event_type="later")
    settle(outbox_database, batch.token, rescheduled=[Rescheduled(later, 1, 60.0, "x", maybe_sent=False)])
    outbox_database.publish(1, "claimed")
    claim(outbox_database, event_type="claimed")
    outbox_database.publish(1, "due")

    with outbox_database.engine.connect() as connection:
        assert outbox_database.store.look(connection).due == ["due"]


def test_due_types_are_those_with_rows_that_are_not_done(outbox_database):
    for event_type in ("b", "a", "done", "c"):
        outbox_database.publish(2, event_type)
    batch = claim(outbox_database, event_type="done")
    settle(outbox_database, batch.token, delivered=[Delivered(event.id) for event in batch.events])

    with outbox_database.engine.connect() as connection:
        assert outbox_database.store.look(connection).due == ["a", "b", "c"]


def test_no_rows_no_types(outbox_database):
    with outbox_database.engine.connect() as connection:
        assert outbox_database.store.look(connection).due == []


def test_a_row_that_is_due_later_is_not_claimed(outbox_database):
    (only,) = outbox_database.publish()
    batch = claim(outbox_database)
    settle(outbox_database, batch.token, rescheduled=[Rescheduled(only, 1, 60.0, "timeout", maybe_sent=True)])

    (row,) = outbox_database.events()
    assert claim(outbox_database) is None
    assert (row.status, row.attempts, row.last_error, row.maybe_sent) == ("PENDING", 1, "timeout", True)
    assert row.claim_token is None
    assert 59 < (row.next_retry_at - row.created_at).total_seconds() < 120


def test_an_uncharged_row_keeps_its_due_time_and_its_last_error(outbox_database):
    (only,) = outbox_database.publish()
    before = outbox_database.events()[0].next_retry_at
    settle(
        outbox_database, claim(outbox_database).token, rescheduled=[Rescheduled(only, 0, None, "away", maybe_sent=True)]
    )
    settle(
        outbox_database, claim(outbox_database).token, rescheduled=[Rescheduled(only, 0, None, None, maybe_sent=False)]
    )

    (row,) = outbox_database.events()
    assert (row.next_retry_at, row.last_error) == (before, "away")
    assert row.maybe_sent is True  # for ever, once a send ended without an answer


def test_delivered_rows_are_processed_with_their_position_and_the_claim_is_gone(outbox_database):
    ids = outbox_database.publish(3)
    batch = claim(outbox_database)

    changed = settle(outbox_database, batch.token, delivered=[Delivered(i, 4, 100 + n) for n, i in enumerate(ids)])

    rows = outbox_database.events()
    assert changed == 3
    assert [(row.status, row.broker_partition, row.broker_offset) for row in rows] == [
        ("PROCESSED", 4, 100 + n) for n in range(3)
    ]
    assert all(row.processed_at is not None and row.claim_token is None for row in rows)
    assert outbox_database.claims() == 0


def test_buried_rows_move_to_the_dead_letters_whole(outbox_database):
    (first, second) = outbox_database.publish(2, headers={"tenant": "acme"}, aggregate_type="Order", version=3)
    before = {row.id: row for row in outbox_database.events()}
    batch = claim(outbox_database)

    changed = settle(
        outbox_database,
        batch.token,
        buried=[
            Buried(first, 4, "retries exhausted", "timeout", maybe_sent=True),
            Buried(second, 1, "rejected", "too large", maybe_sent=False),
        ],
    )

    assert changed == 2
    assert outbox_database.events() == []
    dead = {row.id: row for row in outbox_database.dead_letters()}
    assert [(dead[i].reason, dead[i].last_error, dead[i].attempts, dead[i].maybe_sent) for i in (first, second)] == [
        ("retries exhausted", "timeout", 4, True),
        ("rejected", "too large", 1, False),
    ]
    for row in dead.values():
        assert row.dlq_status == "MOVED"
        for kept in (
            "payload",
            "headers",
            "topic",
            "key",
            "lane",
            "event_type",
            "created_at",
            "aggregate_type",
            "version",
        ):
            assert getattr(row, kept) == getattr(before[row.id], kept)


def test_an_event_that_dies_a_second_time_overwrites_its_dead_letter(outbox_database):
    (only,) = outbox_database.publish()
    row = outbox_database.events()[0]
    settle(
        outbox_database, claim(outbox_database).token, buried=[Buried(only, 1, "rejected", "first", maybe_sent=False)]
    )
    with outbox_database.engine.begin() as connection:  # as a replay puts it back: by INSERT, with the same id
        kept = {
            name: getattr(row, name) for name in ("id", "lane", "event_type", "topic", "key", "content_type", "payload")
        }
        connection.execute(insert(outbox_database.store.tables.events), kept)

    settle(
        outbox_database, claim(outbox_database).token, buried=[Buried(only, 1, "rejected", "second", maybe_sent=False)]
    )

    (dead,) = outbox_database.dead_letters()
    assert (dead.last_error, dead.dlq_status) == ("second", "MOVED")


@pytest.mark.parametrize(
    "fate",
    [
        lambda i: {"delivered": [Delivered(i, 0, 0)]},
        lambda i: {"rescheduled": [Rescheduled(i, 1, 1.0, "x", maybe_sent=False)]},
        lambda i: {"buried": [Buried(i, 1, "rejected", "x", maybe_sent=False)]},
    ],
    ids=["delivered", "rescheduled", "buried"],
)
def test_a_relay_that_lost_its_rows_changes_nothing(outbox_database, fate):
    # given a relay whose lease ran out, and another that took its rows over
    (only,) = outbox_database.publish()
    lost = claim(outbox_database)
    expire(outbox_database)
    recover(outbox_database)
    current = claim_suspects(outbox_database)

    # when the first one wakes up and settles
    changed = settle(outbox_database, lost.token, **fate(only))

    # then nothing moved, and the second one's claim still stands
    (row,) = outbox_database.events()
    assert changed == 0
    assert (row.status, row.claim_token, row.attempts) == ("IN_PROCESS", current.token, 0)
    assert outbox_database.dead_letters() == []
    assert outbox_database.claims() == 1
    assert settle(outbox_database, current.token, delivered=[Delivered(only)]) == 1


def test_an_acknowledged_row_is_done_however_late_if_nobody_took_it(outbox_database):
    (only,) = outbox_database.publish()
    batch = claim(outbox_database)
    expire(outbox_database)

    assert settle(outbox_database, batch.token, delivered=[Delivered(only)]) == 1
    assert recover(outbox_database) == (0, 0)


def test_recovery_returns_the_rows_of_an_expired_claim_without_charging_them(outbox_database):
    outbox_database.publish(4)
    claim(outbox_database, limit=2)
    expire(outbox_database)
    living = claim(outbox_database, limit=1)

    assert recover(outbox_database) == (1, 2)

    rows = outbox_database.events()
    assert [row.status for row in rows] == ["PENDING", "PENDING", "IN_PROCESS", "PENDING"]
    assert [(row.attempts, row.lost_claims) for row in rows] == [(0, 1), (0, 1), (0, 0), (0, 0)]
    assert [row.maybe_sent for row in rows] == [True, True, False, False]  # nobody knows how far the lost relay came
    assert rows[2].claim_token == living.token
    assert outbox_database.claims() == 1


def test_recovery_leaves_a_living_lease_alone(outbox_database):
    outbox_database.publish()
    claim(outbox_database)

    assert recover(outbox_database) == (0, 0)


def test_many_claims_at_once_share_the_rows_without_overlap(outbox_database):
    outbox_database.publish(200)

    with ThreadPoolExecutor(8) as pool:
        batches = list(pool.map(lambda n: claim(outbox_database, limit=25, relay=f"relay-{n}"), range(8)))

    claimed = [event.id for batch in batches if batch for event in batch.events]
    assert len(claimed) == len(set(claimed)) == 200


def test_an_unknown_token_changes_nothing(outbox_database):
    (only,) = outbox_database.publish()
    claim(outbox_database)

    assert settle(outbox_database, uuid4(), delivered=[Delivered(only)]) == 0
    assert outbox_database.statuses() == {"IN_PROCESS": 1}
