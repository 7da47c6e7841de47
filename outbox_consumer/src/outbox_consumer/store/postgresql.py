"""PostgreSQL: a twin waits on the key, no longer than the lock timeout, and the handler never notices that one was set."""

from typing import Any

from sqlalchemy.engine import Connection

from outbox_consumer.store.consumed import ConsumedStore
from outbox_shared.driver import driver_error

_LOCK_NOT_AVAILABLE = "55P03"
_SERIALIZATION_FAILURE = "40001"
_DEADLOCK_DETECTED = "40P01"

_IN_TRANSACTION = 2  # libpq's PQTRANS_INTRANS, the same number in psycopg and psycopg2


class PostgresqlConsumed(ConsumedStore):
    def _mark_sql(self, table: str) -> str:
        """Set lock_timeout, insert, and put the old value back, all in one statement.

        SET LOCAL in a statement of its own would stay on for the handler's statements, or cost two more round trips. Each step reads
        the one before it, which fixes their order: `armed` reads `before`, the INSERT reads `armed`, and count(*) has read all of the
        INSERT before set_config beside it is called. If the INSERT fails, the end of the (sub)transaction puts the old value back.
        """
        return f"""
            WITH before AS MATERIALIZED (SELECT current_setting('lock_timeout') AS value),
                 armed  AS MATERIALIZED (SELECT value, set_config('lock_timeout', '{self._milliseconds}ms', true) AS now FROM before),
                 marked AS (INSERT INTO {table} (consumer, event_id, event_type)
                            SELECT CAST(:consumer AS varchar), CAST(:event_id AS uuid), CAST(:event_type AS varchar)
                            FROM armed WHERE now IS NOT NULL
                            ON CONFLICT DO NOTHING RETURNING 1)
            SELECT count(*), set_config('lock_timeout', (SELECT value FROM armed), true) FROM marked
        """  # noqa: S608 - the table's name is a checked identifier, quoted

    @property
    def _milliseconds(self) -> int:
        return max(1, round(self._lock_timeout.total_seconds() * 1000))  # 0 would mean: wait for ever

    def _is_new(self, connection: Connection, row: dict[str, Any]) -> bool:
        new: int = connection.execute(self._mark, row).scalar_one()
        return new == 1

    def is_lock_timeout(self, error: BaseException) -> bool:
        return _sqlstate(error) == _LOCK_NOT_AVAILABLE

    def is_conflict(self, error: BaseException) -> bool:
        return _sqlstate(error) in {_SERIALIZATION_FAILURE, _DEADLOCK_DETECTED}

    def can_commit(self, connection: Connection) -> bool:
        """After an error that a handler swallowed, COMMIT answers ROLLBACK and no driver raises: the event would be lost."""
        driver: Any = connection.connection.dbapi_connection
        if hasattr(driver, "info"):
            status = getattr(driver.info, "transaction_status", _IN_TRANSACTION)
            return int(status) == _IN_TRANSACTION
        return True  # a driver that does not tell


def _sqlstate(error: BaseException) -> str | None:
    original = driver_error(error)
    return getattr(original, "sqlstate", None) or getattr(original, "pgcode", None)
