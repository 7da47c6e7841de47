"""What a `database-url` means: which driver, and its sync twin where an application's async URL is used for a relay or a command.

No message here repeats the URL or a part of it: it may hold a password.
"""

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from outbox_shared.errors import ConfigurationError

DRIVERS = {
    "postgres": "postgresql+psycopg",
    "postgresql": "postgresql+psycopg",
    "mysql": "mysql+pymysql",
    "mariadb": "mariadb+pymysql",
}
"""A database without a driver means the one that our extras install."""


def name_the_driver(database_url: str) -> str:
    """The same URL with its driver; a ValueError says how a URL is written."""
    scheme, separator, rest = database_url.strip().partition("://")
    if not separator:
        raise ValueError("write a URL such as postgresql://user@host/database or sqlite:///shop.db")
    url = f"{DRIVERS.get(scheme.lower(), scheme)}://{rest}"
    try:
        make_url(url)
    except (ArgumentError, ValueError):
        raise ValueError(
            "this URL cannot be read; write postgresql://user:password@host:5432/database, "
            "and in the password %40 for @, %3A for :, %2F for /"
        ) from None
    return url


class Translation(NamedTuple):
    """A query key's name for the sync driver, and its value; None where the value has no equal there."""

    key: str
    value: Callable[[str], str | None]


def _as_it_is(value: str) -> str | None:
    return value


def _ssl_mode(value: str) -> str | None:
    return value if value in {"disable", "allow", "prefer", "require", "verify-ca", "verify-full"} else None


def _whole_seconds(value: str) -> str | None:
    try:
        return str(max(1, math.ceil(float(value))))
    except (ValueError, OverflowError):
        return None


def _same(*keys: str) -> dict[str, Translation]:
    return {key: Translation(key, _as_it_is) for key in keys}


_ASYNCPG = {
    **_same("host", "port", "user", "password", "passfile", "service", "target_session_attrs", "krbsrvname", "gsslib"),
    "ssl": Translation("sslmode", _ssl_mode),
    "timeout": Translation("connect_timeout", _whole_seconds),
}
_PYMYSQL = _same(
    "charset", "unix_socket", "sql_mode", "read_default_file", "read_default_group", "use_unicode", "client_flag", "init_command",
    "connect_timeout", "local_infile", "program_name", "read_timeout", "write_timeout",
    "ssl_ca", "ssl_capath", "ssl_cert", "ssl_cipher", "ssl_key", "ssl_check_hostname",
)  # fmt: skip
_SQLITE = _same(
    "timeout", "check_same_thread", "cached_statements", "uri", "mode", "cache", "nolock", "immutable", "vfs", "psow"
)

_TWINS: dict[str, tuple[str, Mapping[str, Translation] | None]] = {
    "postgresql+asyncpg": ("postgresql+psycopg", _ASYNCPG),
    "postgresql+psycopg_async": ("postgresql+psycopg", None),  # the same driver: every key is known
    "mysql+aiomysql": ("mysql+pymysql", _PYMYSQL),
    "mysql+asyncmy": ("mysql+pymysql", _PYMYSQL),
    "mariadb+aiomysql": ("mariadb+pymysql", _PYMYSQL),
    "mariadb+asyncmy": ("mariadb+pymysql", _PYMYSQL),
    "sqlite+aiosqlite": ("sqlite", _SQLITE),
}


def sync_url(url: URL) -> URL:
    """The URL of the sync driver for the same database. A key that only the async driver knows is refused, never dropped.

    asyncpg's statement_cache_size=0, say, means that pgbouncer stands in between: a relay that ignored it would fail now and then.
    """
    if url.drivername not in _TWINS:
        return url
    driver, known = _TWINS[url.drivername]
    twin = url.set(drivername=driver)
    return twin if known is None else twin.set(query=_translated(url, driver, known))


def _translated(url: URL, driver: str, known: Mapping[str, Translation]) -> dict[str, str | tuple[str, ...]]:
    query: dict[str, str | tuple[str, ...]] = {}
    for key, given in url.query.items():
        translation = known.get(key)
        values = [given] if isinstance(given, str) else list(given)
        translated = [None if translation is None else translation.value(value) for value in values]
        if translation is None or None in translated:
            raise ConfigurationError(
                f"database-url is for {url.drivername}, and its {key!r} has no equal for {driver}, which works here: "
                f"pass engine=…, or write a URL for {driver}"
            )
        said = tuple(value for value in translated if value is not None)
        query[translation.key] = said[0] if len(said) == 1 else said
    return query


def is_in_memory(url: URL) -> bool:
    """SQLite's databases without a file: each connection would get an empty one of its own."""
    if url.get_backend_name() != "sqlite":
        return False
    database = url.database or ""
    return database in {"", ":memory:"} or database.startswith("file::memory:") or url.query.get("mode") == "memory"
