"""Kafka as a native process: one KRaft node, broker and controller in one small JVM.

Clients get the advertised port back from the broker and connect to that one, so behind a proxy it
must be the proxy's. The bench itself talks to a second listener, which no proxy is ever in front of.
"""

import shutil
from typing import ClassVar

from tests.services.native.kafka_files import kafka_files
from tests.services.native.kafka_settings import server_properties
from tests.services.native.server import NativeServer
from tests.services.ports import HOST


class Kafka(NativeServer):
    name: ClassVar[str] = "kafka"

    @property
    def url(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def check_url(self) -> str:
        return f"{HOST}:{self._bench_port}"

    def prepare(self) -> None:
        self._files = kafka_files()
        self.port, self._bench_port, controller = self.new_ports(3)
        self.home.mkdir(parents=True)
        shutil.copytree(self._files.formatted, self.data)
        self._properties = self.home / "server.properties"
        self._properties.write_text(
            server_properties(
                str(self.data), self.port, self._bench_port, controller, self.advertised_port or self.port
            )
        )

    def launch(self) -> None:
        self.spawn(self._files.java("kafka.Kafka", self._properties))
