"""A connection of our own beside the application's: same address and login, each statement a transaction of its own.

It is made by the application's engine, but not taken from its pool: a pool of one connection would be empty. Everything here is sync;
an async engine's line is used inside SQLAlchemy's greenlet.
"""

import copy
from contextlib import suppress
from typing import Any, Protocol

from sqlalchemy.engine import Engine


class Line(Protocol):
    def execute(self, sql: str) -> None: ...
    def close(self) -> None: ...


class EngineLine:
    """What an engine would connect to, with the listeners that its pool has: they may know how to log in.

    The pool's wrapper is left behind: on an async psycopg it would not close what is no longer the pool's.
    """

    def __init__(self, engine: Engine) -> None:
        self._dialect = engine.dialect
        pooled = engine.pool.recreate().connect()
        driver: Any = pooled.dbapi_connection
        self.driver = driver
        pooled.detach()
        try:
            self._dialect.do_rollback(driver)  # a listener of the pool may have begun a transaction
            self._dialect.set_isolation_level(driver, "AUTOCOMMIT")
        except BaseException:
            self.close()
            raise

    def execute(self, sql: str) -> None:
        """Without results. psycopg's cursor costs five times as much as the call of libpq below it, in a process that has other work."""
        libpq = getattr(self.driver, "pgconn", None)
        if libpq is not None:
            result = libpq.exec_(sql.encode())
            if result.error_message:
                raise RuntimeError(result.error_message.decode(errors="replace"))
            return
        cursor = self.driver.cursor()
        try:
            cursor.execute(sql)
        finally:
            cursor.close()

    def close(self) -> None:
        """Never raises: who closes a broken line has said why already."""
        with suppress(Exception):
            self._dialect.do_close(self.driver)


class DjangoLine:
    """A copy of Django's connection, connected when it is used; any thread may use it, one at a time."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection.copy()
        self._connection.inc_thread_sharing()
        settings = self._connection.settings_dict = copy.deepcopy(self._connection.settings_dict)
        settings["AUTOCOMMIT"] = True
        settings.get("OPTIONS", {}).pop("pool", None)  # Django's pool belongs to the alias, and so to the application

    def execute(self, sql: str) -> None:
        with self._connection.cursor() as cursor:
            cursor.execute(sql)

    def close(self) -> None:
        with suppress(Exception):
            self._connection.close()
