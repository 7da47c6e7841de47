"""`outbox-publisher init-db` on every database."""

import subprocess
import sys
from collections.abc import Callable

import pytest
from sqlalchemy import inspect

from outbox_publisher.schema import create_tables
from outbox_shared.database import make_engine
from outbox_shared.tables import TableNames

TABLES = ["outbox_events", "outbox_claims", "outbox_dlq_events"]


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_database(request: pytest.FixtureRequest) -> str:
    create: Callable[[], str] = request.getfixturevalue(f"fresh_{request.param}")
    return create()


def test_it_creates_what_is_missing_and_can_be_run_again(command, empty_database):
    first = command("outbox-publisher", "init-db", OUTBOX_DATABASE_URL=empty_database)
    second = command("outbox-publisher", "init-db", OUTBOX_DATABASE_URL=empty_database)

    assert first == (0, "".join(f"{table}: created\n" for table in TABLES), "")
    assert second == (0, "".join(f"{table}: already there\n" for table in TABLES), "")


def test_prefix_and_schema_are_obeyed(command, fresh_postgresql):
    url = fresh_postgresql()
    engine = make_engine(url, "outbox-publisher")
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE SCHEMA messaging")
    where = {"OUTBOX_TABLES__SCHEMA": "messaging", "OUTBOX_TABLES__PREFIX": "shop_"}

    code, _, _ = command("outbox-publisher", "init-db", OUTBOX_DATABASE_URL=url, **where)

    assert code == 0
    assert set(inspect(engine).get_table_names(schema="messaging")) == {"shop_events", "shop_claims", "shop_dlq_events"}
    engine.dispose()


def test_the_longest_prefix_fits_every_name(command, empty_database):
    where = {"OUTBOX_DATABASE_URL": empty_database, "OUTBOX_TABLES__PREFIX": "x" * 36}

    assert command("outbox-publisher", "init-db", **where)[0] == 0
    assert command("outbox-consumer", "init-db", **where)[0] == 0


def test_the_storage_parameters_are_set_on_postgresql(postgresql_outbox):
    with postgresql_outbox.engine.connect() as connection:
        options = connection.exec_driver_sql(
            "SELECT reloptions FROM pg_class WHERE relname = 'outbox_events'"
        ).scalar_one()

    assert "fillfactor=50" in options


@pytest.mark.slow
def test_several_processes_may_create_them_at_once(empty_database):
    script = (
        "import sys; from outbox_shared.database import make_engine; from outbox_publisher.schema import create_tables;"
        "from outbox_shared.tables import TableNames; create_tables(make_engine(sys.argv[1], 'outbox-publisher'), TableNames())"
    )
    running = [subprocess.Popen([sys.executable, "-c", script, empty_database]) for _ in range(4)]

    assert [process.wait() for process in running] == [0, 0, 0, 0]
    engine = make_engine(empty_database, "outbox-publisher")
    assert create_tables(engine, TableNames()) == []
    engine.dispose()
