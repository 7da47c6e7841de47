"""The three wheels as a user gets them: built, installed into an empty environment, with their base dependencies only."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
UV = [str(Path(sys.executable).with_name("uv"))]
BASE = {"sqlalchemy", "pydantic", "uuid-utils", "pydantic-settings", "typer", "cachetools"}
EXTRAS = {"psycopg", "confluent-kafka", "pika", "pymysql", "redis", "fastapi"}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.xdist_group("wheels")]


def run(*command: str | Path, cwd: Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, capture_output=True, text=True, check=False, timeout=280
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def empty_environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheels")
    for package in ("shared", "outbox_publisher", "outbox_consumer"):
        run(
            *UV,
            "build",
            "--quiet",
            "--wheel",
            "--no-build-isolation",
            "--python",
            sys.executable,
            "--out-dir",
            folder,
            ROOT / package,
            cwd=ROOT,
        )
    run(*UV, "venv", "--quiet", "--python", sys.executable, folder / "venv", cwd=ROOT)
    python = folder / "venv/bin/python"
    wheels = sorted(folder.glob("*.whl"))
    run(
        *UV,
        "pip",
        "install",
        "--quiet",
        "--python",
        python,
        "--constraint",
        ROOT / "requirements/dev.txt",
        *wheels,
        cwd=ROOT,
    )
    return folder


def test_the_wheels_bring_their_base_dependencies_and_nothing_optional(empty_environment):
    python = empty_environment / "venv/bin/python"
    listed = run(*UV, "pip", "freeze", "--quiet", "--python", python, cwd=empty_environment).stdout
    installed = {line.partition("==")[0].partition(" ")[0].lower() for line in listed.splitlines()}

    assert installed >= BASE | {"outbox-shared", "outbox-publisher", "outbox-consumer"}
    assert not installed & EXTRAS


def test_each_package_is_typed_and_importable(empty_environment):
    python = empty_environment / "venv/bin/python"
    for package in ("outbox_shared", "outbox_publisher", "outbox_consumer"):
        script = f"import {package}, pathlib; print((pathlib.Path({package}.__file__).parent / 'py.typed').exists())"
        assert run(python, "-c", script, cwd=empty_environment).stdout == "True\n"


@pytest.mark.parametrize("command", ["outbox-publisher", "outbox-consumer"])
def test_the_commands_work_on_sqlite_without_any_extra(empty_environment, command):
    program = empty_environment / "venv/bin" / command
    first = subprocess.run(
        [program, "init-db"], env={"OUTBOX_DATABASE_URL": f"sqlite:///{command}.db"}, cwd=empty_environment,
        capture_output=True, text=True, check=True,
    )  # fmt: skip

    assert "created" in first.stdout


@pytest.mark.parametrize(
    ("command", "environment", "line"),
    [
        (["outbox-publisher", "init-db"], {}, "no database is configured: set outbox.database-url"),
        (
            ["outbox-publisher", "init-db"],
            {"OUTBOX_DATABASE_URL": "postgresql://localhost/x"},
            "pip install 'outbox-publisher[postgresql]'",
        ),
        (
            ["outbox-consumer", "init-db"],
            {"OUTBOX_DATABASE_URL": "postgresql://localhost/x"},
            "pip install 'outbox-consumer[postgresql]'",
        ),
        (["outbox-publisher", "demo"], {}, "pip install 'outbox-publisher[demo]'"),
        (
            ["outbox-publisher", "run"],
            {
                "OUTBOX_DATABASE_URL": "sqlite:///x.db",
                "OUTBOX_PUBLISHER__SENDER__TYPE": "kafka",
                "OUTBOX_PUBLISHER__SENDER__KAFKA__BOOTSTRAP_SERVERS": "localhost:9092",
            },
            "pip install 'outbox-publisher[kafka]'",
        ),
    ],
)
def test_what_is_missing_is_one_line_that_says_what_to_do(empty_environment, command, environment, line):
    program = empty_environment / "venv/bin" / command[0]

    failed = subprocess.run(
        [program, *command[1:]], env=environment, cwd=empty_environment, capture_output=True, text=True, check=False
    )

    assert failed.returncode == 2
    assert len(failed.stderr.splitlines()) == 1
    assert line in failed.stderr
