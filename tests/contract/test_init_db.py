"""`init-db` on every database."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest
from sqlalchemy import Engine, event, inspect, text

from outbox_consumer.schema import CONSUMER
from outbox_publisher.schema import PUBLISHER
from outbox_shared.catalogue import check
from outbox_shared.database import make_engine
from outbox_shared.side import Side
from outbox_shared.tables import TableNames

TABLES = {
    "outbox-publisher": ["outbox_events", "outbox_claims", "outbox_dlq_events", "outbox_state", "outbox_audit"],
    "outbox-consumer": ["outbox_consumed_events", "outbox_consumer_attempts", "outbox_state"],
}
NAMES = TableNames()
PROGRAMS = pytest.mark.parametrize("program", TABLES)
SIDES = pytest.mark.parametrize("side", [PUBLISHER, CONSUMER], ids=lambda side: side.name)


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def empty_database(request: pytest.FixtureRequest) -> str:
    create: Callable[[], str] = request.getfixturevalue(f"fresh_{request.param}")
    return create()


@pytest.fixture
def engine(empty_database: str) -> Iterator[Engine]:
    engine = make_engine(empty_database, "outbox-publisher")
    yield engine
    engine.dispose()


def versions(engine: Engine) -> list[tuple[str, str]]:
    with engine.connect() as connection:
        query = "SELECT name, value FROM outbox_state WHERE kind = 'schema' ORDER BY name"
        return [tuple(row) for row in connection.execute(text(query))]


@PROGRAMS
def test_it_creates_what_is_missing_and_can_be_run_again(command, empty_database: str, program: str):
    first = command(program, "init-db", OUTBOX_DATABASE_URL=empty_database)
    second = command(program, "init-db", OUTBOX_DATABASE_URL=empty_database)

    assert first == (0, "".join(f"{table}: created\n" for table in TABLES[program]), "")
    assert second == (0, "".join(f"{table}: already there\n" for table in TABLES[program]), "")


def test_both_sides_share_the_state_table_and_have_a_version_each(command, empty_database: str, engine: Engine):
    command("outbox-publisher", "init-db", OUTBOX_DATABASE_URL=empty_database)

    _, output, _ = command("outbox-consumer", "init-db")

    assert "outbox_state: already there" in output
    assert versions(engine) == [("consumer", "1"), ("publisher", "1")]


def test_prefix_and_schema_are_obeyed(command, fresh_postgresql):
    url = fresh_postgresql()
    engine = make_engine(url, "outbox-publisher")
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE SCHEMA messaging")
    where = {"OUTBOX_TABLES__SCHEMA": "messaging", "OUTBOX_TABLES__PREFIX": "shop_"}

    code, _, _ = command("outbox-publisher", "init-db", OUTBOX_DATABASE_URL=url, **where)

    assert code == 0
    assert set(inspect(engine).get_table_names(schema="messaging")) == {
        table.replace("outbox_", "shop_") for table in TABLES["outbox-publisher"]
    }
    engine.dispose()


def test_the_longest_prefix_fits_every_name(command, empty_database):
    where = {"OUTBOX_DATABASE_URL": empty_database, "OUTBOX_TABLES__PREFIX": "x" * 36}

    for program in TABLES:
        assert command(program, "init-db", **where)[0] == 0
        assert command(program, "schema", "check", **where)[0] == 0


class Crash(Exception):
    """Stands for kill -9 between two statements."""


@SIDES
def test_a_crash_in_the_middle_is_healed_by_the_next_run(engine: Engine, side: Side):
    for statements in range(14):
        names = TableNames(prefix=f"after_{statements}_")

        # given a process that died after so many statements
        with dying_after(engine, statements), suppress(Crash):
            side.create(engine, names)

        # when the next one starts
        side.create(engine, names)

        # then nothing is missing: no table, no index, no storage parameter, no version
        assert check(engine, side, names) == []


@contextmanager
def dying_after(engine: Engine, statements: int) -> Iterator[None]:
    left = iter(range(statements))

    def die(_connection, _cursor, statement: str, *_more) -> None:
        if statement.lstrip().startswith(("CREATE", "ALTER", "INSERT")) and next(left, None) is None:
            raise Crash

    event.listen(engine, "before_cursor_execute", die)
    yield
    event.remove(engine, "before_cursor_execute", die)


@SIDES
def test_where_nothing_is_missing_nothing_is_written(engine: Engine, side: Side):
    side.create(engine, NAMES)
    statements: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda *args: statements.append(args[2].split()[0]))

    assert side.create(engine, NAMES) == []

    assert not {"CREATE", "ALTER", "INSERT", "UPDATE"} & set(statements)


@SIDES
def test_a_lost_version_comes_back_and_another_one_is_left_alone(engine: Engine, side: Side):
    side.create(engine, NAMES)
    with engine.begin() as connection:
        connection.execute(text("DELETE FROM outbox_state"))

    side.create(engine, NAMES)
    assert versions(engine) == [(side.name, "1")]

    with engine.begin() as connection:
        connection.execute(text("UPDATE outbox_state SET value = '2'"))
    side.create(engine, NAMES)
    assert versions(engine) == [(side.name, "2")]


@pytest.mark.slow
@SIDES
def test_several_processes_may_create_them_at_once(empty_database: str, engine: Engine, side: Side):
    script = (
        f"import sys; from outbox_{side.name}.schema import create_tables; from outbox_shared.database import make_engine\n"
        f"engine = make_engine(sys.argv[1], '{side.program}')\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        "print(*create_tables(engine))"
    )
    pipe = subprocess.PIPE
    running = [
        subprocess.Popen([sys.executable, "-c", script, empty_database], stdin=pipe, stdout=pipe, text=True)
        for _ in range(4)
    ]
    for process in running:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"

    # when all are ready and start together
    for process in running:
        assert process.stdin
        process.stdin.write("go\n")
        process.stdin.flush()
    outputs = [process.communicate()[0] for process in running]

    # then each table was created by exactly one of them, whole, and the version was written once
    assert [process.returncode for process in running] == [0, 0, 0, 0]
    assert sorted(" ".join(outputs).split()) == sorted(TABLES[side.program])
    assert check(engine, side, NAMES) == []
