"""Loopback ports for servers, and the proof that a port is really ours.

A left-over server that answers in place of the new one makes every test look fine, so a server
counts as started only when one of its own processes holds the listening socket.
"""

import random
import socket
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

HOST = "127.0.0.1"
_LISTENING = "0A"
_given: set[int] = set()
_lock = threading.Lock()


def free_port() -> int:
    """A port nobody holds, given out once per process.

    It lies below the range from which the kernel takes the ports of outgoing connections: a client
    could otherwise sit on a server's port while that server restarts.
    """
    lowest_ephemeral = 32768
    with suppress(OSError, ValueError):
        lowest_ephemeral = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    candidates = range(10240, max(lowest_ephemeral, 20480))
    with _lock:
        while True:
            port = random.choice(candidates)
            if port not in _given and is_free(port):
                _given.add(port)
                return port


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        # Connections in TIME_WAIT do not keep a server from listening.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def answers(port: int) -> bool:
    """Whether anybody listens there; cheaper to ask than whether it is ours."""
    with socket.socket() as client:
        client.settimeout(1)
        return client.connect_ex((HOST, port)) == 0


def listens(port: int, pids: Iterable[int]) -> bool:
    """Whether one of these processes listens on the port."""
    sockets = _listening_sockets(port)
    return bool(sockets) and any(not sockets.isdisjoint(_open_files(pid)) for pid in pids)


def _listening_sockets(port: int) -> set[str]:
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                    found.add(f"socket:[{fields[9]}]")
    return found


def _open_files(pid: int) -> set[str]:
    found = set()
    with suppress(OSError):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                found.add(str(descriptor.readlink()))
    return found
