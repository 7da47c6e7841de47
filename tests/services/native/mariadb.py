"""MariaDB as a native process."""

import os
from pathlib import Path
from typing import ClassVar

from tests.services.catalogue import Unavailable
from tests.services.install import programs
from tests.services.native.server import NativeServer, run
from tests.services.native.templates import copy_template
from tests.services.ports import HOST

SETTINGS = (
    "--innodb-buffer-pool-size=64M",
    "--innodb-log-file-size=32M",
    # kill() must not lose what was committed.
    "--innodb-flush-log-at-trx-commit=1",
)
SYSTEM_TABLES = ("mysql_system_tables.sql", "mysql_performance_tables.sql", "mysql_system_tables_data.sql")
SHARE = (Path("/usr/share/mysql"), Path("/usr/share/mariadb"))


class MariaDB(NativeServer):
    name: ClassVar[str] = "mariadb"

    @property
    def url(self) -> str:
        return f"mysql+pymysql://root@{HOST}:{self.port}/"

    def prepare(self) -> None:
        self._program = programs(self.name)["mariadbd"]
        (self.port,) = self.new_ports(1)
        self.home.mkdir(parents=True)
        copy_template(self.name, self.data, self._make_template)

    def _command(self, data: Path) -> list[str | Path]:
        as_root = ["--user=root"] if os.geteuid() == 0 else []
        return [self._program, "--no-defaults", f"--datadir={data}", *as_root, *SETTINGS]

    def _make_template(self, folder: Path) -> None:
        # What mariadb-install-db does; that script wants further packages, this takes a third of a second.
        folder.mkdir()
        share = next((place for place in SHARE if (place / SYSTEM_TABLES[0]).exists()), None)
        if share is None:
            raise Unavailable(f"mariadb: no {SYSTEM_TABLES[0]} in {' or '.join(map(str, SHARE))}")
        tables = [(share / name).read_text() for name in SYSTEM_TABLES]
        script = "\n".join(["CREATE DATABASE mysql;", "USE mysql;", "SET @auth_root_socket = NULL;", *tables])
        run([*self._command(folder), "--bootstrap", "--log-warnings=0"], "mariadbd --bootstrap", text=script)

    def launch(self) -> None:
        network = [f"--bind-address={HOST}", f"--port={self.port}", "--skip-name-resolve", "--max-connections=300"]
        files = [f"--socket={self.home / 'socket'}", f"--pid-file={self.home / 'pid'}"]
        self.spawn([*self._command(self.data), *network, *files])
