"""A bench that stays up between test runs: `up`, `down` and `status`.

Its socket and a state file lie in `.bench` at the project's root. The file may be stale after a
reboot or a kill; only an answer on the socket proves that the bench is there.
"""

import json
import os
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.services.catalogue import KINDS, Unavailable
from tests.services.client import PROJECT, BenchClient, Connection, new_socket_path
from tests.services.processes import find_process, wait_until

FOLDER = PROJECT / ".bench"
STATE = FOLDER / "state.json"


def running() -> BenchClient | None:
    """The detached bench, if one answers."""
    try:
        path = Path(json.loads(STATE.read_text())["socket"])
        with Connection(path, seconds=2) as connection:
            connection.ask(op="ping")
    except (OSError, ValueError, KeyError, Unavailable):
        return None
    return BenchClient(path, holder=None)


def up() -> bool:
    """Start all five and print where they are; whether all of them came up."""
    client = running()
    if client is not None:
        print("# the bench is already up")
    else:
        FOLDER.mkdir(exist_ok=True)
        path = new_socket_path(FOLDER, "socket")
        path.unlink(missing_ok=True)
        with (FOLDER / "bench.log").open("ab") as log:
            client = BenchClient(path, holder=None, stderr=log.fileno())
            with client.connect() as connection:
                state = {"pid": connection.ask(op="ping")["pid"], "socket": str(path)}
        STATE.write_text(json.dumps(state) + "\n")
    return _print_urls(client)


def _print_urls(client: BenchClient) -> bool:
    def url(name: str) -> tuple[str, str | Unavailable]:
        try:
            return name, client.url(name)
        except Unavailable as error:
            return name, error

    complete = True
    exports = []
    with ThreadPoolExecutor(len(KINDS)) as threads:
        for name, found in threads.map(url, KINDS):
            if isinstance(found, str):
                print(f"# {name}: {found}", flush=True)
                exports.append(f"export {KINDS[name].variable}={found}")
            else:
                complete = False
                print(f"# {name}: not available")
                print("\n".join(f"#   {line}" for line in str(found).splitlines()))
    print("\n".join(exports))
    return complete


def down() -> None:
    """End the detached bench; clear away what a dead one left."""
    client = running()
    if client is None:
        print("no bench is up")
    else:
        with Connection(client.path) as connection:
            pid = connection.ask(op="ping")["pid"]
        process = find_process(pid)
        client.shutdown()
        if process is not None and not wait_until(lambda: not process.alive, 10):
            os.kill(pid, signal.SIGTERM)
        print("the bench is down")
    shutil.rmtree(FOLDER, ignore_errors=True)


def status() -> bool:
    client = running()
    if client is None:
        print("no bench is up")
        return False
    with Connection(client.path) as connection:
        answer = connection.ask(op="ping")
    print(f"the bench is up as process {answer['pid']}")
    for name in KINDS:
        print(f"{name}: {answer['servers'].get(name, 'not started')}")
    return True
