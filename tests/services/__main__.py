"""The bench's command line: up, down, status, install, and serve, which is the bench process itself."""

import argparse
import os
import signal
import sys
from pathlib import Path

from tests.services import detached
from tests.services.catalogue import KINDS, Unavailable, url_from_environment
from tests.services.containers import engine_answers
from tests.services.control import serve
from tests.services.install import programs
from tests.services.native.kafka_files import kafka_files


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.services", description="Real servers for the test suite.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("up", help="start all servers and leave them running; prints URLs to eval")
    commands.add_parser("down", help="stop what `up` started")
    commands.add_parser("status", help="say what runs")
    commands.add_parser("install", help="install and download what the servers need, and start nothing")
    serving = commands.add_parser("serve", help="the bench process; pytest starts it by itself")
    serving.add_argument("--socket", type=Path, required=True)
    serving.add_argument("--holder", type=int, help="end when this process ends")
    arguments = parser.parse_args()
    match arguments.command:
        case "up":
            return 0 if install() and detached.up() else 1
        case "down":
            detached.down()
            return 0
        case "status":
            return 0 if detached.status() else 1
        case "install":
            return 0 if install() else 1
        case _:
            return serve_in_background(arguments.socket, arguments.holder)


def install() -> bool:
    """Make sure that all servers can start here; says what is missing."""
    # SIGTERM as an exception, so that what surrounds apt-get is taken back.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if engine_answers():
        return True
    complete = True
    for name in KINDS:
        if url_from_environment(name):
            continue
        try:
            if name == "kafka":
                kafka_files()
            else:
                programs(name)
        except Unavailable as error:
            complete = False
            print(error, file=sys.stderr)
    return complete


def serve_in_background(path: Path, holder: int | None) -> int:
    """Fork, and return to the caller when the child listens; the child belongs to nobody's session."""
    reader, writer = os.pipe()
    if os.fork():
        os.close(writer)
        return 0 if os.read(reader, 1) else 1
    os.close(reader)
    os.setsid()

    def ready() -> None:
        os.write(writer, b"+")
        os.close(writer)

    serve(path, holder, ready)
    return 0


if __name__ == "__main__":
    sys.exit(main())
