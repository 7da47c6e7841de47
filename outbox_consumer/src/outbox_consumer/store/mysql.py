"""MariaDB and MySQL: no ON CONFLICT, no RETURNING, row counts that lie, and a lock timeout that counts in seconds."""

import math
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy.engine import Connection

from outbox_consumer.identity import Identity
from outbox_consumer.store.consumed import COMMENTS, ConsumedStore, chunks
from outbox_shared.driver import Driver, Parameters, driver_error
from outbox_shared.sqltypes import stored_id

_DUPLICATE = 1062
_LOCK_WAIT_TIMEOUT = 1205
_DEADLOCK = 1213
_RECORD_CHANGED = 1020  # MariaDB 11.6 and later at REPEATABLE READ: another transaction wrote what this one had read

_CLIENT_ERRORS = range(2000, 3000)  # the connection is lost or was never there
_OUTAGES = frozenset(
    {0, 1021, 1037, 1038, 1040, 1041, 1047, 1053, 1077, 1114, 1129, 1180, 1203, 1290, 1792, 1836, 1927}
)
"""Disk and memory, too many connections, shutdown, read-only servers, killed connections, a cluster without quorum."""

_SERVER_STATUS_IN_TRANS = 1

_COMMITS_SILENTLY = re.compile(
    COMMENTS
    + r"(?:BEGIN|START\s+TRANSACTION|LOCK\s+TABLES?|UNLOCK\s+TABLES?|TRUNCATE|RENAME|ALTER|GRANT|REVOKE|ANALYZE|OPTIMIZE|REPAIR"
    r"|SET\s+(?:SESSION\s+|@@SESSION\.|@@)?AUTOCOMMIT"
    r"|(?:CREATE(?:\s+OR\s+REPLACE)?|DROP)(?!(?:\s+OR\s+REPLACE)?\s+TEMPORARY\b))\b",
    re.IGNORECASE | re.DOTALL,
)
"""Each of these commits before it begins, whatever it then does. Temporary tables are an exception."""


class MysqlConsumed(ConsumedStore):
    durable_duplicates = False
    """InnoDB lets go of a transaction's locks before its log is on the disk: a duplicate may be seen that a crash then takes back."""

    _is_mariadb: bool | None = None

    def _mark_one(self, driver: Driver, consumer: str, event: Identity) -> bool:
        """A plain INSERT: INSERT IGNORE would swallow other errors too. The error for a duplicate leaves the transaction as it was."""
        try:
            self._bounded(driver, self._insert_values(1), self._parameters(consumer, [event]))
        except Exception as error:
            if _number(error) == _DUPLICATE:
                return False
            raise
        return True

    def _mark_all(self, driver: Driver, consumer: str, events: Sequence[Identity]) -> set[UUID]:
        """A no-op upsert counts a duplicate like a new row, so a token that only an INSERT writes tells them apart, in a second look."""
        token, new = stored_id(uuid4(), self._dialect), set[UUID]()
        for chunk in chunks(events):
            self._bounded(driver, self._upsert(len(chunk)), self._tokened(consumer, chunk, token))
            ids = [stored_id(event.event_id, self._dialect) for event in chunk]
            rows = driver.fetch_all(self._look(len(chunk)), [consumer, *ids, token])
            new |= {UUID(bytes=bytes(row[0])) for row in rows}
        return new

    def _upsert(self, rows: int) -> str:
        row = f"({', '.join(self._speech.marks(4))})"
        values = ", ".join([row] * rows)
        columns = "consumer, event_id, event_type, mark"
        return f"INSERT INTO {self._table} ({columns}) VALUES {values} ON DUPLICATE KEY UPDATE consumer = consumer"  # noqa: S608

    def _look(self, rows: int) -> str:
        mark, *marks = self._speech.marks(rows + 1)
        where = f"consumer = {mark} AND event_id IN ({', '.join(marks)}) AND mark = {mark}"
        return f"SELECT event_id FROM {self._table} WHERE {where}"  # noqa: S608

    def _tokened(self, consumer: str, events: Sequence[Identity], token: Any) -> list[Any]:
        given = self._parameters(consumer, events)
        return [value for start in range(0, len(given), 3) for value in (*given[start : start + 3], token)]

    def _bounded(self, driver: Driver, sql: str, parameters: Parameters) -> None:
        """Run it with the lock timeout, and leave the session's own as it was, whatever becomes of the statement.

        MariaDB has a form that restores itself. On MySQL 8 it takes a statement before and one after; where the connection breaks in
        between, the setting goes with it.
        """
        seconds = max(1, math.ceil(self._lock_timeout.total_seconds()))
        if self._on_mariadb(driver):
            driver.execute(f"SET STATEMENT innodb_lock_wait_timeout = {seconds} FOR {sql}", parameters)
            return
        own = "@@SESSION.innodb_lock_wait_timeout"
        driver.execute(f"SET @outbox_lock_wait = {own}, {own} = {seconds}", ())
        try:
            driver.execute(sql, parameters)
        except BaseException:
            with suppress(Exception):  # the first error says more
                driver.execute(_RESTORE, ())
            raise
        driver.execute(_RESTORE, ())

    def _on_mariadb(self, driver: Driver) -> bool:
        """Asked once: a connection of Django's does not tell, and a mysql:// URL may lead to either."""
        if self._is_mariadb is None:
            self._is_mariadb = "mariadb" in str(driver.fetch_one("SELECT VERSION()", ())[0]).lower()
        return self._is_mariadb

    def is_lock_timeout(self, error: BaseException) -> bool:
        return _number(error) == _LOCK_WAIT_TIMEOUT

    def is_conflict(self, error: BaseException) -> bool:
        return _number(error) in {_DEADLOCK, _LOCK_WAIT_TIMEOUT, _RECORD_CHANGED}

    def is_outage(self, error: BaseException) -> bool:
        number = _number(error)
        return number is not None and (number in _OUTAGES or number in _CLIENT_ERRORS or self.is_conflict(error))

    def ends_transaction(self, statement: str) -> bool:
        return super().ends_transaction(statement) or _COMMITS_SILENTLY.match(statement) is not None

    def can_commit(self, connection: Connection) -> bool:
        """What ended it behind SQLAlchemy's back: a procedure, say. asyncmy does not take notice of an ended transaction."""
        driver: Any = connection.connection.driver_connection
        status = getattr(driver, "server_status", None)
        return not isinstance(status, int) or bool(status & _SERVER_STATUS_IN_TRANS)

    def outlived(self, connection: Connection, error: BaseException) -> bool:
        """A deadlock has rolled everything back, the mark too, and what the handler wrote afterwards would be kept without it.

        A lock timeout undoes its statement alone, unless the server was told otherwise.
        """
        match _number(error):
            case 1213 | 1020:
                return False
            case 1205:
                return not connection.exec_driver_sql("SELECT @@innodb_rollback_on_timeout").scalar_one()
            case number:
                return number not in _CLIENT_ERRORS


_RESTORE = "SET @@SESSION.innodb_lock_wait_timeout = @outbox_lock_wait"


def _number(error: BaseException) -> int | None:
    arguments = getattr(driver_error(error), "args", ())
    return arguments[0] if arguments and isinstance(arguments[0], int) else None
