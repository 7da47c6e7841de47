"""The fault proxy in front of a server that answers each line with itself."""

import socket
import socketserver
import threading
import time

import pytest

from tests.services.processes import wait_until
from tests.services.proxy import Proxy


class Echo(socketserver.StreamRequestHandler):
    def handle(self):
        for line in self.rfile:
            self.server.heard.append(line)
            self.wfile.write(line)


@pytest.fixture
def echo():
    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        allow_reuse_address = True

        def handle_error(self, request, client_address):
            """A reset connection is what some tests are about: no traceback for it."""

    with Server(("127.0.0.1", 0), Echo) as server:
        server.heard = []
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def proxy(echo):
    with Proxy(echo.server_address) as proxy:
        yield proxy


@pytest.fixture
def connect(proxy):
    clients = []

    def dial():
        client = socket.create_connection(("127.0.0.1", proxy.port), timeout=5)
        clients.append(client)
        return client

    yield dial
    for client in clients:
        client.close()


def say(client, text, wait=5.0):
    client.settimeout(wait)
    client.sendall(text)
    return client.recv(100)


def test_an_ordinary_network_delivers_and_counts(proxy, connect):
    assert say(connect(), b"hello\n") == b"hello\n"
    assert say(connect(), b"again\n") == b"again\n"

    assert proxy.counters.connections == 2
    assert proxy.counters.bytes == {"requests": 12, "answers": 12}
    assert proxy.open_connections == 2


def test_much_data_arrives_whole(connect):
    sent = b"x" * 3_000_000 + b"\n"
    client = connect()
    threading.Thread(target=client.sendall, args=(sent,)).start()

    got = b""
    while len(got) < len(sent):
        got += client.recv(1 << 20)

    assert got == sent


def test_latency_delays_each_direction(proxy, connect):
    client = connect()
    say(client, b"warm\n")
    proxy.latency(0.1)

    begun = time.monotonic()
    say(client, b"late\n")

    assert 0.2 <= time.monotonic() - begun < 2


def test_latency_delays_and_does_not_throttle(proxy, connect):
    client = connect()
    say(client, b"warm\n")
    proxy.latency(0.1)

    begun = time.monotonic()
    for _ in range(20):
        client.sendall(b"ping\n")
        time.sleep(0.005)
    got = b""
    while got.count(b"\n") < 20:
        got += client.recv(1000)

    assert time.monotonic() - begun < 1.5


def test_a_cut_closes_connections_and_refuses_new_ones_until_healed(proxy, connect):
    client = connect()
    say(client, b"before\n")

    proxy.cut()

    with pytest.raises((ConnectionError, EOFError)):
        if not say(client, b"lost\n"):
            raise EOFError
    with pytest.raises(ConnectionRefusedError):
        connect()
    proxy.heal()
    assert say(connect(), b"after\n") == b"after\n"


def test_a_black_hole_keeps_connections_and_delivers_after_healing(proxy, echo, connect):
    client = connect()
    say(client, b"before\n")

    proxy.black_hole()

    with pytest.raises(TimeoutError):
        say(client, b"held\n", wait=0.2)
    with pytest.raises(TimeoutError):
        say(connect(), b"new\n", wait=0.2)
    assert echo.heard == [b"before\n"]
    proxy.heal()
    client.settimeout(5)
    assert client.recv(100) == b"held\n"


def test_a_hole_for_answers_lets_requests_through(proxy, echo, connect):
    client = connect()
    say(client, b"before\n")

    proxy.black_hole("answers")

    with pytest.raises(TimeoutError):
        say(client, b"done but unanswered\n", wait=0.2)
    assert wait_until(lambda: b"done but unanswered\n" in echo.heard, 5)
    # A reset now loses the answer for good.
    proxy.reset()
    with pytest.raises(ConnectionResetError):
        client.recv(100)


def test_a_reset_breaks_present_connections_and_welcomes_new_ones(proxy, connect):
    client = connect()
    say(client, b"before\n")

    proxy.reset()

    with pytest.raises(ConnectionResetError):
        client.recv(100)
    assert say(connect(), b"after\n") == b"after\n"


def test_a_server_that_is_down_looks_down_through_the_proxy(proxy, connect):
    with socket.create_server(("127.0.0.1", 0)) as gone:
        proxy.target = gone.getsockname()

    with pytest.raises((ConnectionError, EOFError)):
        if not say(connect(), b"anybody\n"):
            raise EOFError


def test_the_end_of_a_stream_passes(connect):
    client = connect()
    client.sendall(b"last\n")
    client.shutdown(socket.SHUT_WR)

    assert client.makefile("rb").read() == b"last\n"


def test_a_closed_proxy_leaves_nothing_behind(echo):
    proxy = Proxy(echo.server_address)
    client = socket.create_connection(("127.0.0.1", proxy.port), timeout=5)
    say(client, b"hello\n")

    proxy.close()
    proxy.close()

    client.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", proxy.port), timeout=5)
