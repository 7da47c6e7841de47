"""A way to the database apart from the application's own pool: for relays and commands, which have a URL and nothing else."""

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import create_engine
from sqlalchemy.engine import URL, Connection, Engine, make_url
from sqlalchemy.exc import ArgumentError

from outbox_shared.database_urls import is_in_memory, name_the_driver, sync_url
from outbox_shared.errors import ConfigurationError, MissingDependency
from outbox_shared.sqlite import READS_ONLY, configure_sqlite

_EXTRAS = {"psycopg": "postgresql", "pymysql": "mysql"}
"""Our extra for each driver that a database-url without one means."""


_PATIENCE: dict[str, dict[str, int]] = {
    "psycopg": {
        "connect_timeout": 10,
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": 25_000,
    },
    "pymysql": {"connect_timeout": 10, "read_timeout": 120, "write_timeout": 30},
}
"""A network that swallows everything is noticed in half a minute, and not when the kernel gives up after a quarter of an hour. What the
URL's query says is the user's.
"""
_PREPARE = "prepare_threshold"


def make_engine(database_url: str, distribution: str) -> Engine:
    """An engine in READ COMMITTED, where there is a choice; connects to nothing yet. Async URLs are mapped to the sync driver.

    `distribution` is whose extra a missing driver would be. Errors never show the URL: it may hold a password.
    """
    try:
        url = sync_url(make_url(name_the_driver(database_url)))
        if is_in_memory(url):
            raise ConfigurationError(
                "an SQLite database in memory is another one for each connection: pass engine=…, or write sqlite:///shop.db"
            )
        if url.get_dialect().is_async:
            raise ConfigurationError(
                f"database-url names an async driver, {url.drivername}: pass engine=…, or write a sync driver's URL"
            )
        return _engine(url)
    except (ArgumentError, ValueError):  # also NoSuchModuleError: a database that SQLAlchemy does not know
        raise ConfigurationError(
            "database-url is no URL of a database that SQLAlchemy knows; write postgresql://user@host/database or sqlite:///shop.db"
        ) from None
    except ModuleNotFoundError as error:
        driver = str(error.name).partition(".")[0]
        if driver in _EXTRAS:
            raise MissingDependency(
                f"{url.get_backend_name()} ({driver})", f"{distribution}[{_EXTRAS[driver]}]"
            ) from None
        backend = url.get_backend_name()
        raise ConfigurationError(
            f"the driver of database-url is not installed ({error.name}); the outbox speaks postgresql://, mysql:// and sqlite://"
            f"{'' if backend in {'postgresql', 'mysql', 'mariadb'} else f', not {backend}'}"
        ) from None


def _engine(url: URL) -> Engine:
    if url.get_backend_name() == "sqlite":
        return configure_sqlite(create_engine(url))
    given: dict[str, int | None] = {
        name: value for name, value in _PATIENCE.get(url.get_driver_name(), {}).items() if name not in url.query
    }
    if url.get_driver_name() == "psycopg" and _PREPARE in url.query:
        url, given = url.difference_update_query([_PREPARE]), {**given, _PREPARE: _threshold(url.query[_PREPARE])}
    return create_engine(url, pool_pre_ping=True, isolation_level="READ COMMITTED", connect_args=given)


def _threshold(written: object) -> int | None:
    """psycopg's own setting, which is no text."""
    if written == "none":
        return None
    if not (isinstance(written, str) and written.isdecimal()):
        raise ConfigurationError(
            f"{_PREPARE} in database-url is a number, or none where prepared statements would be strangers' (pgbouncer)"
        )
    return int(written)


@contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """A look that never takes SQLite's write lock: an idle relay must not stand in the writers' way."""
    with engine.connect().execution_options(**{READS_ONLY: True}) as connection, connection.begin():
        yield connection
