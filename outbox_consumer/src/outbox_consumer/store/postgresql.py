"""PostgreSQL: a twin waits on the key, no longer than the lock timeout, and the handler never notices that one was set."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

from sqlalchemy.engine import Connection

from outbox_consumer.identity import Identity
from outbox_consumer.store.consumed import ConsumedStore, storable
from outbox_shared.driver import Driver, Speech, driver_error
from outbox_shared.tables import TableNames

_LOCK_NOT_AVAILABLE = "55P03"
_SERIALIZATION_FAILURE = "40001"
_DEADLOCK_DETECTED = "40P01"
_QUERY_CANCELED = "57014"
_READ_ONLY = "25006"
_OUTAGES = ("08", "28", "40", "53", "55", "57", "58", "XX")
"""Classes of SQLSTATE: connection, login, broken-off transactions, resources, locks, shutdown, disks, corruption."""

_IN_TRANSACTION = 2  # libpq's PQTRANS_INTRANS, the same number in psycopg and psycopg2


class PostgresqlConsumed(ConsumedStore):
    def __init__(self, names: TableNames, speech: Speech, lock_timeout: timedelta) -> None:
        super().__init__(names, speech, lock_timeout)
        consumer, event, event_type = speech.marks(3)
        self._one = self._statement(
            "count(*)",
            f"CAST({event} AS uuid), CAST({event_type} AS varchar) FROM armed WHERE now IS NOT NULL",
            consumer,
            "1",  # a role that may INSERT alone may return no column
        )
        arrays = f"CAST({event} AS uuid[]), CAST({event_type} AS varchar[])"
        self._all = self._statement(
            "array_agg(event_id)",
            f"id, type FROM armed, unnest({arrays}) AS given(id, type) WHERE now IS NOT NULL ORDER BY id",
            consumer,
            "event_id",
        )

    def _statement(self, answer: str, rows: str, consumer: str, returned: str) -> str:
        """Set lock_timeout, insert, and put the old value back, all in one statement.

        SET LOCAL in a statement of its own would stay on for the handler's statements, or cost two more round trips. Each step reads
        the one before it, which fixes their order: `armed` reads `before`, the INSERT reads `armed`, and the aggregate has read all of
        the INSERT before set_config beside it is called. If the INSERT fails, the end of the (sub)transaction puts the old value back.
        """
        return f"""
            WITH before AS MATERIALIZED (SELECT current_setting('lock_timeout') AS value),
                 armed  AS MATERIALIZED (SELECT value, set_config('lock_timeout', '{self._milliseconds}ms', true) AS now FROM before),
                 marked AS (INSERT INTO {self._table} (consumer, event_id, event_type)
                            SELECT CAST({consumer} AS varchar), {rows}
                            ON CONFLICT DO NOTHING RETURNING {returned})
            SELECT {answer}, set_config('lock_timeout', (SELECT value FROM armed), true) FROM marked
        """  # noqa: S608 - the table's name is a checked identifier, quoted

    @property
    def _milliseconds(self) -> int:
        return max(1, round(self._lock_timeout.total_seconds() * 1000))  # 0 would mean: wait for ever

    def _mark_one(self, driver: Driver, consumer: str, event: Identity) -> bool:
        row = driver.fetch_one(self._one, (consumer, event.event_id, storable(event.event_type)))
        return bool(row[0] == 1)

    def _mark_all(self, driver: Driver, consumer: str, events: Sequence[Identity]) -> set[UUID]:
        """One statement, however many there are: the arrays are two parameters."""
        ids = [event.event_id for event in events]
        types = [storable(event.event_type) for event in events]
        row = driver.fetch_one(self._all, (consumer, ids, types))
        return set(row[0] or ())

    def is_lock_timeout(self, error: BaseException) -> bool:
        return sqlstate(error) == _LOCK_NOT_AVAILABLE

    def is_conflict(self, error: BaseException) -> bool:
        return sqlstate(error) in {_SERIALIZATION_FAILURE, _DEADLOCK_DETECTED}

    def is_outage(self, error: BaseException) -> bool:
        """A statement_timeout counts as the message's own: a smaller part of the batch may pass, and the one that never does is found."""
        state = sqlstate(error)
        if state is None:  # the server had no say: the connection could not be made, or broke
            return type(driver_error(error)).__name__ in {"OperationalError", "InterfaceError"}
        return state != _QUERY_CANCELED and (state.startswith(_OUTAGES) or state == _READ_ONLY)

    def can_commit(self, connection: Connection) -> bool:
        """After an error that a handler swallowed, COMMIT answers ROLLBACK and no driver raises: the event would be lost."""
        driver: Any = connection.connection.driver_connection
        if hasattr(driver, "info"):  # psycopg and psycopg2
            status = getattr(driver.info, "transaction_status", _IN_TRANSACTION)
            return int(status) == _IN_TRANSACTION
        if hasattr(driver, "is_in_transaction"):  # asyncpg, for which a failed transaction is one too: see outlived
            return bool(driver.is_in_transaction())
        return True  # a driver that does not tell

    def outlived(self, connection: Connection, error: BaseException) -> bool:
        """A failed transaction refuses every statement; one that went back to a savepoint is whole again."""
        try:
            connection.exec_driver_sql("SELECT 1")
        except Exception:  # noqa: BLE001 - whatever it is, this transaction cannot be committed
            return False
        return True


def sqlstate(error: BaseException) -> str | None:
    original = driver_error(error)
    state = getattr(original, "sqlstate", None) or getattr(original, "pgcode", None)
    return state if isinstance(state, str) else None
