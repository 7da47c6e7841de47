"""RabbitMQ as a native process, with an epmd of its own.

Erlang starts its name service epmd in the background by itself and leaves it running for ever.
Ours is a child of the bench, on its own loopback port, and ends with the server.
"""

import os
from typing import ClassVar

from tests.services.catalogue import Unavailable
from tests.services.install import programs
from tests.services.native.server import NativeServer
from tests.services.ports import HOST, answers
from tests.services.processes import wait_until


class RabbitMQ(NativeServer):
    name: ClassVar[str] = "rabbitmq"

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@{HOST}:{self.port}/"

    def prepare(self) -> None:
        found = programs(self.name)
        self._server, self._epmd = found["rabbitmq-server"], found["epmd"]
        self.port, self._epmd_port, self._node_port = self.new_ports(3)
        self.home.mkdir(parents=True)
        self.data.mkdir()
        # An absolute low mark: the default is a share of the machine's memory and disk.
        settings = [
            f"listeners.tcp.1 = {HOST}:{self.port}",
            "disk_free_limit.absolute = 50MB",
            "log.console.level = warning",
        ]
        (self.home / "rabbitmq.conf").write_text("\n".join(settings) + "\n")
        (self.home / "plugins").write_text("[].\n")
        # Names are looked up in this file alone; a slow name server would slow the start.
        (self.home / "inetrc").write_text('{lookup, [file]}.\n{host, {127,0,0,1}, ["localhost"]}.\n')

    def launch(self) -> None:
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("RABBITMQ_", "ERL_"))}
        environment |= {
            "HOME": str(self.home),
            "ERL_EPMD_PORT": str(self._epmd_port),
            "ERL_EPMD_ADDRESS": HOST,
            "ERL_INETRC": str(self.home / "inetrc"),
            "ERL_CRASH_DUMP_SECONDS": "0",
            "RABBITMQ_NODENAME": "bench@localhost",
            "RABBITMQ_DIST_PORT": str(self._node_port),
            "RABBITMQ_MNESIA_BASE": str(self.data),
            "RABBITMQ_LOG_BASE": str(self.home),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_CONFIG_FILE": str(self.home / "rabbitmq.conf"),
            "RABBITMQ_CONF_ENV_FILE": os.devnull,
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.home / "plugins"),
            "RABBITMQ_PID_FILE": str(self.home / "pid"),
            # "Input allowed" makes the script exec the Erlang VM, so that its pid is the server's.
            "RABBITMQ_ALLOW_INPUT": "1",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": (
                "-noinput +S 2:2 +sbwt none +sbwtdcpu none +sbwtdio none -kernel inet_dist_use_interface {127,0,0,1}"
            ),
        }
        self.spawn([self._epmd, "-port", str(self._epmd_port), "-address", HOST], environment)
        # Without an epmd that answers, the VM starts one that nobody ends.
        if not wait_until(lambda: answers(self._epmd_port), 10):
            raise Unavailable(f"rabbitmq: epmd does not answer on port {self._epmd_port}\n{self.log_tail()}")
        self.spawn([self._server], environment)
