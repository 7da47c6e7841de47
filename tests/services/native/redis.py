"""Redis as a native process, in memory only: after a restart it is empty."""

from typing import ClassVar

from tests.services.install import programs
from tests.services.native.server import NativeServer
from tests.services.ports import HOST


class Redis(NativeServer):
    name: ClassVar[str] = "redis"

    @property
    def url(self) -> str:
        return f"redis://{HOST}:{self.port}/0"

    def prepare(self) -> None:
        self._program = programs(self.name)["redis-server"]
        (self.port,) = self.new_ports(1)
        self.home.mkdir(parents=True)
        self.data.mkdir()

    def launch(self) -> None:
        options = {"bind": HOST, "port": str(self.port), "dir": str(self.data), "save": "", "appendonly": "no"}
        self.spawn([self._program, *(part for name, value in options.items() for part in (f"--{name}", value))])
