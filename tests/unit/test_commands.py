"""Both commands: a mistake is one line on stderr and exit code 2, never a traceback and never a password."""

import sys

import pytest

import outbox_shared

COMMANDS = pytest.mark.parametrize("name", ["outbox-publisher", "outbox-consumer"])


@COMMANDS
def test_the_version_is_told(command, name):
    assert command(name, "--version") == (0, f"{name} {outbox_shared.__version__}\n", "")


@COMMANDS
@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({}, "set outbox.database-url (OUTBOX_DATABASE_URL)"),
        ({"OUTBOX_DATABASE_URL": "nonsense"}, "write a URL"),
        ({"OUTBOX_DATABASE_URL": "cassandra://user:secret@db/shop"}, "no URL of a database that SQLAlchemy knows"),
        ({"OUTBOX_DATABASE_URL": "postgresql://user:secret@127.0.0.1:1/shop"}, "the database refused"),
        ({"OUTBOX_DATABASE_URL": "sqlite:////no/such/folder/shop.db"}, "unable to open database file"),
        ({"OUTBOX_DATABASE_URL": "sqlite+aiosqlite:///:memory:"}, "write sqlite:///shop.db"),
        (
            {"OUTBOX_DATABASE_URL": "postgresql+asyncpg://u:secret@db/shop?statement_cache_size=0"},
            "'statement_cache_size' has no equal",
        ),
        ({"OUTBOX_DATABASE_URL": "mysql+nosuch://db/shop"}, "no URL of a database that SQLAlchemy knows"),
        ({"OUTBOX_CONFIG": "/no/such/file.yml"}, "OUTBOX_CONFIG names /no/such/file.yml"),
        ({"OUTBOX_TABLES__PREFIX": "x; drop"}, "tables.prefix must be a plain SQL identifier"),
    ],
)
def test_a_mistake_is_a_line_on_stderr_and_exit_code_2(command, name, environment, said):
    code, output, errors = command(name, "init-db", **environment)

    assert (code, output) == (2, "")
    assert errors.startswith(f"{name}: ")
    assert said in errors
    assert "secret" not in errors


@COMMANDS
def test_a_missing_driver_names_the_pip_command(command, name, monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)

    code, _, errors = command(name, "init-db", OUTBOX_DATABASE_URL="postgresql://db/shop")

    assert (code, len(errors.splitlines())) == (2, 1)
    assert f"pip install '{name}[postgresql]'" in errors


def test_a_relay_without_a_sender_is_told_the_key(command):
    code, _, errors = command("outbox-publisher", "run", OUTBOX_DATABASE_URL="sqlite:///x.db")

    assert (code, "set outbox.publisher.sender.type" in errors) == (2, True)
