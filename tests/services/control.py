"""The bench process: serves a Bench on a Unix socket until nobody needs it any more.

One JSON object per line, one answer per line. A private server belongs to the connection that
asked for it: further requests on that connection (stop, abort, kill, pause, resume, restart) are about it,
and when the connection ends, the server does. So a test process that dies takes its servers along.

The bench ends on SIGTERM, on request, or when its holder ends. The holder is watched through a
pidfd rather than a pipe: a pipe's end is inherited by every process the tests fork, and would
stay open in a child that outlives them.
"""

import json
import os
import select
import signal
import socketserver
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.services.bench import Bench
from tests.services.catalogue import Unavailable
from tests.services.server import Server

Message = dict[str, Any]


class _Connection(socketserver.StreamRequestHandler):
    server: "_Control"

    def handle(self) -> None:
        own: Server | None = None
        try:
            for line in self.rfile:
                try:
                    own, answer = self._answer(json.loads(line), own)
                except Unavailable as error:
                    answer = {"error": str(error)}
                except Exception as error:  # noqa: BLE001 - the asker shall see it, whatever it is
                    answer = {"error": f"{type(error).__name__}: {error}"}
                self.wfile.write(json.dumps(answer).encode() + b"\n")
        except OSError:
            # The asker has gone; what it owned goes too.
            pass
        finally:
            if own is not None:
                self.server.bench.release(own)

    def _answer(self, message: Message, own: Server | None) -> tuple[Server | None, Message]:
        bench = self.server.bench
        match message:
            case {"op": "ping"}:
                return own, {"pid": os.getpid(), "root": str(bench.root), "servers": bench.running()}
            case {"op": "start", "server": str(name)}:
                return own, {"url": bench.shared(name).url}
            case {"op": "warm", "servers": list(names)}:
                threading.Thread(target=bench.warm, args=(names,), daemon=True).start()
                return own, {}
            case {"op": "own", "server": str(name)} if own is None:
                own = bench.own(name, message.get("advertised_port"), message.get("upstream"))
                return own, {"url": own.url, "host": own.host, "port": own.port}
            case {"op": ("stop" | "abort" | "kill" | "pause" | "resume" | "restart") as op} if own is not None:
                getattr(own, op)()
                return own, {}
            case {"op": "pids"} if own is not None:
                return own, {"pids": own.pids()}
            case {"op": "log"} if own is not None:
                return own, {"log": own.log_tail()}
            case {"op": "release"} if own is not None:
                bench.release(own)
                return None, {}
            case {"op": "shutdown"}:
                self.server.close()
                return own, {}
        raise ValueError(f"the bench does not understand {message}")


class _Control(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, path: Path, bench: Bench) -> None:
        self.bench = bench
        self.ended = threading.Event()
        self._path = path
        self._ending = threading.Lock()
        super().__init__(str(path), _Connection)

    def close(self) -> None:
        """End everything; returns when nothing is left but this process."""
        with self._ending:
            if not self.ended.is_set():
                # First the socket: who comes now finds no bench and may start a new one.
                self._path.unlink(missing_ok=True)
                self._path.with_suffix(".lock").unlink(missing_ok=True)
                self.bench.close()
                self.ended.set()


def serve(path: Path, holder: int | None, ready: Callable[[], None]) -> None:
    """Serve until the holder ends or somebody asks for the end. Runs in the main thread of its own process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    control = _Control(path, Bench())
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=control.close).start())
    watched = None if holder is None else Holder(holder)
    threading.Thread(target=control.serve_forever, daemon=True).start()
    ready()
    while not control.ended.wait(0 if watched else 0.5):
        if watched and watched.ended_within(0.2):
            control.close()


class Holder:
    """The process for which the bench runs."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._descriptor: int | None = None
        # Only Linux has it; elsewhere the pid is asked for now and then.
        if sys.platform == "linux":
            with suppress(ProcessLookupError):
                self._descriptor = os.pidfd_open(pid)

    def ended_within(self, seconds: float) -> bool:
        if self._descriptor is not None:
            return bool(select.select([self._descriptor], [], [], seconds)[0])
        time.sleep(seconds)
        try:
            os.kill(self._pid, 0)
        except ProcessLookupError:
            return True
        return False
