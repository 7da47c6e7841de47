"""The pages for probes: real sockets, nothing else."""

import socket
import threading
import urllib.error
import urllib.request
from http import HTTPStatus

import pytest

from outbox_shared.errors import ConfigurationError
from outbox_shared.http import Page, health_page, parse_address, serving


def get(url: str, method: str = "GET") -> tuple[int, str]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_a_page_answers_with_its_status():
    troubles: list[str] = []
    with serving("127.0.0.1:0", {"/livez": lambda: health_page(troubles)}) as url:
        assert get(f"{url}/livez") == (200, "ok\n")
        assert get(f"{url}/livez?verbose") == (200, "ok\n")
        assert get(f"{url}/livez", "HEAD") == (200, "")
        troubles += ["database: away", "broker: away"]
        assert get(f"{url}/livez") == (503, "database: away\nbroker: away\n")
        assert get(f"{url}/") == (404, "here are /livez\n")
        assert get(f"{url}/livez", "POST")[0] == 501


def test_a_page_that_fails_is_500_and_the_others_go_on():
    def fail() -> Page:
        raise RuntimeError("secret detail")

    with serving("127.0.0.1:0", {"/bad": fail, "/good": lambda: Page(HTTPStatus.OK, "fine\n")}) as url:
        status, text = get(f"{url}/bad")
        assert (status, "secret" in text) == (500, False)
        assert get(f"{url}/good") == (200, "fine\n")


def test_a_client_that_says_nothing_holds_up_nobody():
    with serving("127.0.0.1:0", {"/livez": lambda: health_page([])}) as url:
        host, port = parse_address(url.removeprefix("http://"))
        with socket.create_connection((host, port)):
            assert get(f"{url}/livez") == (200, "ok\n")


def test_nothing_is_left_when_it_ends():
    before = threading.active_count()
    for _ in range(20):
        with serving("127.0.0.1:0", {"/livez": lambda: health_page([])}) as url:
            assert get(f"{url}/livez")[0] == 200
    assert threading.active_count() == before


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("127.0.0.1:8080", ("127.0.0.1", 8080)),
        ("0.0.0.0:0", ("0.0.0.0", 0)),
        ("localhost:80", ("localhost", 80)),
        ("[::1]:9", ("::1", 9)),
    ],
)
def test_an_address_is_host_and_port(written, meant):
    assert parse_address(written) == meant


@pytest.mark.parametrize(
    "written",
    ["", "8080", ":8080", "host", "host:", "host:x", "host:70000", "http://host:80", "host:80/x", "u@host:80"],
)
def test_anything_else_is_refused_with_the_form(written):
    with pytest.raises(ConfigurationError, match="write HOST:PORT"):
        parse_address(written)


def test_a_port_that_is_taken_is_one_clear_error():
    with (
        serving("127.0.0.1:0", {}) as url,
        pytest.raises(ConfigurationError, match="cannot listen on"),
        serving(url.removeprefix("http://"), {}),
    ):
        pass
