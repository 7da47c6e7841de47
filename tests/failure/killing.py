"""A process in a test's hands that forks others to be killed, and the pipe on which they say how far they are."""

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

from sqlalchemy import text
from sqlalchemy.engine import Engine

PATIENCE = 60.0

_OTHER_SESSIONS = {
    "postgresql": "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
    "AND backend_type = 'client backend' AND pid <> pg_backend_pid() AND state <> 'idle'",
    "mysql": "SELECT count(*) FROM information_schema.innodb_trx JOIN information_schema.processlist "
    "ON id = trx_mysql_thread_id WHERE db = database()",
}


def other_sessions(engine: Engine) -> int:
    """How many sessions of this database are in a transaction. Each look has one of its own: PostgreSQL shows the same ones in it."""
    query = _OTHER_SESSIONS.get(engine.dialect.name)
    if query is None:  # SQLite has processes only, and a killed one is dead
        return 0
    with engine.connect() as connection:
        return connection.execute(text(query)).scalar_one()


class Forge:
    """Imports are paid for once: each order is worked on by a fork."""

    def __init__(self, module: str) -> None:
        root = Path(__file__).parents[2]
        self._process = subprocess.Popen(
            [sys.executable, "-m", module], cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )
        self._living: int | None = None

    def order(self, order: str) -> None:
        self._send(order.encode() + b"\n")
        pid = b""
        while not pid.endswith(b"\n"):
            pid += self._read()
        self._living = int(pid)

    def go(self) -> None:
        self._send(b"g")

    def expect(self, signs: bytes) -> None:
        for sign in signs:
            assert self._read() == bytes([sign]), "it failed: its own words are above"

    def says_something(self, within: float) -> bool:
        return bool(select.select([self._process.stdout], [], [], within)[0])

    def kill(self) -> bytes:
        """kill -9; returns what it had said before it died."""
        assert self._living is not None
        os.kill(self._living, signal.SIGKILL)
        self._living = None
        said = b""
        while not said.endswith(b"x"):
            said += self._read()
        return said[:-1]

    def kill_what_lives(self) -> None:
        if self._living:
            self.kill()

    def close(self) -> None:
        self.kill_what_lives()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        assert self._process.wait(PATIENCE) == 0

    def _read(self) -> bytes:
        assert self.says_something(within=PATIENCE), f"no word for {PATIENCE} s"
        assert self._process.stdout is not None
        byte: bytes = self._process.stdout.read(1)
        assert byte, "the process that forks has died: its own words are above"
        return byte

    def _send(self, message: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(message)
