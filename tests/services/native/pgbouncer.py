"""pgbouncer in transaction mode, in front of any database of one PostgreSQL. It refuses to run as root."""

from pathlib import Path
from typing import ClassVar

from sqlalchemy.engine import make_url

from tests.services.catalogue import Unavailable
from tests.services.install import programs
from tests.services.native.postgresql import service_user
from tests.services.native.server import NativeServer
from tests.services.ports import HOST

SETTINGS = {
    "listen_addr": HOST,
    "unix_socket_dir": "",
    "auth_type": "any",
    "pool_mode": "transaction",
    "default_pool_size": "5",
    "max_client_conn": "300",
    "ignore_startup_parameters": "extra_float_digits,options",
}


class PgBouncer(NativeServer):
    name: ClassVar[str] = "pgbouncer"

    @property
    def url(self) -> str:
        return f"postgresql+psycopg://postgres@{HOST}:{self.port}/postgres"

    @property
    def _settings(self) -> Path:
        return self.home / "pgbouncer.ini"

    def prepare(self) -> None:
        if self.upstream is None:
            raise Unavailable(
                "pgbouncer: say which server it stands in front of, own_server('pgbouncer', upstream=url)"
            )
        self._program = programs(self.name)["pgbouncer"]
        self.user = service_user()
        (self.port,) = self.new_ports(1)
        behind = make_url(self.upstream)
        place = {"host": behind.host, "port": behind.port or 5432, "user": behind.username, "password": behind.password}
        everything = " ".join(f"{key}={value}" for key, value in place.items() if value is not None)
        settings = "\n".join(f"{key} = {value}" for key, value in {**SETTINGS, "listen_port": self.port}.items())
        self.home.mkdir(parents=True)
        self.home.chmod(0o711)
        self._settings.write_text(f"[databases]\n* = {everything}\n[pgbouncer]\n{settings}\n")

    def launch(self) -> None:
        self.spawn([self._program, self._settings])
