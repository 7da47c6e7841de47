"""However a run ends, nothing of the bench is left: no process and no data."""

import json
import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.services import detached
from tests.services.bench import sweep
from tests.services.catalogue import KINDS, Unavailable
from tests.services.checks import CHECKS
from tests.services.client import HOLDER, PROJECT, SOCKET, BenchClient, Connection
from tests.services.missing import give_up
from tests.services.processes import find_process, wait_until

# A test that starts servers, tells about them, and never ends by itself.
HANGING_TEST = """
import json, threading
from pathlib import Path

def test_hangs(bench, redis_url, own_server, request):
    own = own_server("postgresql")
    with bench.connect() as connection:
        about = connection.ask(op="ping")
    about |= {"socket": str(bench.path), "pids": [about["pid"], *own.pids()]}
    place = Path(request.path).parent
    (place / "about.new").write_text(json.dumps(about))
    (place / "about.new").rename(place / "about.json")
    threading.Event().wait()
"""


@pytest.fixture
def servers_start_here(bench):
    """These tests watch servers end: without a server to start there is nothing to watch."""

    def demand(*names):
        for name in names:
            try:
                bench.own(name).release()
            except Unavailable as error:
                give_up(error)

    return demand


def clean_environment():
    return {name: value for name, value in os.environ.items() if name not in (SOCKET, HOLDER)}


@pytest.fixture
def private_bench(tmp_path, servers_start_here):
    """A bench of this test's own, held by a process that can be killed without regret."""
    servers_start_here("redis")
    with subprocess.Popen(["sleep", "600"]) as holder, ExitStack() as owned:
        owned.callback(holder.kill)
        client = BenchClient(tmp_path / "socket", holder.pid)
        owned.callback(client.shutdown)

        def own(name):
            server = client.own(name)
            owned.callback(server.release)
            return server

        yield client, holder, own


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "workers"),
    [(signal.SIGKILL, []), (signal.SIGKILL, ["-n", "1"]), (signal.SIGTERM, []), (signal.SIGINT, [])],
    ids=["SIGKILL", "SIGKILL-xdist", "SIGTERM", "SIGINT"],
)
def test_a_run_that_is_ended_from_outside_leaves_nothing(tmp_path, how, workers, servers_start_here):
    servers_start_here("redis", "postgresql")
    (tmp_path / "test_hanging.py").write_text(HANGING_TEST)
    options = [
        "-p",
        "tests.services.fixtures",
        "-c",
        str(PROJECT / "pyproject.toml"),
        "-p",
        "no:cacheprovider",
        *workers,
    ]
    run = subprocess.Popen(
        [sys.executable, "-m", "pytest", *options, str(tmp_path / "test_hanging.py")],
        cwd=PROJECT,
        env=clean_environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    with run:
        assert wait_until((tmp_path / "about.json").exists, 60)
        about = json.loads((tmp_path / "about.json").read_text())
        processes = [process for pid in about["pids"] if (process := find_process(pid))]
        assert len(processes) > 3

        run.send_signal(how)

        assert wait_until(lambda: not any(process.alive for process in processes), 20), processes
        assert not Path(about["root"]).exists()
        assert not Path(about["socket"]).exists()
        assert wait_until(lambda: run.poll() is not None, 20)


def test_the_bench_ends_with_its_holder(private_bench):
    client, holder, _ = private_bench
    with client.connect() as connection:
        about = connection.ask(op="ping")
    process = find_process(about["pid"])

    holder.kill()

    assert wait_until(lambda: not process.alive, 10)
    assert not Path(about["root"]).exists()


def test_a_terminated_bench_takes_its_servers_along(private_bench):
    client, _, own_server = private_bench
    own = own_server("redis")
    with client.connect() as connection:
        about = connection.ask(op="ping")
    processes = [find_process(pid) for pid in (about["pid"], *own.pids())]

    os.kill(about["pid"], signal.SIGTERM)

    assert wait_until(lambda: not any(process.alive for process in processes), 10)
    assert not Path(about["root"]).exists()


def test_what_a_killed_bench_left_is_swept_by_the_next(private_bench):
    client, _, own_server = private_bench
    own = own_server("redis")
    with client.connect() as connection:
        about = connection.ask(op="ping")
    servers = [find_process(pid) for pid in own.pids()]
    killed = find_process(about["pid"])
    os.kill(about["pid"], signal.SIGKILL)
    assert wait_until(lambda: not killed.alive, 10)

    sweep(Path(about["root"]).parent)

    # Another run's bench may be sweeping at the same moment; then it does the work.
    assert wait_until(lambda: not any(process.alive for process in servers), 10)
    assert wait_until(lambda: not Path(about["root"]).exists(), 10)


def test_a_private_server_ends_with_the_connection_that_owns_it(private_bench):
    _, _, own_server = private_bench
    own = own_server("redis")
    processes = [find_process(pid) for pid in own.pids()]

    own._connection.close()

    assert wait_until(lambda: not any(process.alive for process in processes), 10)


def test_released_servers_leave_neither_process_nor_data(bench, own_server):
    server = own_server("redis")
    with bench.connect() as connection:
        root = Path(connection.ask(op="ping")["root"])
    processes = [find_process(pid) for pid in server.pids()]
    homes = {Path(f"/proc/{process.pid}/cwd").readlink() for process in processes}
    assert all(root in home.parents for home in homes)

    server.pause()
    server.release()

    assert not any(process.alive for process in processes)
    assert not any(home.exists() for home in homes)


def test_an_unknown_request_is_refused_with_words(bench):
    with bench.connect() as connection, pytest.raises(Unavailable, match="does not understand"):
        connection.ask(op="dance")
    with bench.connect() as connection, pytest.raises(Unavailable, match="does not understand"):
        connection.ask(op="kill")


def test_up_stays_up_says_where_and_goes_down(tmp_path, monkeypatch, capsys, servers_start_here):
    servers_start_here("redis")
    for name in KINDS:
        monkeypatch.delenv(KINDS[name].variable, raising=False)
    monkeypatch.setattr(detached, "FOLDER", tmp_path / ".bench")
    monkeypatch.setattr(detached, "STATE", tmp_path / ".bench" / "state.json")
    monkeypatch.setattr(detached, "KINDS", {"redis": KINDS["redis"]})
    try:
        assert detached.up()
        lines = capsys.readouterr().out.splitlines()
        url = lines[-1].removeprefix("export OUTBOX_TEST_REDIS_URL=")
        CHECKS["redis"](url)
        assert all(line.startswith(("# ", "export ")) for line in lines)

        assert detached.up()
        assert "already up" in capsys.readouterr().out
        assert detached.status()
        assert url in capsys.readouterr().out
        pid = json.loads((tmp_path / ".bench" / "state.json").read_text())["pid"]
        process = find_process(pid)
    finally:
        detached.down()

    assert wait_until(lambda: not process.alive, 10)
    assert not (tmp_path / ".bench").exists()
    assert not detached.status()


def test_a_bench_holds_nobodys_output_open(tmp_path):
    """Otherwise `eval "$(make services-up)"` would wait for ever."""
    program = (
        "import sys; from pathlib import Path; from tests.services.client import BenchClient\n"
        "with open('/dev/null', 'w') as log: BenchClient(Path(sys.argv[1]), None, log.fileno()).connect().close()"
    )
    path = tmp_path / "socket"
    try:
        subprocess.run([sys.executable, "-c", program, path], cwd=PROJECT, capture_output=True, check=True, timeout=20)
    finally:
        BenchClient(path, None).shutdown()


def test_a_stale_state_file_is_no_bench(tmp_path, monkeypatch):
    state = tmp_path / "state.json"
    monkeypatch.setattr(detached, "STATE", state)
    for stale in ("", "{}", json.dumps({"pid": 1, "socket": str(tmp_path / "gone")})):
        state.write_text(stale)
        assert detached.running() is None


def test_a_run_that_needs_no_server_starts_no_bench(tmp_path):
    (tmp_path / "test_nothing.py").write_text(
        "import os\ndef test_nothing(bench, fresh_sqlite):\n    assert not bench.path.exists()\n    fresh_sqlite()\n"
    )
    options = ["-q", "-p", "tests.services.fixtures", "-c", str(PROJECT / "pyproject.toml"), "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(tmp_path)], cwd=PROJECT, env=clean_environment(), check=False
    )
    assert done.returncode == 0


def test_the_bench_listens_where_it_says(bench, redis_url):
    with Connection(bench.path, seconds=5) as connection:
        answer = connection.ask(op="ping")
    assert answer["servers"].get("redis", redis_url) == redis_url
