"""PostgreSQL as a native process. It refuses to run as root, so root lends it another user."""

import os
import pwd
import shutil
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

from tests.services.install import programs
from tests.services.native.server import NativeServer, run
from tests.services.native.templates import copy_template
from tests.services.ports import HOST

SETTINGS = {
    "listen_addresses": HOST,
    "unix_socket_directories": "",
    "max_connections": "300",
    "shared_buffers": "64MB",
    # kill() must not lose what was committed.
    "fsync": "on",
    "synchronous_commit": "on",
    # As files of the data directory, so that a killed server leaves nothing in /dev/shm.
    "dynamic_shared_memory_type": "mmap",
    "log_min_messages": "warning",
    # The suite makes and drops databases all the time: no checkpoint in the middle of a measurement.
    "checkpoint_timeout": "30min",
}


class PostgreSQL(NativeServer):
    name: ClassVar[str] = "postgresql"
    # SIGINT is the fast shutdown, SIGQUIT the immediate one: it still frees the shared memory.
    stop_signal: ClassVar[signal.Signals] = signal.SIGINT
    abort_signal: ClassVar[signal.Signals] = signal.SIGQUIT

    @property
    def url(self) -> str:
        return f"postgresql+psycopg://postgres@{HOST}:{self.port}/postgres"

    def prepare(self) -> None:
        self._program = programs(self.name)["postgres"]
        self.user = service_user()  # afterwards: the package brings the user
        (self.port,) = self.new_ports(1)
        self.home.mkdir(parents=True)
        self.home.chmod(0o711)
        copy_template(self.name, self.data, self._make_template)

    def _make_template(self, folder: Path) -> None:
        folder.mkdir()
        if self.user:
            shutil.chown(folder, self.user)
        options = ["--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C.UTF-8", "--no-sync"]
        run([self._program.with_name("initdb"), "-D", folder, *options], "initdb", user=self.user)

    def launch(self) -> None:
        settings = [f"--{name}={value}" for name, value in SETTINGS.items()]
        self.spawn([self._program, "-D", self.data, "-p", str(self.port), *settings])

    def release(self) -> None:
        self._remove_shared_memory()
        super().release()

    def _remove_shared_memory(self) -> None:
        """A killed server leaves a small System V segment; postmaster.pid's seventh line names it."""
        with suppress(OSError, IndexError):
            segment = (self.data / "postmaster.pid").read_text().splitlines()[6].split()[1]
            if not self.pids():
                subprocess.run(["ipcrm", "-m", segment], check=False, stderr=subprocess.DEVNULL)


def service_user() -> str | None:
    """Who runs the server if we are root."""
    if os.geteuid() != 0:
        return None
    with suppress(KeyError):
        return pwd.getpwnam("postgres").pw_name
    return "nobody"
