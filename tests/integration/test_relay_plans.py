"""By which plan PostgreSQL executes the relay's statements, and how much of a long table it reads for them.

The plans are those of the relay's own statements as they were executed (`auto_explain`), with the values known and without
(`force_generic_plan`), with statistics of the table as it is and with none at all: the planner may meet a backlog in any of these moods.
"""

from collections.abc import Iterator
from uuid import uuid4

import pytest
from sqlalchemy import text

from outbox_publisher.store import Delivered, Settlement, Wanted
from tests.backlogs import Plan, fill, plans, vacuum
from tests.fixtures import OutboxDatabase

DUE, DONE, SUSPECTS, FAILED, KEY = (
    "outbox_events_due",
    "outbox_events_done",
    "outbox_events_suspects",
    "outbox_events_failed",
    "outbox_events_pkey",
)
BATCH = 100
A_FEW_PAGES = 40
"""What a statement may read that finds nothing: some steps down an index, and the row of a type or two."""
PER_ROW = 20
"""Pages for each row that is changed: down two indexes, the row for its lock and for its change, and room for the new version."""

SIZES = [pytest.param(20_000), pytest.param(1_000_000, marks=[pytest.mark.full, pytest.mark.timeout(900)])]
MOODS = [(analysed, mode) for analysed in (True, False) for mode in ("auto", "force_generic_plan")]


@pytest.fixture(params=SIZES)
def backlog(request: pytest.FixtureRequest, postgresql_outbox: OutboxDatabase) -> tuple[OutboxDatabase, int]:
    """`size` pending of type A, a tenth of them due in the future, `size` processed, and two batches of type B."""
    database, size = postgresql_outbox, request.param
    fill(database, size - size // 10, "A", due_in=-7200)
    fill(database, size // 10, "A", due_in=7200)
    fill(database, size, "A", done=True)
    fill(database, 2 * BATCH, "B")
    return database, size


def in_each_mood(database: OutboxDatabase) -> Iterator[tuple[str, str]]:
    """Forget the statistics or make them, and let the planner know the values or not."""
    for analysed, mode in MOODS:
        if analysed:
            vacuum(database, "ANALYZE")
        else:
            with database.engine.begin() as connection:
                connection.execute(text("DELETE FROM pg_statistic WHERE starelid = 'outbox_events'::regclass"))
        yield mode, f"{'analysed' if analysed else 'no statistics'}, {mode}"


def claim(database: OutboxDatabase, event_type: str, wanted: Wanted):
    """A claim that is taken back: the next one meets the same table."""
    with database.engine.connect() as connection:
        return database.store.claim(
            connection, event_type=event_type, wanted=wanted, token=uuid4(), relay="test", lease=30.0
        )


def of_events(heard: list[Plan]) -> Plan:
    """The one plan that read outbox_events."""
    (plan,) = [plan for plan in heard if "outbox_events" in plan.sql]
    return plan


WANTED = {
    "any": Wanted(BATCH, 10**9),
    "without topics": Wanted(BATCH, 10**9, without=frozenset({"dead", "paused"})),
    "one topic": Wanted(1, 10**9, only="orders"),
}


def test_a_claim_of_one_type_reads_no_more_because_of_all_that_waits_of_another(backlog):
    database, _ = backlog
    for mode, mood in in_each_mood(database):
        for form, wanted in WANTED.items():
            with plans(database.engine, plan_cache_mode=mode) as heard:
                events = claim(database, "B", wanted)

            plan, told = of_events(heard), f"{mood}, {form}"
            assert len(events) == wanted.limit, told
            assert DUE in plan.indexes, told
            assert "next_retry_at <= statement_timestamp()" in plan.conditions(DUE), told
            assert "next_retry_at" not in plan.filters(), told
            assert plan.whole_tables == set(), told
            assert plan.buffers <= A_FEW_PAGES + PER_ROW * wanted.limit, told


def test_a_claim_in_a_long_backlog_reads_what_it_takes(backlog):
    database, _ = backlog
    for mode, mood in in_each_mood(database):
        with plans(database.engine, plan_cache_mode=mode) as heard:
            assert len(claim(database, "A", WANTED["any"])) == BATCH, mood

        plan = of_events(heard)
        assert "next_retry_at <= statement_timestamp()" in plan.conditions(DUE), mood
        assert plan.whole_tables == set(), mood
        assert plan.buffers <= A_FEW_PAGES + PER_ROW * BATCH, mood


def test_a_look_which_types_are_due_reads_a_few_pages(backlog):
    database, _ = backlog
    for mode, mood in in_each_mood(database):
        with plans(database.engine, plan_cache_mode=mode) as heard, database.engine.connect() as connection:
            assert database.store.look(connection).due == ["A", "B"], mood

        assert "outbox_events" not in of_events(heard).whole_tables, mood
        assert of_events(heard).buffers <= A_FEW_PAGES, mood


def test_a_suspects_turn_with_none_present_reads_a_few_pages(backlog):
    database, _ = backlog
    store = database.store
    for mode, mood in in_each_mood(database):
        with plans(database.engine, plan_cache_mode=mode) as heard, database.engine.connect() as connection:
            assert store.first_suspect(connection, "A", frozenset({"dead"})) is None
            assert not store.has_suspects(connection, "A")
            assert claim(database, "A", Wanted(BATCH, 10**9, lost=1)) == []

        assert len(heard) == 3, mood
        for plan in heard:
            assert plan.indexes & {SUSPECTS}, (mood, plan.sql)
            assert plan.whole_tables == set(), (mood, plan.sql)
            assert plan.buffers <= A_FEW_PAGES, (mood, plan.sql)


def test_a_sweep_of_failed_rows_with_none_present_reads_a_few_pages(backlog):
    database, _ = backlog
    for mode, mood in in_each_mood(database):
        with plans(database.engine, plan_cache_mode=mode) as heard, database.engine.begin() as connection:
            assert database.store.dead_letters.sweep(connection, 500) == []

        plan = of_events(heard)
        assert plan.indexes == {FAILED}, mood
        assert plan.buffers <= A_FEW_PAGES, mood


def test_a_cleanup_with_nothing_due_reads_a_few_pages(backlog):
    database, _ = backlog
    for mode, mood in in_each_mood(database):
        with plans(database.engine, plan_cache_mode=mode) as heard, database.engine.begin() as connection:
            assert database.store.drop_processed(connection, 7200.0, 500) == 0

        plan = of_events(heard)
        assert plan.indexes == {DONE}, mood
        assert plan.buffers <= A_FEW_PAGES, mood


@pytest.mark.parametrize("keep", [True, False], ids=["kept", "removed"])
def test_a_settle_goes_by_the_primary_key(backlog, keep):
    database, _ = backlog
    store = database.store
    for mode, mood in in_each_mood(database):
        token = uuid4()
        with database.engine.connect() as connection:
            events = store.claim(
                connection, event_type="B", wanted=WANTED["any"], token=token, relay="test", lease=30.0
            )
            connection.rollback()
        with plans(database.engine, plan_cache_mode=mode) as heard, database.engine.connect() as connection:
            store.settle(connection, token, Settlement([Delivered(event.id, 0, 1) for event in events]), keep=keep)

        plan = of_events(heard)
        assert plan.indexes == {KEY}, mood
        assert plan.whole_tables == set(), mood
        assert plan.buffers <= A_FEW_PAGES + PER_ROW * BATCH, mood


def test_a_recovery_reads_what_the_lost_claim_held(backlog):
    database, _ = backlog
    with database.engine.begin() as connection:
        database.store.claim(connection, event_type="A", wanted=WANTED["any"], token=uuid4(), relay="dead", lease=-1.0)
    for mode, mood in in_each_mood(database):
        with plans(database.engine, plan_cache_mode=mode) as heard, database.engine.connect() as connection:
            assert database.store.recover(connection, 10, 120.0).rows == BATCH, mood

        for plan in heard:
            if "outbox_events" in plan.sql:
                assert plan.whole_tables == set(), (mood, plan.sql)
                # a suspect enters another index, and so all of them
                assert plan.buffers <= A_FEW_PAGES + 2 * PER_ROW * BATCH, (mood, plan.sql)


def test_claims_are_hot_updates(postgresql_outbox: OutboxDatabase):
    database = postgresql_outbox
    fill(database, 2_000, "A")
    vacuum(database, "ANALYZE")

    with database.engine.connect() as connection:
        for _ in range(4):
            assert database.store.claim(
                connection, event_type="A", wanted=Wanted(500, 10**9), token=uuid4(), relay="test", lease=30.0
            )
        counted = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_xact_user_tables WHERE relname = 'outbox_events'"
        updated, hot = connection.exec_driver_sql(counted).one()

    # a token makes each row 16 bytes wider, so that of pages full of very small rows the last one must leave
    assert updated == 2_000
    assert hot >= 0.9 * updated
