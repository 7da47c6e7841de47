"""How much of a long table a batch of cleanup reads: its own rows, and neither those that live nor those that went before."""

import pytest
from sqlalchemy import text

from outbox_consumer.store.upkeep.expired import BEGINNING
from tests.backlogs import plans, rows_read
from tests.consumed import ConsumedDatabase

TTL = 7 * 86_400.0
BATCH = 100
INDEX = "outbox_consumed_events_consumed_at"
LIVE, OLD = 20_000, 3_000

_FILL = {
    "postgresql": """
        INSERT INTO outbox_consumed_events (consumer, event_id, consumed_at)
        SELECT 'billing', gen_random_uuid(), now() - make_interval(days => :days, secs => n / 1000.0) FROM generate_series(1, :count) AS n
    """,
    "mysql": """
        INSERT INTO outbox_consumed_events (consumer, event_id, consumed_at)
        SELECT 'billing', UNHEX(MD5(CONCAT(:days, '-', seq))), UTC_TIMESTAMP(6) - INTERVAL :days DAY - INTERVAL seq * 1000 MICROSECOND
        FROM seq_1_to_{count}
    """,
}


def fill(database: ConsumedDatabase, count: int, days: int) -> None:
    sql = _FILL[database.engine.dialect.name].format(count=count)
    with database.engine.begin() as connection:
        connection.execute(text(sql), {"days": days} if "seq_1" in sql else {"days": days, "count": count})


@pytest.fixture
def on_postgresql(consumed_on_postgresql: ConsumedDatabase) -> ConsumedDatabase:
    fill(consumed_on_postgresql, LIVE, 1)
    fill(consumed_on_postgresql, OLD, 8)
    return consumed_on_postgresql


@pytest.mark.parametrize("analysed", [True, False], ids=["analysed", "no statistics"])
@pytest.mark.parametrize("mode", ["auto", "force_generic_plan"])
def test_postgresql_finds_by_index_and_deletes_by_place(on_postgresql, mode, analysed):
    if analysed:
        with on_postgresql.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text("VACUUM ANALYZE outbox_consumed_events"))
    expired = on_postgresql.upkeep.expired_events

    with plans(on_postgresql.engine, plan_cache_mode=mode) as seen, on_postgresql.engine.begin() as connection:
        behind = BEGINNING
        for _ in range(7):  # the driver prepares it meanwhile
            dropped = expired.drop(connection, TTL, BATCH, behind)
            assert dropped.count == BATCH
            behind = dropped.last
        assert expired.any(connection, TTL, behind)

    assert len(seen) == 8
    for plan in seen:
        assert plan.whole_tables == set()
        assert plan.indexes <= {INDEX}
    assert max(plan.buffers for plan in seen[2:7]) <= 15 * BATCH


def test_postgresql_reads_no_row_again_that_has_gone_also_while_somebody_still_sees_it(on_postgresql):
    # given a report that has been running for hours: what is deleted stays in the index
    expired = on_postgresql.upkeep.expired_events
    reports = on_postgresql.another_engine(isolation_level="REPEATABLE READ")
    with reports.connect() as report:
        report.execute(text("SELECT count(*) FROM outbox_consumed_events"))
        behind = BEGINNING
        for _ in range(25):
            with on_postgresql.engine.begin() as connection:
                behind = expired.drop(connection, TTL, BATCH, behind).last

        # when the next batch begins where the last one ended, and when one begins at the start
        with plans(on_postgresql.engine) as seen, on_postgresql.engine.begin() as connection:
            expired.any(connection, TTL, behind)
            expired.any(connection, TTL, BEGINNING)

    reports.dispose()
    on_from_there, from_the_start = (plan.buffers for plan in seen)
    assert on_from_there * 10 < from_the_start


def test_mariadb_reads_a_batch_and_no_more(consumed_on_mariadb):
    fill(consumed_on_mariadb, LIVE, 1)
    fill(consumed_on_mariadb, OLD, 8)
    expired = consumed_on_mariadb.upkeep.expired_events
    behind = BEGINNING

    for _ in range(5):
        with consumed_on_mariadb.upkeep.engine_for(consumed_on_mariadb.engine).begin() as connection:
            with rows_read(connection) as read:
                dropped = expired.drop(connection, TTL, BATCH, behind)
            assert dropped.count == BATCH
            assert read[0] <= 4 * BATCH
            behind = dropped.last
            with rows_read(connection) as read:
                assert expired.any(connection, TTL, behind)
            assert read[0] <= 5


def test_mariadb_consumes_while_a_batch_is_being_deleted(consumed_on_mariadb):
    """At the server's default isolation the DELETE would lock the gap behind its range, in which the next INSERT may stand."""
    # given a cleaner that stands still in the transaction of its last batch, with nothing but old rows in the table
    database = consumed_on_mariadb
    fill(database, 50, 8)
    with database.upkeep.engine_for(database.engine).begin() as connection:
        assert database.upkeep.expired_events.drop(connection, TTL, 100, BEGINNING).count == 50

        # when a consumer marks an event, then it does not wait
        with database.engine.begin() as consumer:
            consumer.execute(text("SET innodb_lock_wait_timeout = 1"))
            consumer.execute(
                text("INSERT INTO outbox_consumed_events (consumer, event_id) VALUES ('billing', REPEAT('x', 16))")
            )

    assert database.rows() == 1


def test_a_partitioned_table_of_the_users_own_loses_old_rows_only(consumed_on_postgresql):
    """There one place (ctid) is a place in each partition."""
    # given partitions by time, in which old and young rows stand at the same places
    database = consumed_on_postgresql
    with database.engine.begin() as connection:
        connection.execute(text("DROP TABLE outbox_consumed_events"))
        connection.execute(
            text("""
            CREATE TABLE outbox_consumed_events (consumer varchar(200) NOT NULL, event_id uuid NOT NULL, event_type varchar(200),
                consumed_at timestamptz NOT NULL DEFAULT clock_timestamp()) PARTITION BY HASH (event_id)""")
        )
        for n in range(4):
            connection.execute(
                text(
                    f"CREATE TABLE part_{n} PARTITION OF outbox_consumed_events FOR VALUES WITH (MODULUS 4, REMAINDER {n})"
                )
            )
        connection.execute(text("CREATE INDEX ON outbox_consumed_events (consumed_at)"))
    fill(database, 100, 1)
    fill(database, 100, 8)
    with database.engine.begin() as connection:
        connection.execute(text("UPDATE part_0 SET consumed_at = now() - interval '8 days'"))
        connection.execute(text("UPDATE part_1 SET consumed_at = now()"))
        young = "SELECT count(*) FROM outbox_consumed_events WHERE consumed_at > now() - interval '7 days'"
        kept = connection.execute(text(young)).scalar_one()

    with database.engine.begin() as connection:
        while database.upkeep.expired_events.drop(connection, TTL, 7, BEGINNING).count:
            pass

    with database.engine.connect() as connection:
        old = connection.execute(text("SELECT count(*) FROM part_0")).scalar_one()
    assert old == 0
    assert database.rows() == kept > 0
