"""The pytest plugin: real servers, fresh databases and topics, and private servers to hurt.

The process that the user started decides where the bench's socket is, and ends the bench. Workers
of pytest-xdist find the socket in the environment. Nothing is started until a test that runs
needs it; once the tests are collected, the servers they name start in the background.
"""

import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from uuid import uuid4

import pytest

from tests.services import detached
from tests.services.catalogue import Unavailable
from tests.services.client import HOLDER, SOCKET, BenchClient, OwnServer, from_environment, new_socket_path
from tests.services.databases import mariadb_database, postgresql_database
from tests.services.missing import give_up
from tests.services.topics import MockKafka, Topics

# Which shared servers a fixture leads to.
SERVERS_BEHIND = {
    "postgresql_server": "postgresql",
    "mariadb_server": "mariadb",
    "redis_url": "redis",
    "rabbitmq_url": "rabbitmq",
    "kafka_url": "kafka",
}

_client = pytest.StashKey[BenchClient]()
_decided_here = pytest.StashKey[bool]()
_warming = pytest.StashKey[threading.Thread]()


def pytest_configure(config: pytest.Config) -> None:
    # Pytest captures only while it collects and runs tests: here 2 is still the user's stderr.
    stderr = os.dup(2)
    client = from_environment(stderr=stderr)
    config.stash[_decided_here] = client is None
    if client is None:
        up = detached.running()
        if up is not None:
            client = BenchClient(up.path, None, stderr)
        else:
            name = f"outbox-bench-{os.getpid()}-{uuid4().hex[:8]}.socket"
            client = BenchClient(new_socket_path(Path(tempfile.gettempdir()), name), os.getpid(), stderr)
        os.environ[SOCKET] = str(client.path)
        os.environ[HOLDER] = str(client.holder or "")
    config.stash[_client] = client


def pytest_unconfigure(config: pytest.Config) -> None:
    client = config.stash.get(_client, None)
    if client is None:
        return
    if _warming in config.stash:
        # A run of a moment could otherwise end before the bench it asked for is there.
        config.stash[_warming].join(30)
    if config.stash[_decided_here]:
        del os.environ[SOCKET], os.environ[HOLDER]
        if client.holder is not None:
            client.shutdown()
    os.close(client.stderr)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Let the servers that the selected tests need start while the first tests run."""
    if session.config.option.collectonly:
        return
    needed = {server for item in session.items for server in servers_needed(item)}
    if needed:
        client = session.config.stash[_client]
        warming = threading.Thread(target=_warm, args=(client, sorted(needed)), daemon=True)
        session.config.stash[_warming] = warming
        warming.start()


def _warm(client: BenchClient, names: list[str]) -> None:
    # If it fails, the first test that asks will say why.
    with suppress(Unavailable):
        client.warm(names)


def servers_needed(item: pytest.Item) -> set[str]:
    fixtures = set(getattr(item, "fixturenames", ()))
    needed = {server for fixture, server in SERVERS_BEHIND.items() if fixture in fixtures}
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    if parameters.get("any_kafka_url") == "real":
        needed.add("kafka")
    return needed


@pytest.fixture(scope="session")
def bench(pytestconfig: pytest.Config) -> BenchClient:
    """The way to the bench process, which starts when it is first asked for something."""
    return pytestconfig.stash[_client]


def _url(bench: BenchClient, name: str) -> str:
    try:
        return bench.url(name)
    except Unavailable as error:
        give_up(error)


@pytest.fixture(scope="session")
def postgresql_server(bench: BenchClient) -> str:
    """The shared PostgreSQL, as its administrator."""
    return _url(bench, "postgresql")


@pytest.fixture(scope="session")
def mariadb_server(bench: BenchClient) -> str:
    """The shared MariaDB, as its administrator."""
    return _url(bench, "mariadb")


@pytest.fixture(scope="session")
def redis_url(bench: BenchClient) -> str:
    return _url(bench, "redis")


@pytest.fixture(scope="session")
def rabbitmq_url(bench: BenchClient) -> str:
    return _url(bench, "rabbitmq")


@pytest.fixture(scope="session")
def kafka_url(bench: BenchClient) -> str:
    return _url(bench, "kafka")


@pytest.fixture
def fresh_postgresql(postgresql_server: str) -> Iterator[Callable[..., str]]:
    """fresh_postgresql(template=None) -> URL of a database of this test's own."""
    with ExitStack() as databases:

        def create(template: str | None = None) -> str:
            return databases.enter_context(postgresql_database(postgresql_server, template))

        yield create


@pytest.fixture
def fresh_mariadb(mariadb_server: str) -> Iterator[Callable[[], str]]:
    """fresh_mariadb() -> URL of a database of this test's own."""
    with ExitStack() as databases:
        yield lambda: databases.enter_context(mariadb_database(mariadb_server))


@pytest.fixture
def fresh_sqlite(tmp_path: Path) -> Callable[[], str]:
    """fresh_sqlite() -> URL of a file of this test's own."""
    return lambda: f"sqlite:///{tmp_path / uuid4().hex}.sqlite"


@pytest.fixture
def kafka_topic(kafka_url: str) -> Callable[..., str]:
    """kafka_topic(name="orders", partitions=1) -> the unique name of a new topic on the shared Kafka."""
    return Topics(kafka_url).create


@pytest.fixture(scope="session")
def mock_kafka_url() -> Iterator[str]:
    """librdkafka's mock cluster: in memory, topics appear by themselves, no topic administration."""
    cluster = MockKafka()
    yield cluster.url
    del cluster


@pytest.fixture(params=["mock", "real"])
def any_kafka_url(request: pytest.FixtureRequest) -> str:
    """Once the mock and once the real Kafka: the mock is never the only witness."""
    url: str = request.getfixturevalue("mock_kafka_url" if request.param == "mock" else "kafka_url")
    return url


@pytest.fixture
def own_server(bench: BenchClient) -> Iterator[Callable[..., OwnServer]]:
    """own_server(name, behind_proxy=False, upstream=None) -> a private server that the test may hurt."""
    with ExitStack() as servers:

        def start(name: str, behind_proxy: bool = False, upstream: str | None = None) -> OwnServer:
            try:
                server = bench.own(name, behind_proxy, upstream)
            except Unavailable as error:
                give_up(error)
            servers.callback(server.release)
            return server

        yield start
