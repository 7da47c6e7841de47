"""A TCP proxy that makes the network between a client and a server as bad as a test needs it.

It runs in the test's own process, on an event loop in a thread of its own. Every method returns
when the change is in force. What a black hole holds back is not lost: as TCP would, the proxy
delivers it after `heal()`; `reset()` or `cut()` lose it for good.
"""

import asyncio
import socket
import struct
import threading
from collections.abc import Coroutine
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal, Self

from tests.services.ports import HOST, free_port

Direction = Literal["requests", "answers"]
DIRECTIONS: tuple[Direction, ...] = ("requests", "answers")
CHUNK = 65536
# Chunks under way in one direction of a connection; enough to keep the pipe full at any latency.
UNDER_WAY = 64


@dataclass
class Counters:
    """What has passed so far."""

    connections: int = 0
    bytes: dict[Direction, int] = field(default_factory=lambda: dict.fromkeys(DIRECTIONS, 0))


class Proxy:
    """Stands in front of `target`; clients connect to `port`."""

    def __init__(self, target: tuple[str, int] | None = None) -> None:
        self.target = target
        self.port = free_port()
        self.counters = Counters()
        self._latency = 0.0
        self._open: dict[asyncio.StreamWriter, None] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._listener: asyncio.Server | None = None
        self._loop = asyncio.new_event_loop()
        self._gates: dict[Direction, asyncio.Event] = {direction: asyncio.Event() for direction in DIRECTIONS}
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"proxy-{self.port}", daemon=True)
        self._thread.start()
        self._do(self._heal())

    def latency(self, seconds: float) -> None:
        """Everything arrives this much later, in both directions: a round trip takes twice that."""
        self._latency = seconds

    def cut(self) -> None:
        """Close all connections and refuse new ones."""
        self._do(self._cut())

    def black_hole(self, direction: Direction | None = None) -> None:
        """Accept and keep connections, deliver nothing (or nothing of the requests, or of the answers)."""
        self._do(self._close_gates(DIRECTIONS if direction is None else (direction,)))

    def reset(self) -> None:
        """Break all present connections with a TCP reset; new ones are welcome."""
        self._do(self._reset())

    def heal(self) -> None:
        """An ordinary network again: no latency, no holes, and listening."""
        self._latency = 0.0
        self._do(self._heal())

    @property
    def open_connections(self) -> int:
        return len(self._open) // 2

    def close(self) -> None:
        if self._thread.is_alive():
            self._do(self._end())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _do(self, change: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(change, self._loop).result(10)

    async def _heal(self) -> None:
        for gate in self._gates.values():
            gate.set()
        if self._listener is None:
            self._listener = await asyncio.start_server(self._accept, HOST, self.port, reuse_address=True)

    async def _close_gates(self, directions: tuple[Direction, ...]) -> None:
        for direction in directions:
            self._gates[direction].clear()

    async def _cut(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        self._abort_all()

    async def _reset(self) -> None:
        for writer in self._open:
            _reset_on_close(writer)
        self._abort_all()

    def _abort_all(self) -> None:
        for writer in list(self._open):
            writer.transport.abort()
        self._open.clear()
        for task in self._tasks:
            task.cancel()

    async def _end(self) -> None:
        await self._cut()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.counters.connections += 1
        self._open[writer] = None
        server: asyncio.StreamWriter | None = None
        try:
            # In a black hole not even the connection request gets through.
            await self._gates["requests"].wait()
            if self.target is None:
                raise ConnectionRefusedError("the proxy has no target yet")
            server_reader, server = await asyncio.open_connection(*self.target)
            self._open[server] = None
            async with asyncio.TaskGroup() as pumps:
                pumps.create_task(self._pump("requests", reader, server))
                pumps.create_task(self._pump("answers", server_reader, writer))
        except* (OSError, asyncio.CancelledError):
            # The nearest thing to the server's own refusal or abrupt end.
            _reset_on_close(writer)
        finally:
            for end in (writer, server):
                if end is not None:
                    self._open.pop(end, None)
                    end.transport.abort()
            self._tasks.discard(task)

    async def _pump(self, direction: Direction, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(UNDER_WAY)

        async def receive() -> None:
            while True:
                data = await reader.read(CHUNK)
                await under_way.put((self._loop.time() + self._latency, data))
                if not data:
                    return

        async def deliver() -> None:
            while True:
                due, data = await under_way.get()
                await asyncio.sleep(due - self._loop.time())
                await self._gates[direction].wait()
                if not data:
                    writer.write_eof()
                    return
                # Counted first: who has received it may look at once.
                self.counters.bytes[direction] += len(data)
                writer.write(data)
                await writer.drain()

        async with asyncio.TaskGroup() as both:
            both.create_task(receive())
            both.create_task(deliver())


def _reset_on_close(writer: asyncio.StreamWriter) -> None:
    """A close with linger time 0 sends RST instead of FIN."""
    connection = writer.get_extra_info("socket")
    if connection is not None and connection.fileno() >= 0:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
