"""A way to the database apart from the application's own pool: for relays and commands, which have a URL and nothing else."""

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import create_engine
from sqlalchemy.engine import Connection, Engine, make_url
from sqlalchemy.exc import ArgumentError

from outbox_shared.errors import ConfigurationError, MissingDependency
from outbox_shared.sqlite import READS_ONLY, configure_sqlite

_EXTRAS = {"postgresql": "postgresql"}


def make_engine(database_url: str, distribution: str) -> Engine:
    """An engine in READ COMMITTED, where there is a choice; connects to nothing yet.

    `distribution` is whose extra a missing driver would be. Errors never show the URL: it may hold a password.
    """
    try:
        url = make_url(database_url)
        backend, is_async = url.get_backend_name(), url.get_dialect().is_async
        if is_async:
            raise ConfigurationError(f"database-url names an async driver, {url.drivername}; write {backend}:// here")
        if backend == "sqlite":
            return configure_sqlite(create_engine(url))
        return create_engine(url, pool_pre_ping=True, isolation_level="READ COMMITTED")
    except ArgumentError:  # also NoSuchModuleError: a database that SQLAlchemy does not know
        raise ConfigurationError(
            "database-url is no URL of a database that SQLAlchemy knows; write postgresql://user@host/database or sqlite:///shop.db"
        ) from None
    except ModuleNotFoundError as error:
        if backend in _EXTRAS:
            raise MissingDependency(f"{backend} ({error.name})", f"{distribution}[{_EXTRAS[backend]}]") from None
        raise ConfigurationError(f"the driver of database-url is not installed: {error}") from None


@contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """A look that never takes SQLite's write lock: an idle relay must not stand in the writers' way."""
    with engine.connect().execution_options(**{READS_ONLY: True}) as connection, connection.begin():
        yield connection
