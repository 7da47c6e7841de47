"""Fresh databases on a shared server: random names, so that parallel tests never meet."""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from uuid import uuid4

from sqlalchemy import Connection, create_engine, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import OperationalError
from sqlalchemy.pool import NullPool


@contextmanager
def administration(server_url: str) -> Iterator[Connection]:
    """A connection on which each statement commits itself, as CREATE DATABASE needs it."""
    engine = create_engine(server_url, isolation_level="AUTOCOMMIT", poolclass=NullPool)
    with engine.connect() as connection:
        yield connection


def database_url(server_url: str, database: str) -> str:
    return make_url(server_url).set(database=database).render_as_string(hide_password=False)


def new_name() -> str:
    return f"test_{uuid4().hex}"


@contextmanager
def postgresql_database(server_url: str, template: str | None = None) -> Iterator[str]:
    name = new_name()
    with administration(server_url) as connection:
        connection.exec_driver_sql(f'CREATE DATABASE "{name}" TEMPLATE "{template or "template1"}"')
    try:
        yield database_url(server_url, name)
    finally:
        with administration(server_url) as connection:
            connection.exec_driver_sql(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


@contextmanager
def mariadb_database(server_url: str) -> Iterator[str]:
    name = new_name()
    with administration(server_url) as connection:
        connection.exec_driver_sql(f"CREATE DATABASE `{name}` CHARACTER SET utf8mb4")
    try:
        yield database_url(server_url, name)
    finally:
        with administration(server_url) as connection:
            _end_sessions(connection, name)
            connection.exec_driver_sql(f"DROP DATABASE IF EXISTS `{name}`")


def _end_sessions(connection: Connection, database: str) -> None:
    """DROP DATABASE waits for open transactions, so a session that a test forgot would block it for ever."""
    sessions = text("SELECT id FROM information_schema.processlist WHERE db = :database")
    for session in connection.execute(sessions, {"database": database}).scalars().all():
        # The session may have ended in the meantime.
        with suppress(OperationalError):
            connection.exec_driver_sql(f"KILL CONNECTION {session}")


def template_database(server_url: str, name: str, fill: Callable[[str], None]) -> str:
    """The PostgreSQL template database of this name, filled by the first who asks; returns the name.

    `name` should contain a digest of what `fill` does. It must leave no connection open: a database
    in use cannot be a template. Only a complete one is marked as template, so what an interrupted
    run left half filled is made anew.
    """
    lock = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big", signed=True)
    with administration(server_url) as connection:
        connection.execute(text("SELECT pg_advisory_lock(:lock)"), {"lock": lock})
        complete = connection.execute(
            text("SELECT true FROM pg_database WHERE datname = :name AND datistemplate"), {"name": name}
        ).scalar()
        if not complete:
            connection.exec_driver_sql(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
            connection.exec_driver_sql(f'CREATE DATABASE "{name}"')
            fill(database_url(server_url, name))
            connection.exec_driver_sql(f'ALTER DATABASE "{name}" IS_TEMPLATE true ALLOW_CONNECTIONS false')
        # The lock goes with the connection.
    return name
