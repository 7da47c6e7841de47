"""Other outbox relays, installed by name into environments of their own and measured on the same work as ours.

A peer's program stands beside this file and runs under the peer's own interpreter, so this module must import nothing
that such an environment lacks: the standard library only.
"""

import fcntl
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]

# What fills the backlog and reads the topic back, outside the clock.
TOOLS = ("confluent-kafka==2.16.1", "psycopg[binary]==3.3.9")
REQUIREMENTS = {
    "txoutbox": ("txoutbox[postgres]==0.2.2", "aiokafka==0.14.0", "asyncpg==0.32.0", "uvloop==0.23.0", *TOOLS),
    "faststream-outbox": (
        "faststream-outbox[asyncpg]==0.19.0",
        "faststream[kafka]==0.7.8",
        "aiokafka==0.14.0",
        "asyncpg==0.32.0",
        "sqlalchemy==2.1.8",
        *TOOLS,
    ),
}
RESULT = '{"events_per_s"'
SLOWEST = 50  # events a second below which a peer's run is given up
PROGRAMS = {"txoutbox": "txoutbox_relay", "faststream-outbox": "faststream_relay"}


def environment(name: str) -> Path:
    """The interpreter of the peer's own environment, made on first use and kept in the user's cache directory."""
    wanted = "\n".join((sys.version, *REQUIREMENTS[name]))
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "outbox-benchmarks"
    base.mkdir(parents=True, exist_ok=True)
    home = base / f"{name}-{hashlib.sha256(wanted.encode()).hexdigest()[:12]}"
    python, ready = home / "bin/python", home / ".ready"
    with (base / f"{home.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not ready.exists():
            print(f"installing {REQUIREMENTS[name][0]} into {home} (once)", file=sys.stderr)
            _install(home, python, REQUIREMENTS[name])
            ready.touch()
    return python


def _install(home: Path, python: Path, requirements: tuple[str, ...]) -> None:
    uv = Path(sys.executable).with_name("uv")
    # The machine's own certificates, for those behind a proxy with one of theirs: as in the Makefile.
    variables = {"UV_SYSTEM_CERTS": "true", **os.environ}
    make = [sys.executable, "-m", "venv", "--clear", str(home)]
    if uv.exists():
        install = [str(uv), "pip", "install", "--quiet", "--compile-bytecode", "--python", str(python)]
        make.append("--without-pip")
    else:
        install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    for command in (make, [*install, *requirements]):
        subprocess.run(command, env=variables, check=True)


def report(name: str, dsn: str, kafka: str, topic: str, events: int) -> dict[str, Any]:
    """Run the peer's program on an empty database and an empty topic, and return the JSON line that it prints.

    `dsn` is libpq's: postgresql://user@host:port/database.
    """
    variables = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "REFERENCE_PG": dsn,
        "REFERENCE_KAFKA": kafka,
        "REFERENCE_TOPIC": topic,
    }
    command = [str(environment(name)), "-m", f"benchmarks.peers.{PROGRAMS[name]}", "--events", str(events)]
    options: dict[str, Any] = {"env": variables, "cwd": ROOT, "timeout": 60 + events / SLOWEST}
    # A file and no pipe: a peer that logs each message must not wait for us to read it.
    with tempfile.TemporaryFile("w+") as output:
        done = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, check=False, **options)
        output.seek(0)
        lines = output.read().splitlines()
    if done.returncode != 0:
        raise RuntimeError("\n".join([f"{name} ended with {done.returncode}:", *lines[-40:]]))
    seen: dict[str, Any] = json.loads(next(line for line in reversed(lines) if line.startswith(RESULT)))
    assert seen["events"] == events
    if seen["duplicates"]:
        print(f"{name}: {seen['duplicates']:,} copies in the topic beside {events:,} events", file=sys.stderr)
    return seen


def txoutbox(dsn: str, kafka: str, topic: str, events: int) -> float:
    """Events a second of txoutbox at its best settings."""
    return float(report("txoutbox", dsn, kafka, topic, events)["events_per_s"])


def faststream_outbox(dsn: str, kafka: str, topic: str, events: int) -> float:
    """Events a second of faststream-outbox at its defaults."""
    return float(report("faststream-outbox", dsn, kafka, topic, events)["events_per_s"])
