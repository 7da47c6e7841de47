"""Several processes of one command: kept alive, asked how they are, and ended together."""

import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from outbox_publisher.demo.embedded_kafka import read_topic
from outbox_publisher.demo.relay_process import RelayProcess
from outbox_publisher.operations import Operations
from tests.consuming import eventually
from tests.fixtures import OutboxDatabase
from tests.services.ports import free_port

CHILD = """
import os, pathlib, signal, sys, threading
from outbox_shared.supervisor import supervised

folder, mood = pathlib.Path(sys.argv[1]), sys.argv[2]
stop = threading.Event()
if mood != "deaf":
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
else:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def ask(question):
    ill = folder / f"{os.getpid()}.ill"
    return [f"{question}: {ill.read_text()}"] if ill.exists() else []


with supervised(ask, stop.set):
    (folder / f"{os.getpid()}.up").touch()
    while not stop.wait(0.05):
        pass
(folder / f"{os.getpid()}.ended").touch()
"""

PARENT = """
import logging, sys, threading
from outbox_shared.http import health_page, serving
from outbox_shared.supervisor import Supervisor

logging.basicConfig(level=logging.INFO)
supervisor = Supervisor([sys.executable, *sys.argv[3:]], int(sys.argv[1]))
with serving(sys.argv[2], {"/livez": lambda: health_page(supervisor.ask("live"))}):
    raise SystemExit(supervisor.run())
"""


class Family:
    """A supervisor and its children, each with a file of its own."""

    def __init__(self, folder: Path, count: int, mood: str) -> None:
        (folder / "child.py").write_text(CHILD)
        (folder / "parent.py").write_text(PARENT)
        self.folder, self.address = folder, f"127.0.0.1:{free_port()}"
        command = [sys.executable, "parent.py", str(count), self.address, "child.py", str(folder), mood]
        with (folder / "log").open("wb") as log:
            self.process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)

    def children(self, what: str = "up") -> set[int]:
        return {int(path.stem) for path in self.folder.glob(f"*.{what}")}

    def living(self) -> set[int]:
        return {pid for pid in self.children() if is_alive(pid)}

    def livez(self) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://{self.address}/livez", timeout=20) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def log(self) -> str:
        return (self.folder / "log").read_text()


def is_alive(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


@pytest.fixture
def family(tmp_path: Path) -> Iterator[object]:
    made: list[Family] = []

    def start(count: int = 2, mood: str = "well") -> Family:
        made.append(Family(tmp_path, count, mood))
        eventually(lambda: len(made[-1].children()) == count, within=30)
        return made[-1]

    yield start
    for one in made:
        one.process.kill()
        one.process.wait()
        for pid in one.living():
            os.kill(pid, signal.SIGKILL)


def test_a_child_that_dies_is_started_again_and_all_end_well_together(family):
    one = family(3)
    first = one.children()

    victim = min(first)
    os.kill(victim, signal.SIGKILL)
    eventually(lambda: len(one.children()) == 4, within=30)
    assert f"(process {victim}) ended with -9, again in" in one.log()
    assert len(one.living()) == 3

    one.process.send_signal(signal.SIGTERM)
    assert one.process.wait(30) == 0, one.log()
    assert one.children("ended") == one.children() - {victim}


def test_ctrl_c_is_passed_on_once(family):
    one = family(2)

    one.process.send_signal(signal.SIGINT)

    assert one.process.wait(30) == 0
    assert one.children("ended") == one.children()


def test_a_second_signal_leaves_at_once(family):
    one = family(2, mood="deaf")

    one.process.send_signal(signal.SIGTERM)
    eventually(lambda: "ending 2 workers" in one.log())
    assert len(one.living()) == 2
    one.process.send_signal(signal.SIGTERM)

    assert one.process.wait(30) == signal.SIGKILL
    assert one.living() == set()


def test_children_whose_parent_is_killed_stop_in_good_order(family):
    one = family(2)

    one.process.kill()

    eventually(lambda: one.children("ended") == one.children(), within=30)


def test_the_page_tells_when_half_of_the_children_are_ill(family):
    one = family(3)
    assert one.livez() == (200, "ok\n")
    first, second, _ = sorted(one.children())

    (one.folder / f"{first}.ill").write_text("hangs")
    assert one.livez() == (200, "ok\n")

    (one.folder / f"{second}.ill").write_text("hangs")
    status, text = one.livez()
    assert status == 503
    assert text.count("live: hangs") == 2


# The real command.

SETTINGS = """
outbox:
  database-url: {url}
  publisher:
    sender: {{type: kafka, kafka: {{bootstrap-servers: "{kafka}"}}}}
    defaults: {{topic: {topic}, batch-size: 20, fixed-delay: 20ms}}
"""


@pytest.mark.slow
def test_outbox_publisher_run_workers_relays_in_several_processes(
    postgresql_outbox: OutboxDatabase, kafka_url: str, kafka_topic, tmp_path: Path
):
    # given two worker processes behind one command
    database, topic = postgresql_outbox, kafka_topic()
    relay = RelayProcess(tmp_path, SETTINGS.format(url=database.url, kafka=kafka_url, topic=topic))
    address = f"127.0.0.1:{free_port()}"
    parent = relay.start("--workers", "2", "--http", address)
    try:
        operations = Operations(database.settings(), database.engine)
        eventually(lambda: sum(one.alive for one in operations.status().relays) == 2, within=60)
        pids = {one.pid for one in operations.status().relays}
        assert parent not in pids
        with urllib.request.urlopen(f"http://{address}/readyz", timeout=20) as answer:
            assert answer.status == 200

        # when events come, and one of the processes is killed
        os.kill(min(pids), signal.SIGKILL)
        database.publish(500, topic=topic)

        # then they are relayed, by the other one and the one that took its place
        eventually(lambda: database.statuses() == {"PROCESSED": 500}, within=60)
        eventually(lambda: len({one.pid for one in operations.status().relays} - pids) == 1, within=60)

        # and all end together and well
        assert relay.stop() == 0, relay.log_tail()
    finally:
        relay.kill()
    assert len(read_topic(kafka_url, topic)) == 500
    assert database.claims() == 0
    assert "ended with -9" in (tmp_path / "relay.log").read_text()


def test_a_mistake_in_the_settings_is_told_once(tmp_path: Path):
    relay = RelayProcess(tmp_path, "outbox: {database-url: 'sqlite:///x.db', publisher: {ordering: key}}")

    relay.start("--workers", "2")
    eventually(lambda: not relay.running(), within=30)

    assert relay.stop() == 2
    assert relay.log_tail().count("publisher.ordering: key is not there yet") == 1
