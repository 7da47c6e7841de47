"""What is asked of Docker, seen by a client that only writes it down."""

import pytest
from testcontainers.core import container as testcontainers

from tests.services import containers
from tests.services.catalogue import KINDS
from tests.services.containers import container_server, engine_answers


class WrittenDown:
    """A container that remembers what was done to it."""

    status = "running"

    def __init__(self):
        self.done = []

    def __getattr__(self, name):
        return lambda *args, **kwargs: self.done.append((name, kwargs) if kwargs else name)


class Client:
    client = WrittenDown()

    def create(self, image, **wanted):
        self.image, self.wanted, self.container = image, wanted, WrittenDown()
        return self.container

    def start(self, container):
        container.start()


@pytest.fixture(autouse=True)
def docker(monkeypatch):
    monkeypatch.setattr(testcontainers, "DockerClient", Client)
    monkeypatch.setattr(testcontainers.c, "ryuk_disabled", True)
    monkeypatch.setattr(containers, "CHECKS", dict.fromkeys(KINDS, lambda url: None))


def asked(server):
    return server._container.get_docker_client()


@pytest.mark.parametrize("name", KINDS)
def test_each_server_is_a_pinned_image_on_a_loopback_port(name):
    server = container_server(name)
    server.start()

    assert asked(server).image.endswith(KINDS[name].image)
    published = asked(server).wanted["ports"]
    assert ("127.0.0.1", server.port) in published.values()
    assert {host for host, _ in published.values()} == {"127.0.0.1"}
    assert str(server.port) in server.url


def test_databases_keep_their_promises_in_containers_too():
    postgresql, mariadb = container_server("postgresql"), container_server("mariadb")
    postgresql.start()
    mariadb.start()

    assert "--fsync=on" in asked(postgresql).wanted["command"]
    assert not any("listen_addresses" in part for part in asked(postgresql).wanted["command"])
    assert "--innodb-flush-log-at-trx-commit=1" in asked(mariadb).wanted["command"]


def test_kafka_advertises_the_proxy_and_keeps_a_listener_for_the_bench():
    server = container_server("kafka", advertised_port=4711)
    server.start()

    environment = asked(server).wanted["environment"]
    assert "PLAINTEXT://127.0.0.1:4711," in environment["KAFKA_ADVERTISED_LISTENERS"]
    assert server.check_url in environment["KAFKA_ADVERTISED_LISTENERS"]
    assert environment["KAFKA_PROCESS_ROLES"] == "broker,controller"


def test_a_container_is_paused_killed_restarted_and_removed_like_a_process():
    server = container_server("redis")
    server.start()
    done = asked(server).container.done

    server.pause()
    server.resume()
    server.kill()
    server.restart()
    server.release()

    assert done == [
        "start", "pause", "unpause", ("kill", {"signal": "SIGKILL"}), "wait", ("stop", {"timeout": 30}), "start",
        ("remove", {"force": True, "v": True}),
    ]  # fmt: skip


@pytest.mark.parametrize(("name", "signal"), [("postgresql", "SIGQUIT"), ("mariadb", "SIGKILL")])
def test_a_container_ends_at_once_in_its_own_way(name, signal):
    server = container_server(name)
    server.start()

    server.abort()

    assert asked(server).container.done == ["start", ("kill", {"signal": signal}), "wait"]


@pytest.mark.parametrize("host", ["unix:///nowhere/docker.sock", "tcp://10.0.0.1:2375"])
def test_without_a_local_engine_there_are_no_containers(monkeypatch, host):
    monkeypatch.setenv("DOCKER_HOST", host)
    assert engine_answers.__wrapped__() is False
