"""The life of a native server: its processes, ports, data directory and log.

A server is one main process plus, for RabbitMQ, a companion; each leads a session of its own, so
that a Ctrl-C in the terminal reaches neither. Their pids are written beside the data, so that a
later bench can clean up after one that was killed.
"""

import pwd
import shutil
import signal
import subprocess
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from tests.services import ports
from tests.services.catalogue import Unavailable
from tests.services.checks import CHECKS, client_of
from tests.services.processes import Process, family, find_process, wait_until

START_SECONDS = 90.0
STOP_SECONDS = 30.0
PIDS = "pids"


class NativeServer(ABC):
    """Subclasses say what to prepare and what to launch; `port` is 0 until they have prepared."""

    name: ClassVar[str]
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM
    # The server's own way to end at once, if it has one.
    abort_signal: ClassVar[signal.Signals] = signal.SIGKILL
    # The user who runs it when the bench is root; None is root itself.
    user: str | None = None

    host = ports.HOST

    def __init__(self, home: Path) -> None:
        self.home = home
        self.data = home / "data"
        self.log = home / "log"
        self.port = 0
        self.advertised_port: int | None = None
        self.upstream: str | None = None
        self._ports: list[int] = []
        self._running: list[subprocess.Popen[bytes]] = []
        self._paused: list[Process] = []
        self._released = False
        self._guard = threading.Lock()

    @property
    @abstractmethod
    def url(self) -> str: ...

    @abstractmethod
    def prepare(self) -> None:
        """Choose the ports and fill the empty home directory."""

    @abstractmethod
    def launch(self) -> None:
        """Spawn the processes, the main one last."""

    @property
    def check_url(self) -> str:
        """Where the bench asks whether the server is ready."""
        return self.url

    def start(self) -> None:
        if self.port:
            self._start_once()
            return
        for _ in range(3):
            self.prepare()
            try:
                self._start_once()
            except Unavailable:
                # Somebody took a port between our look and the server's bind: again with others.
                if self._released or all(ports.is_free(port) for port in self._ports):
                    raise
                shutil.rmtree(self.home, ignore_errors=True)
            else:
                return
        raise Unavailable(f"{self.name}: three ports in a row were taken by others")

    def new_ports(self, count: int) -> list[int]:
        self._ports = [ports.free_port() for _ in range(count)]
        return self._ports

    def _start_once(self) -> None:
        self.launch()
        client_of(self.name)
        main = self._running[-1]
        last_error: list[Exception] = []

        def ready() -> bool:
            if main.poll() is not None:
                return True
            try:
                if not (ports.answers(self.port) and ports.listens(self.port, self.pids())):
                    return False
                CHECKS[self.name](self.check_url)
            except Exception as error:  # noqa: BLE001 - each client has its own words for "not yet"
                last_error[:] = [error]
                return False
            return True

        answered = wait_until(ready, START_SECONDS, pause=0.03)
        if not answered or main.poll() is not None:
            ended = f"ended with {main.poll()}" if main.poll() is not None else f"silent for {START_SECONDS:.0f} s"
            self.kill()
            raise Unavailable(f"{self.name}: {ended} {last_error or ''}\n{self.log_tail()}")

    def spawn(self, command: Sequence[str | Path], environment: Mapping[str, str] | None = None) -> None:
        with self._guard, self.log.open("ab") as log:
            if self._released:
                raise Unavailable(f"{self.name}: released while it started")
            process = subprocess.Popen(
                [str(part) for part in command],
                cwd=self.home,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                user=self.user,
                group=self.user and primary_group(self.user),
                extra_groups=None if self.user is None else [],
            )
            self._running.append(process)
            found = find_process(process.pid)
            if found:
                with (self.home / PIDS).open("a") as record:
                    record.write(f"{found.pid} {found.started}\n")

    def stop(self) -> None:
        self._end(self.stop_signal, STOP_SECONDS)

    def abort(self) -> None:
        self._end(self.abort_signal, STOP_SECONDS)

    def kill(self) -> None:
        self._end(signal.SIGKILL, STOP_SECONDS)

    def _end(self, how: signal.Signals, seconds: float) -> None:
        """End the main process this way, and whatever is left of the server by SIGKILL."""
        members = self._members()
        if self._running and how != signal.SIGKILL:
            self.resume()
            main = self._running[-1]
            main.send_signal(how)
            wait_until(lambda: main.poll() is not None, seconds)
            members = [*members, *self._members()]
        for member in members:
            member.send(signal.SIGKILL)
        for process in self._running:
            process.wait()
        if not wait_until(lambda: not any(member.alive for member in members), STOP_SECONDS):
            raise RuntimeError(f"{self.name}: {members} survive SIGKILL")
        self._running.clear()
        self._paused.clear()
        (self.home / PIDS).unlink(missing_ok=True)

    def pause(self) -> None:
        def standing_still() -> bool:
            self._paused = self._members()
            for member in self._paused:
                member.send(signal.SIGSTOP)
            return all(member.stopped for member in self._paused)

        if not wait_until(standing_still, STOP_SECONDS):
            raise RuntimeError(f"{self.name}: {self._paused} do not stop")

    def resume(self) -> None:
        for member in reversed(self._paused):
            member.send(signal.SIGCONT)
        self._paused = []

    def restart(self) -> None:
        self.stop()
        self._start_once()

    def release(self) -> None:
        with self._guard:
            self._released = True
        self._end(self.abort_signal, seconds=5)
        shutil.rmtree(self.home, ignore_errors=True)

    def pids(self) -> list[int]:
        return [member.pid for member in self._members()]

    def _members(self) -> list[Process]:
        return family(process.pid for process in reversed(self._running) if process.poll() is None)

    def log_tail(self) -> str:
        if not self.log.exists():
            return "(no log)"
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-20:])


def run(command: Sequence[str | Path], what: str, user: str | None = None, text: str | None = None) -> None:
    """Run a server's tool to its end; its output is the error message if it fails."""
    done = subprocess.run(
        [str(part) for part in command],
        input=text,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        cwd="/",
        start_new_session=True,
        user=user,
        group=user and primary_group(user),
        extra_groups=None if user is None else [],
        check=False,
    )
    if done.returncode != 0:
        raise Unavailable(f"{what} failed with {done.returncode}:\n" + "\n".join(done.stdout.splitlines()[-15:]))


def primary_group(user: str) -> int:
    return pwd.getpwnam(user).pw_gid


def clean_up(home: Path) -> None:
    """Kill what a dead bench left running for this home directory."""
    record = home / PIDS
    if not record.exists():
        return
    left = [Process(int(pid), int(started)) for pid, started in map(str.split, record.read_text().splitlines())]
    for root in left:
        if root.alive:
            for member in family([root.pid]):
                member.send(signal.SIGKILL)
    wait_until(lambda: not any(root.alive for root in left), 5)
