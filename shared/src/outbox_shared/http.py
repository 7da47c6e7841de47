"""A few pages for probes and scrapers, beside whatever the process really does. Not for people's browsers, and not for the internet."""

import logging
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from outbox_shared.errors import ConfigurationError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Page:
    """What a path answers."""

    status: HTTPStatus
    text: str


def health_page(troubles: list[str]) -> Page:
    """`ok`, or 503 and a line for each thing that is wrong."""
    if not troubles:
        return Page(HTTPStatus.OK, "ok\n")
    return Page(HTTPStatus.SERVICE_UNAVAILABLE, "".join(f"{trouble}\n" for trouble in troubles))


def parse_address(written: str) -> tuple[str, int]:
    """`HOST:PORT`, `[::1]:PORT`; port 0 is any that is free."""
    try:
        parts = urlsplit(f"//{written}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host or port is None or parts.path or parts.query or "@" in written:
        raise ConfigurationError(f"{written!r} is no address: write HOST:PORT, such as 127.0.0.1:8080 or 0.0.0.0:8080")
    return host, port


@contextmanager
def serving(address: str, pages: Mapping[str, Callable[[], Page]]) -> Iterator[str]:
    """Answer GET requests for these paths while the block lasts; yields the URL."""
    host, port = parse_address(address)
    try:
        server = _Server(host, port, pages)
    except OSError as error:
        raise ConfigurationError(f"cannot listen on {address}: {error.strerror or error}") from None
    thread = threading.Thread(target=server.serve_forever, args=(0.1,), name="outbox-http", daemon=True)
    thread.start()
    try:
        yield server.url
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False  # a slow client must not hold up a process that is told to stop

    def __init__(self, host: str, port: int, pages: Mapping[str, Callable[[], Page]]) -> None:
        if ":" in host:
            self.address_family = socket.AF_INET6
        self.pages = pages
        super().__init__((host, port), _Request)
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self.server_address[1]}"


class _Request(BaseHTTPRequestHandler):
    server: _Server
    timeout = 5.0
    server_version, sys_version = "outbox", ""

    def do_GET(self) -> None:
        page = self._page()
        body = page.text.encode()
        self.send_response(page.status)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_GET  # noqa: N815 - the base class's name for it

    def _page(self) -> Page:
        made = self.server.pages.get(self.path.partition("?")[0])
        if made is None:
            return Page(HTTPStatus.NOT_FOUND, f"here are {', '.join(self.server.pages)}\n")
        try:
            return made()
        except Exception:
            log.exception("%s failed", self.path)
            return Page(HTTPStatus.INTERNAL_SERVER_ERROR, "this page failed; the log says why\n")

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name for it
        log.debug(format, *args)
