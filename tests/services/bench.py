"""The owner of the servers: starts shared ones at most once, makes private ones, and ends them all.

Shared servers serve the whole run. Private ones are for tests that hurt a server; nobody else
ever sees them. A start that failed is remembered with its reason, so that a hundred tests which
need the server wait for it only once.
"""

import os
import shutil
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.services import containers
from tests.services.catalogue import COMPANIONS, KINDS, Unavailable
from tests.services.locks import try_lock
from tests.services.native import native_server
from tests.services.native.server import clean_up
from tests.services.server import Server

PREFIX = "outbox-bench-"
LOCK = "lock"

# Data directories live in memory where there is plenty: a database is created ten times as fast.
MEMORY = "/dev/shm"
ROOM = 4 << 30
# Set for measurements, where a commit must cost what it costs in production.
ON_DISK = "OUTBOX_BENCH_ON_DISK"

MakeServer = Callable[[str, Path, int | None], Server]


def make_server(name: str, home: Path, advertised_port: int | None) -> Server:
    """A container where a Docker engine answers, else a native process."""
    if name not in COMPANIONS and containers.engine_answers():
        return containers.container_server(name, advertised_port)
    return native_server(name, home, advertised_port)


class Bench:
    def __init__(self, make: MakeServer = make_server) -> None:
        self.root = make_root()
        # Held before it has its name: a sweep by another bench must never find it free.
        self._lock = try_lock(self.root / "lock.new")
        (self.root / "lock.new").rename(self.root / LOCK)
        self._make = make
        self._shared = {name: _Shared() for name in KINDS}
        self._servers: list[Server] = []
        self._made = 0
        self._closing = False
        self._working = 0
        self._change = threading.Condition()

    def shared(self, name: str) -> Server:
        """The run's server of this kind, started by the first who asks."""
        slot = self._shared[name]
        with slot.lock:
            if slot.failure is not None:
                raise Unavailable(slot.failure)
            if slot.server is None:
                try:
                    slot.server = self.own(name)
                except Unavailable as error:
                    slot.failure = str(error)
                    raise
            return slot.server

    def own(self, name: str, advertised_port: int | None = None, upstream: str | None = None) -> Server:
        """A private server, started; `upstream` is the one that a companion stands in front of."""
        with self._at_work():
            with self._change:
                self._made += 1
                home = self.root / f"{name}-{self._made}"
            server = self._make(name, home, advertised_port)
            if upstream is not None:
                server.upstream = upstream
            with self._change:
                self._refuse_if_closing()
                self._servers.append(server)
            try:
                server.start()
            except Exception as error:
                self.release(server)
                if isinstance(error, Unavailable):
                    raise
                raise Unavailable(f"{name}: {type(error).__name__}: {error}") from error
            return server

    def warm(self, names: list[str]) -> None:
        """Start these shared servers ahead of the tests that need them."""

        def start(name: str) -> None:
            # Whoever then really asks for the server is told the reason.
            with suppress(Unavailable):
                self.shared(name)

        for slow in (False, True):
            with ThreadPoolExecutor(len(KINDS)) as starting:
                starting.map(start, [name for name in names if KINDS[name].boots_slowly is slow])

    def release(self, server: Server) -> None:
        with self._change:
            if server not in self._servers:
                return
            self._servers.remove(server)
        server.release()

    def running(self) -> dict[str, str]:
        """The shared servers that are up, by name."""
        return {name: slot.server.url for name, slot in self._shared.items() if slot.server is not None}

    def close(self) -> None:
        """End every server, also those that are only starting, and remove all data."""
        with self._change:
            self._closing = True
            servers = list(self._servers)
        ending = [threading.Thread(target=self.release, args=(server,)) for server in servers]
        for thread in ending:
            thread.start()
        for thread in ending:
            thread.join()
        with self._change:
            # An apt-get that is under way is waited for: half an installation helps nobody.
            self._change.wait_for(lambda: self._working == 0, timeout=600)
        shutil.rmtree(self.root, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)

    def _refuse_if_closing(self) -> None:
        if self._closing:
            raise Unavailable("the bench is closing")

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        with self._change:
            self._refuse_if_closing()
            self._working += 1
        try:
            yield
        finally:
            with self._change:
                self._working -= 1
                self._change.notify_all()


class _Shared:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.server: Server | None = None
        self.failure: str | None = None


def make_root() -> Path:
    """A directory for all data of this run, in a place that PostgreSQL's user can reach."""
    base = tempfile.gettempdir()
    if _has_room(MEMORY) and not os.environ.get(ON_DISK):
        base = MEMORY
    elif os.geteuid() == 0 and not _reachable(Path(base)):
        base = "/tmp"
    sweep(Path(base))
    root = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))
    root.chmod(0o711)
    return root


def _has_room(folder: str) -> bool:
    return os.access(folder, os.W_OK) and shutil.disk_usage(folder).free >= ROOM


def _reachable(folder: Path) -> bool:
    return all(place.stat().st_mode & stat.S_IXOTH for place in (folder, *folder.parents))


def sweep(base: Path) -> None:
    """Clean up after benches that were killed: their lock is free, so nobody owns what they left."""
    for root in base.glob(f"{PREFIX}*"):
        if not root.is_dir() or root.stat().st_uid != os.geteuid() or not (root / LOCK).exists():
            continue
        lock = try_lock(root / LOCK)
        if lock is not None:
            for home in root.iterdir():
                clean_up(home)
            shutil.rmtree(root, ignore_errors=True)
            os.close(lock)
