"""Which database a URL means, so that two parts of one process find out that they work on the same one.

Two names of one place may look different, and then a poll finds what a hint would have told; two places that look alike cost a look in
vain. So what cannot be told apart here is taken for the same.
"""

from pathlib import Path
from typing import Any, NamedTuple

from sqlalchemy.engine import URL

from outbox_shared.database_urls import is_in_memory

_HERE = {"", "localhost", "127.0.0.1", "::1"}
_PORTS = {"postgresql": "5432", "mysql": "3306"}


class Place(NamedTuple):
    """A database, as far as an address tells."""

    dialect: str
    host: str
    port: str
    database: str


def place_of(url: URL) -> Place:
    """Where an engine's URL leads. Drivers take a host and a port in the query as well."""
    query = {key: value if isinstance(value, str) else ",".join(value) for key, value in url.query.items()}
    if is_in_memory(url):
        return Place(url.get_backend_name(), "", "", "")
    return place(
        url.get_backend_name(), url.host or query.get("host"), url.port or query.get("port"), url.database or query.get("dbname")
    )  # fmt: skip


def place(dialect: str, host: Any, port: Any, database: Any) -> Place:
    """A place by its parts; one without a host or port is a file."""
    dialect = {"mariadb": "mysql"}.get(dialect, dialect)
    if dialect not in _PORTS:
        return Place(dialect, "", "", str(Path(str(database).removeprefix("file:").partition("?")[0]).resolve()))
    host = str(host or "")
    here = host in _HERE or host.startswith("/")  # a folder: the server's Unix socket
    return Place(dialect, "" if here else host, str(port or _PORTS[dialect]), str(database or ""))
