"""The consumer's front door: few names, a cheap import, a command line without tracebacks."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import outbox_consumer
import outbox_shared

MAIN = "from outbox_consumer.cli import main; main()"


def python(code: str, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    clean = {name: value for name, value in os.environ.items() if not name.startswith("OUTBOX_")}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**clean, "COLUMNS": "100", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_all_is_sorted_and_complete():
    names = outbox_consumer.__all__

    assert list(names) == sorted(names, key=lambda name: (not name[0].isupper(), name.startswith("_") is False, name))
    assert all(hasattr(outbox_consumer, name) for name in names)


def test_the_import_is_real_and_light():
    heavy = {"typer", "yaml", "confluent_kafka", "pika", "redis", "psycopg", "outbox_publisher"}

    loaded = python("import sys, outbox_consumer; print(outbox_consumer.__file__); print(*sys.modules)").stdout

    assert loaded.splitlines()[0].endswith("__init__.py")
    assert heavy.isdisjoint(loaded.split())


def test_the_version_is_told():
    told = python(MAIN, "--version")

    assert (told.returncode, told.stdout) == (0, f"outbox-consumer {outbox_shared.__version__}\n")


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({}, "set outbox.database-url (OUTBOX_DATABASE_URL)"),
        ({"OUTBOX_DATABASE_URL": "nonsense"}, "write a URL"),
        ({"OUTBOX_DATABASE_URL": "cassandra://user:secret@db/shop"}, "no URL of a database that SQLAlchemy knows"),
        ({"OUTBOX_DATABASE_URL": "postgresql://user:secret@127.0.0.1:1/shop"}, "the database refused"),
        ({"OUTBOX_DATABASE_URL": "sqlite:////no/such/folder/shop.db"}, "unable to open database file"),
        ({"OUTBOX_DATABASE_URL": "sqlite+aiosqlite:///shop.db"}, "write sqlite:// here"),
        ({"OUTBOX_CONFIG": "/no/such/file.yml"}, "OUTBOX_CONFIG names /no/such/file.yml"),
        ({"OUTBOX_DATABASE_URL": "sqlite:///x.db", "OUTBOX_CONSUMER__LOCK_TIMEOUT": "soon"}, "lock-timeout"),
    ],
)
def test_a_mistake_is_a_line_on_stderr_and_exit_code_2(
    environment: dict[str, str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)

    failed = python(MAIN, "init-db", **environment)

    assert failed.returncode == 2
    assert failed.stdout == ""
    assert failed.stderr.startswith("outbox-consumer: ")
    assert said in failed.stderr
    assert "Traceback" not in failed.stderr
    assert "secret" not in failed.stderr


def test_a_missing_driver_names_the_pip_command():
    hidden = "import sys; sys.modules['psycopg'] = None; " + MAIN

    failed = python(hidden, "init-db", OUTBOX_DATABASE_URL="postgresql://db/shop")

    assert failed.returncode == 2
    assert "pip install 'outbox-consumer[postgresql]'" in failed.stderr
    assert "Traceback" not in failed.stderr
