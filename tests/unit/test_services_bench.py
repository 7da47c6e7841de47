"""The bench's promises about starting, sharing and ending, with servers that only pretend."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.services.bench import LOCK, Bench, sweep
from tests.services.catalogue import Unavailable


@dataclass(eq=False)
class Pretended:
    name: str
    home: Path
    failure: str | None = None
    starting: threading.Event = field(default_factory=threading.Event)
    may_start: threading.Event = field(default_factory=threading.Event)
    released: bool = False
    host: str = "127.0.0.1"
    port: int = 1

    @property
    def url(self):
        return f"{self.name}://{self.home.name}"

    def start(self):
        self.starting.set()
        self.may_start.wait(10)
        if self.released:
            raise Unavailable("released while it started")
        if self.failure:
            raise Unavailable(self.failure)

    def release(self):
        self.released = True
        self.may_start.set()


class Factory:
    def __init__(self, failure=None, hold=False):
        self.made = []
        self._failure = failure
        self._hold = hold

    def __call__(self, name, home, advertised_port):
        server = Pretended(name, home, self._failure)
        if not self._hold:
            server.may_start.set()
        self.made.append(server)
        return server


@pytest.fixture
def open_bench():
    benches = []

    def create(factory):
        benches.append(Bench(factory))
        return benches[-1]

    yield create
    for bench in benches:
        bench.close()


def test_a_shared_server_is_started_once_however_many_ask(open_bench):
    factory = Factory()
    bench = open_bench(factory)

    with ThreadPoolExecutor(8) as askers:
        servers = list(askers.map(bench.shared, ["redis"] * 8))

    assert len(factory.made) == 1
    assert set(servers) == set(factory.made)
    assert bench.running() == {"redis": servers[0].url}


def test_private_servers_are_never_shared(open_bench):
    bench = open_bench(Factory())

    assert len({bench.own("redis"), bench.own("redis"), bench.shared("redis")}) == 3


def test_different_servers_start_at_the_same_time(open_bench):
    factory = Factory(hold=True)
    bench = open_bench(factory)

    with ThreadPoolExecutor(2) as askers:
        first = askers.submit(bench.shared, "redis")
        second = askers.submit(bench.shared, "kafka")
        # Both are inside start() before either may leave it.
        while len(factory.made) < 2:
            assert not first.done()
            assert not second.done()
        for server in factory.made:
            assert server.starting.wait(5)
            server.may_start.set()
        assert {first.result(5).name, second.result(5).name} == {"redis", "kafka"}


def test_a_failed_start_is_remembered_with_its_reason_and_cleaned_up(open_bench):
    factory = Factory(failure="the log says: out of disk")
    bench = open_bench(factory)

    for _ in range(2):
        with pytest.raises(Unavailable, match="out of disk"):
            bench.shared("redis")

    assert [server.released for server in factory.made] == [True]


def test_closing_ends_all_servers_also_one_that_is_only_starting():
    factory = Factory(hold=True)
    bench = Bench(factory)
    with ThreadPoolExecutor(1) as asker:
        asked = asker.submit(bench.own, "redis")
        while not factory.made:
            assert not asked.done()
        factory.made[0].starting.wait(5)

        bench.close()

        with pytest.raises(Unavailable, match="released"):
            asked.result(5)
    assert factory.made[0].released
    assert not bench.root.exists()
    with pytest.raises(Unavailable, match="closing"):
        bench.own("redis")


def test_a_sweep_takes_what_dead_benches_left_and_leaves_living_ones_alone(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("tests.services.bench._reachable", lambda folder: True)
    dead = tmp_path / "outbox-bench-dead"
    (dead / "redis-1").mkdir(parents=True)
    (dead / LOCK).touch()
    strange = tmp_path / "outbox-bench-without-lock"
    strange.mkdir()
    living = Bench(Factory())

    sweep(tmp_path)

    assert not dead.exists()
    assert strange.exists()
    assert living.root.exists()
    living.close()
