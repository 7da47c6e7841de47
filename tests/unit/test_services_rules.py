"""The bench's decisions that need no server."""

from contextlib import suppress
from pathlib import Path

import pytest
import yaml

from tests.services import install
from tests.services.catalogue import KINDS, Unavailable, url_from_environment
from tests.services.client import LONGEST_PATH, new_socket_path
from tests.services.install import programs, refusal
from tests.services.missing import give_up
from tests.services.ports import free_port, is_free

PROJECT = Path(__file__).parents[2]


@pytest.mark.parametrize("laptop", [{}, {"CI": ""}, {"CI": "false"}, {"CI": "0"}])
def test_a_missing_server_skips_on_a_laptop(laptop):
    with pytest.raises(pytest.skip.Exception, match="no mariadbd"):
        give_up("no mariadbd", laptop)


@pytest.mark.parametrize("ci", [{"CI": "true"}, {"CI": "1"}])
def test_a_missing_server_fails_in_ci(ci):
    with pytest.raises(pytest.fail.Exception, match="no mariadbd"):
        give_up("no mariadbd", ci)


@pytest.mark.parametrize(
    ("server", "given", "used"),
    [
        ("postgresql", "postgres://u:p@db:5432/x", "postgresql+psycopg://u:p@db:5432/x"),
        ("postgresql", "postgresql://db/x?sslmode=require", "postgresql+psycopg://db/x?sslmode=require"),
        ("postgresql", "postgresql+asyncpg://db/x", "postgresql+psycopg://db/x"),
        ("mariadb", "mysql://root@db:3306", "mysql+pymysql://root@db:3306"),
        ("mariadb", "mariadb+mariadbconnector://root@db", "mysql+pymysql://root@db"),
        ("redis", "rediss://cache:6380/1", "rediss://cache:6380/1"),
        ("rabbitmq", "amqps://u:p@mq/vhost", "amqps://u:p@mq/vhost"),
        ("kafka", "one:9092,two:9092", "one:9092,two:9092"),
    ],
)
def test_a_url_from_the_environment_gets_the_suites_driver(server, given, used):
    assert url_from_environment(server, {f"OUTBOX_TEST_{server.upper()}_URL": given}) == used


def test_an_empty_url_is_no_url():
    assert url_from_environment("redis", {"OUTBOX_TEST_REDIS_URL": " "}) is None


def test_installing_is_for_root_with_apt_get_who_did_not_forbid_it():
    assert refusal({}, user=0, has_apt=True) is None
    assert refusal({"NO_INSTALL": "0"}, user=0, has_apt=True) is None
    assert refusal({"NO_INSTALL": "1"}, user=0, has_apt=True) == "NO_INSTALL is set"
    assert refusal({}, user=1000, has_apt=True) == "only root can install it"
    assert refusal({}, user=0, has_apt=False) == "it cannot be installed without apt-get"


def test_without_permission_a_missing_program_is_a_reason_and_nothing_is_installed(monkeypatch):
    monkeypatch.setenv("NO_INSTALL", "1")
    monkeypatch.setattr("tests.services.install.find_program", lambda name: None)
    monkeypatch.setattr("tests.services.install._install", lambda *_: pytest.fail("it installs"))

    with pytest.raises(Unavailable, match="no mariadbd on this machine and NO_INSTALL is set"):
        programs("mariadb")


@pytest.mark.parametrize("before", [None, "#!/bin/sh\nexit 0\n"], ids=["no policy", "the owner's policy"])
def test_services_stay_down_while_apt_get_works_and_the_machine_is_left_as_it_was(tmp_path, monkeypatch, before):
    policy = tmp_path / "policy-rc.d"
    monkeypatch.setattr(install, "POLICY", policy)
    if before:
        policy.write_text(before)

    with suppress(KeyboardInterrupt), install._services_stay_down():
        assert policy.read_text() == before or "exit 101" in policy.read_text()
        raise KeyboardInterrupt

    assert (policy.read_text() if policy.exists() else None) == before


def test_a_policy_that_a_killed_bench_left_is_taken_away(tmp_path, monkeypatch):
    policy = tmp_path / "policy-rc.d"
    monkeypatch.setattr(install, "POLICY", policy)
    policy.write_text(f"#!/bin/sh\n# {install.MARK}\nexit 101\n")

    with install._services_stay_down():
        assert "exit 101" in policy.read_text()

    assert not policy.exists()


def test_compose_and_bench_use_the_same_images():
    compose = yaml.safe_load((PROJECT / "docker-compose.yml").read_text())

    assert {name: service["image"] for name, service in compose["services"].items()} == {
        name: kind.image for name, kind in KINDS.items()
    }


def test_compose_opens_its_ports_to_this_machine_only():
    compose = yaml.safe_load((PROJECT / "docker-compose.yml").read_text())

    for service in compose["services"].values():
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])
        assert "test" in service["healthcheck"]


def test_ports_are_free_and_given_out_once():
    ports = [free_port() for _ in range(50)]

    assert len(set(ports)) == 50
    assert all(is_free(port) for port in ports)


def test_a_socket_path_is_never_too_long_for_a_socket(tmp_path):
    deep = tmp_path / ("x" * LONGEST_PATH)

    path = new_socket_path(deep, "socket")

    assert len(str(path)) <= LONGEST_PATH
    path.parent.rmdir()
    assert new_socket_path(Path("/run"), "socket") == Path("/run/socket")
