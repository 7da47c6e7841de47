"""Servers as containers, through testcontainers, where a local Docker engine answers.

The host port is chosen by us and not by Docker, which would give another one after each restart.
Should the bench be killed, testcontainers' own reaper removes the containers.
"""

import os
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.services.catalogue import KINDS, Unavailable
from tests.services.checks import CHECKS
from tests.services.native.kafka_files import CLUSTER_ID
from tests.services.native.kafka_settings import SETTINGS as KAFKA_SETTINGS
from tests.services.native.mariadb import SETTINGS as MARIADB_SETTINGS
from tests.services.native.postgresql import SETTINGS as POSTGRESQL_SETTINGS
from tests.services.ports import HOST, free_port
from tests.services.processes import wait_until

START_SECONDS = 120.0
# As in `native`: a server's own way to end at once.
ABORT_SIGNALS = {"postgresql": "SIGQUIT"}


@cache
def engine_answers() -> bool:
    """Whether a local engine is there. A client program without an engine is none."""
    place = os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
    if not place.startswith("unix://") or not Path(place.removeprefix("unix://")).is_socket():
        # An engine elsewhere would not publish its ports on our loopback.
        return False
    try:
        client = import_module("docker").from_env(timeout=2)
        try:
            return bool(client.ping())
        finally:
            client.close()
    except Exception:  # noqa: BLE001 - no package, no socket, no permission: all mean no engine
        return False


class ContainerServer:
    host = HOST
    upstream: str | None = None

    def __init__(
        self, name: str, inner_port: int, url: Callable[[int], str], command: list[str], environment: dict[str, str]
    ) -> None:
        self.name = name
        self.port = free_port()
        self.url = url(self.port)
        self.check_url = self.url
        self._paused = False
        self._started = False
        # Imported here: it takes a second that only a machine with an engine should pay.
        testcontainers = import_module("testcontainers.core.container")
        self._container: Any = testcontainers.DockerContainer(KINDS[name].image, env=environment)
        if command:
            self._container.with_command(command)
        self.publish(inner_port, self.port)

    def publish(self, inner_port: int, port: int) -> None:
        # docker-py takes (address, port); without an address the port is open to the network.
        self._container.ports[f"{inner_port}/tcp"] = (HOST, port)

    def start(self) -> None:
        if self._started:
            self._docker().start()
        else:
            self._started = True
            self._container.start()
        if not wait_until(self._answers, START_SECONDS, pause=0.1):
            raise Unavailable(f"{self.name}: the container is silent for {START_SECONDS:.0f} s\n{self.log_tail()}")

    def _answers(self) -> bool:
        try:
            CHECKS[self.name](self.check_url)
        except Exception as error:
            # Each client has its own words for "not yet".
            container = self._docker()
            container.reload()
            if container.status == "exited":
                raise Unavailable(f"{self.name}: the container has ended\n{self.log_tail()}") from error
            return False
        return True

    def _docker(self) -> Any:
        return self._container.get_wrapped_container()

    def stop(self) -> None:
        self.resume()
        self._docker().stop(timeout=30)

    def abort(self) -> None:
        self._signal(ABORT_SIGNALS.get(self.name, "SIGKILL"))

    def kill(self) -> None:
        self._signal("SIGKILL")

    def _signal(self, what: str) -> None:
        self.resume()
        container = self._docker()
        container.kill(signal=what)
        container.wait()

    def pause(self) -> None:
        self._docker().pause()
        self._paused = True

    def resume(self) -> None:
        if self._paused:
            self._docker().unpause()
            self._paused = False

    def restart(self) -> None:
        self.stop()
        self.start()

    def release(self) -> None:
        self._container.stop(force=True, delete_volume=True)

    def pids(self) -> list[int]:
        table = self._docker().top()
        column = table["Titles"].index("PID")
        return [int(row[column]) for row in table["Processes"] or []]

    def log_tail(self) -> str:
        return str(self._docker().logs(tail=20).decode(errors="replace"))


def container_server(name: str, advertised_port: int | None = None) -> ContainerServer:
    match name:
        case "postgresql":
            # Inside the container the server listens where the image wants it to.
            own = ("listen_addresses", "unix_socket_directories")
            settings = [f"--{key}={value}" for key, value in POSTGRESQL_SETTINGS.items() if key not in own]
            environment = {"POSTGRES_HOST_AUTH_METHOD": "trust"}
            url = "postgresql+psycopg://postgres@{host}:{port}/postgres"
            return ContainerServer(name, 5432, _filled(url), ["postgres", *settings], environment)
        case "mariadb":
            command = ["mariadbd", *MARIADB_SETTINGS, "--max-connections=300"]
            environment = {"MARIADB_ALLOW_EMPTY_ROOT_PASSWORD": "1"}
            return ContainerServer(name, 3306, _filled("mysql+pymysql://root@{host}:{port}/"), command, environment)
        case "redis":
            command = ["redis-server", "--save", "", "--appendonly", "no"]
            return ContainerServer(name, 6379, _filled("redis://{host}:{port}/0"), command, {})
        case "rabbitmq":
            return ContainerServer(name, 5672, _filled("amqp://guest:guest@{host}:{port}/"), [], {})
        case "kafka":
            return _kafka(advertised_port)
    raise KeyError(name)


def _filled(template: str) -> Callable[[int], str]:
    return lambda port: template.format(host=HOST, port=port)


def _kafka(advertised_port: int | None) -> ContainerServer:
    environment = {f"KAFKA_{key.replace('.', '_').upper()}": value for key, value in KAFKA_SETTINGS.items()}
    server = ContainerServer("kafka", 9092, _filled("{host}:{port}"), [], environment)
    # The same number inside and outside, so that the broker can reach itself at the advertised address.
    bench_port = free_port()
    server.publish(bench_port, bench_port)
    server.check_url = f"{HOST}:{bench_port}"
    environment |= {
        "CLUSTER_ID": CLUSTER_ID,
        "KAFKA_HEAP_OPTS": "-Xmx256m",
        "KAFKA_CONTROLLER_QUORUM_VOTERS": "1@localhost:9093",
        "KAFKA_LISTENERS": f"PLAINTEXT://:9092,BENCH://:{bench_port},CONTROLLER://:9093",
        "KAFKA_ADVERTISED_LISTENERS": (
            f"PLAINTEXT://{HOST}:{advertised_port or server.port},BENCH://{HOST}:{bench_port}"
        ),
    }
    return server
