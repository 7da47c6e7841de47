"""`schema check`: each defect is planted alone on a real server, named in exactly one line, and mended by what that line says."""

from collections.abc import Callable

import pytest
from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool

from tests.schema_defects import DEFECTS, Defect

KINDS = ["postgresql", "mariadb", "sqlite"]
PROGRAMS = pytest.mark.parametrize("program", ["outbox-publisher", "outbox-consumer"])
FINE = "the tables of the {} are as they should be\n"


def run_sql(url: str, *statements: str) -> None:
    """Each on its own connection: SQLite reads its catalogue when it connects."""
    engine = create_engine(url, poolclass=NullPool)
    with engine.begin() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)
    engine.dispose()


@pytest.fixture
def new_database(request: pytest.FixtureRequest) -> Callable[[str], str]:
    """new_database(kind) -> URL of an empty one."""
    return lambda kind: request.getfixturevalue(f"fresh_{kind}")()


def mend(command, url: str, line: str) -> bool:
    """Do what the line says, where it says something that can be done."""
    _, found, remedy = line.partition("run: ")
    if line.endswith("put them back") or not found:
        return False
    if remedy.endswith(" init-db"):
        assert command(*remedy.split(" "))[0] == 0
    else:
        run_sql(url, *(statement for statement in remedy.split(";") if statement.strip()))
    return True


@pytest.mark.parametrize(
    ("kind", "planted"),
    [pytest.param(kind, planted, id=f"{kind}-{planted.name}") for kind in KINDS for planted in DEFECTS[kind]],
)
def test_a_defect_is_one_line_and_the_line_mends_it(
    command, new_database: Callable[[str], str], kind: str, planted: Defect
):
    # given a database in order, but for one thing
    url = new_database(kind)
    command("outbox-publisher", "init-db", OUTBOX_DATABASE_URL=url)
    run_sql(url, *planted.plant)

    # when it is checked
    found = command("outbox-publisher", "schema", "check")

    # then that one thing is said, and doing what is said leaves nothing to say
    assert found == (1, f"{planted.said}\n", "")
    if mend(command, url, planted.said):
        assert command("outbox-publisher", "schema", "check") == (0, FINE.format("publisher"), "")


def test_every_defect_but_few_can_be_mended_by_its_line():
    """SQLite cannot change columns, and nobody can make a newer release older."""
    hopeless = {kind: [d.name for d in defects if "run: " not in d.said] for kind, defects in DEFECTS.items()}

    assert hopeless["postgresql"] == hopeless["mariadb"] == ["version-newer"]


@PROGRAMS
@pytest.mark.parametrize("kind", KINDS)
def test_after_init_db_there_is_nothing_to_say(command, new_database, program: str, kind: str):
    command(program, "init-db", OUTBOX_DATABASE_URL=new_database(kind))

    assert command(program, "schema", "check") == (0, FINE.format(program.removeprefix("outbox-")), "")


@PROGRAMS
@pytest.mark.parametrize("kind", KINDS)
def test_what_was_printed_is_what_is_checked(command, new_database, program: str, kind: str):
    """Those who run the statements themselves get the same tables, whichever side comes first."""
    url = new_database(kind)
    other = "outbox-consumer" if program == "outbox-publisher" else "outbox-publisher"
    for each in (program, other):
        _, printed, _ = command(each, "schema", "print", OUTBOX_DATABASE_URL=url)
        run_sql(url, *(statement for statement in printed.split(";\n") if statement.strip()))

    assert command(program, "schema", "check") == (0, FINE.format(program.removeprefix("outbox-")), "")
    assert command(other, "schema", "check")[0] == 0


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_database_misses_every_table(command, new_database, kind: str):
    code, output, _ = command("outbox-consumer", "schema", "check", OUTBOX_DATABASE_URL=new_database(kind))

    assert code == 1
    assert output.splitlines() == [
        f"outbox_{table} is missing; run: outbox-consumer init-db"
        for table in ("consumed_events", "consumer_attempts", "state")
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_columns_and_indexes_of_the_users_are_theirs(command, new_database, kind: str):
    url = new_database(kind)
    command("outbox-publisher", "init-db", OUTBOX_DATABASE_URL=url)

    run_sql(
        url,
        "ALTER TABLE outbox_events ADD COLUMN tenant integer",
        "CREATE INDEX by_tenant ON outbox_events (tenant, created_at)",
    )

    assert command("outbox-publisher", "schema", "check")[0] == 0


@pytest.mark.parametrize("kind", KINDS)
def test_the_consumers_key_is_checked_too(command, new_database, kind: str):
    url = new_database(kind)
    command("outbox-consumer", "init-db", OUTBOX_DATABASE_URL=url)
    run_sql(url, "CREATE UNIQUE INDEX one ON outbox_consumed_events (event_id)")

    code, output, _ = command("outbox-consumer", "schema", "check")

    assert (code, len(output.splitlines())) == (1, 1)
    assert "outbox_consumed_events has an extra unique key one (event_id)" in output


def test_a_schema_and_a_prefix_stand_in_every_statement(command, fresh_postgresql):
    url = fresh_postgresql()
    run_sql(url, "CREATE SCHEMA messaging")
    where = {"OUTBOX_TABLES__SCHEMA": "messaging", "OUTBOX_TABLES__PREFIX": "Shop_"}
    command("outbox-publisher", "init-db", OUTBOX_DATABASE_URL=url, **where)
    assert command("outbox-publisher", "schema", "check")[0] == 0
    run_sql(
        url,
        'ALTER TABLE messaging."Shop_events" ALTER lane DROP NOT NULL, SET (fillfactor = 90)',
        'DROP INDEX messaging."Shop_events_due"',
        'CREATE INDEX "Shop_events_due" ON messaging."Shop_events" (seq)',
        "UPDATE messaging.\"Shop_state\" SET value = '0'",
    )

    code, output, _ = command("outbox-publisher", "schema", "check")

    assert (code, len(output.splitlines())) == (1, 4)
    for line in output.splitlines():
        assert mend(command, url, line)
    assert command("outbox-publisher", "schema", "check")[0] == 0


@PROGRAMS
@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({}, "set outbox.database-url"),
        ({"OUTBOX_DATABASE_URL": "postgresql://user:secret@127.0.0.1:1/shop"}, "the database refused"),
    ],
)
def test_a_mistake_is_no_finding(command, program: str, environment: dict[str, str], said: str):
    code, output, errors = command(program, "schema", "check", **environment)

    assert (code, output) == (2, "")
    assert said in errors
    assert "secret" not in errors
