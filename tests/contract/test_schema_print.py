"""`schema print`: the statements, reviewed as files, and the same under every version of SQLAlchemy."""

from pathlib import Path

import pytest

import outbox_consumer.schema
import outbox_publisher.schema
from outbox_shared.errors import ConfigurationError
from outbox_shared.tables import TableNames

SNAPSHOTS = Path(__file__).parents[2] / "docs" / "reference" / "schema"
SIDES = {"publisher": outbox_publisher.schema, "consumer": outbox_consumer.schema}
EACH_SIDE = pytest.mark.parametrize("side", SIDES)


@EACH_SIDE
@pytest.mark.parametrize("dialect", ["postgresql", "mysql", "sqlite"])
def test_the_tables_are_those_that_were_reviewed(command, side: str, dialect: str):
    code, printed, errors = command(f"outbox-{side}", "schema", "print", "--dialect", dialect)

    assert (code, errors) == (0, "")
    assert printed == (SNAPSHOTS / f"{side}.{dialect}.sql").read_text(), (
        f"if the new form is meant: outbox-{side} schema print --dialect {dialect} > docs/reference/schema/{side}.{dialect}.sql, "
        "and raise SCHEMA_VERSION once a release has carried the old one"
    )


@EACH_SIDE
def test_mariadb_is_mysql(side: str):
    assert SIDES[side].statements("mariadb") == SIDES[side].statements("mysql")


@EACH_SIDE
def test_the_function_gives_what_the_command_prints(command, side: str):
    statements = SIDES[side].statements("postgresql", TableNames("messaging", "shop_"))

    where = ("--schema", "messaging", "--prefix", "shop_")
    printed = command(f"outbox-{side}", "schema", "print", "--dialect", "postgresql", *where)[1]

    assert printed == "\n\n".join(f"{statement};" for statement in statements) + "\n"
    assert "CREATE TABLE IF NOT EXISTS messaging.shop_state" in printed
    assert "outbox_" not in printed


@EACH_SIDE
def test_settings_are_the_defaults(command, side: str):
    environment = {
        "OUTBOX_DATABASE_URL": "mysql://nobody@127.0.0.1:1/shop",  # never connected to
        "OUTBOX_TABLES__SCHEMA": "messaging",
        "OUTBOX_TABLES__PREFIX": "shop_",
    }

    code, printed, _ = command(f"outbox-{side}", "schema", "print", **environment)

    assert code == 0
    assert "ENGINE=InnoDB" in printed
    assert "messaging.shop_state" in printed


@EACH_SIDE
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "--dialect postgresql, mysql, mariadb or sqlite"),
        (("--dialect", "oracle"), "there are no tables for 'oracle'"),
        (("--dialect", "sqlite", "--prefix", "x; drop"), "tables.prefix must be a plain SQL identifier"),
        (("--dialect", "sqlite", "--schema", "a.b"), "tables.schema must be a plain SQL identifier"),
        (("--dialect", "sqlite", "--prefix", ""), "tables.prefix must be a plain SQL identifier"),
    ],
)
def test_a_mistake_says_what_to_write(command, side: str, arguments: tuple[str, ...], said: str):
    code, printed, errors = command(f"outbox-{side}", "schema", "print", *arguments)

    assert (code, printed) == (2, "")
    assert said in errors


@EACH_SIDE
def test_a_dialect_that_nobody_knows_is_refused_in_code_too(side: str):
    with pytest.raises(ConfigurationError, match="postgresql, mysql, mariadb, sqlite"):
        SIDES[side].statements("oracle")
