"""The test process's side: finds the run's bench, starts it on first use, and talks to it.

Whoever needs a server first starts the bench, also an xdist worker; its holder is the pytest
process that the user started, which names itself in the environment.
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.services.catalogue import Unavailable, url_from_environment
from tests.services.locks import locked
from tests.services.proxy import Proxy

PROJECT = Path(__file__).parents[2]
SOCKET = "OUTBOX_BENCH_SOCKET"
HOLDER = "OUTBOX_BENCH_HOLDER"
# A Unix socket's address holds 107 characters.
LONGEST_PATH = 100
SHORT_FOLDER = "outbox-bench-socket-"


class BenchEnded(Unavailable):
    """The bench is gone, and with it all its servers."""


class Connection:
    """One line there, one line back."""

    def __init__(self, path: Path, seconds: float | None = None) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(seconds)
        try:
            self._socket.connect(str(path))
        except OSError:
            self._socket.close()
            raise
        self._lines = self._socket.makefile("rb")

    def ask(self, **message: Any) -> dict[str, Any]:
        self._socket.sendall(json.dumps(message).encode() + b"\n")
        line = self._lines.readline()
        if not line:
            raise BenchEnded("the bench has ended")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise Unavailable(answer["error"])
        return answer

    def close(self) -> None:
        self._lines.close()
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class OwnServer:
    """A private server of one test, which may hurt it as it likes."""

    def __init__(self, connection: Connection, name: str, url: str, port: int, proxy: Proxy | None) -> None:
        self._connection = connection
        self.name = name
        self.url = url
        self.port = port
        self._proxy = proxy
        self._released = False

    @property
    def proxy(self) -> Proxy:
        if self._proxy is None:
            raise LookupError(f"this {self.name} has no proxy: ask for own_server({self.name!r}, behind_proxy=True)")
        return self._proxy

    def stop(self) -> None:
        """Shut it down in an orderly way."""
        self._connection.ask(op="stop")

    def abort(self) -> None:
        """End it at once, in its own way where it has one: PostgreSQL's `-m immediate`."""
        self._connection.ask(op="abort")

    def kill(self) -> None:
        """SIGKILL all its processes."""
        self._connection.ask(op="kill")

    def pause(self) -> None:
        """SIGSTOP all its processes; returns when they stand still."""
        self._connection.ask(op="pause")

    def resume(self) -> None:
        self._connection.ask(op="resume")

    def restart(self) -> None:
        """Start it again, on the same port and data; returns when it answers."""
        self._connection.ask(op="restart")

    def pids(self) -> list[int]:
        found: list[int] = self._connection.ask(op="pids")["pids"]
        return found

    def log_tail(self) -> str:
        return str(self._connection.ask(op="log")["log"])

    def release(self) -> None:
        """Throw it away before the test's end, which does the same."""
        if self._released:
            return
        self._released = True
        try:
            with suppress(BenchEnded, OSError):
                self._connection.ask(op="release")
        finally:
            self._connection.close()
            if self._proxy is not None:
                self._proxy.close()


@dataclass(frozen=True)
class BenchClient:
    path: Path
    # The process with which a bench that we start shall end; None for one that `up` started.
    holder: int | None
    # Where it announces what it installs; pytest has put its own file in the place of 2.
    stderr: int = 2

    def url(self, name: str) -> str:
        """The shared server's URL; raises Unavailable."""
        given = url_from_environment(name)
        if given:
            return given
        with self.connect() as connection:
            return str(connection.ask(op="start", server=name)["url"])

    def warm(self, names: list[str]) -> None:
        """Let these shared servers start in the background."""
        wanted = [name for name in names if url_from_environment(name) is None]
        if wanted:
            with self.connect() as connection:
                connection.ask(op="warm", servers=wanted)

    def own(self, name: str, behind_proxy: bool = False, upstream: str | None = None) -> OwnServer:
        proxy = Proxy() if behind_proxy else None
        connection = self.connect()
        try:
            advertised = proxy.port if proxy else None
            answer = connection.ask(op="own", server=name, advertised_port=advertised, upstream=upstream)
        except BaseException:
            connection.close()
            if proxy is not None:
                proxy.close()
            raise
        url, port = answer["url"], answer["port"]
        if proxy is not None:
            proxy.target = (answer["host"], port)
            url = url.replace(f":{port}", f":{proxy.port}")
        return OwnServer(connection, name, url, port, proxy)

    def connect(self) -> Connection:
        """A connection to the bench, which is started if it does not run."""
        try:
            return Connection(self.path)
        except (FileNotFoundError, ConnectionRefusedError):
            with locked(self.path.with_suffix(".lock")):
                try:
                    return Connection(self.path)
                except (FileNotFoundError, ConnectionRefusedError):
                    self._spawn()
            return Connection(self.path)

    def _spawn(self) -> None:
        holder = [] if self.holder is None else ["--holder", str(self.holder)]
        command = [sys.executable, "-m", "tests.services", "serve", "--socket", str(self.path), *holder]
        # It returns as soon as the bench has gone into the background and listens.
        done = subprocess.run(
            command, cwd=PROJECT, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=self.stderr, check=False
        )
        if done.returncode != 0:
            raise Unavailable(f"the bench did not start: {' '.join(command)} ended with {done.returncode}")

    def shutdown(self) -> None:
        """End the bench if it runs; returns when its servers and their data are gone."""
        # It may end before its answer is out.
        with suppress(FileNotFoundError, ConnectionError, BenchEnded), Connection(self.path) as connection:
            connection.ask(op="shutdown")
        self.path.with_suffix(".lock").unlink(missing_ok=True)
        if self.path.parent.name.startswith(SHORT_FOLDER):
            self.path.parent.rmdir()


def from_environment(environ: Mapping[str, str] = os.environ, stderr: int = 2) -> BenchClient | None:
    """The bench that this run, or the run around it, has decided on."""
    if SOCKET not in environ:
        return None
    holder = environ.get(HOLDER, "")
    return BenchClient(Path(environ[SOCKET]), int(holder) if holder else None, stderr)


def new_socket_path(folder: Path, name: str) -> Path:
    """A place for a socket: in this folder, or in /tmp where the path would be too long for one."""
    path = folder / name
    if len(str(path)) <= LONGEST_PATH:
        return path
    return Path(tempfile.mkdtemp(prefix=SHORT_FOLDER, dir="/tmp")) / name
