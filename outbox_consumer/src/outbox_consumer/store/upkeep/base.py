"""The consumer's tables, and the statements of those who look after them, written once; a dialect overrides what differs, and says why."""

from collections.abc import Sequence
from uuid import UUID

from sqlalchemy import Column, MetaData, Table, bindparam, delete, select
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DBAPIError

from outbox_consumer.store.upkeep.counting import Counting
from outbox_consumer.store.upkeep.expired import Expired
from outbox_shared.sqltypes import EventId
from outbox_shared.state import State
from outbox_shared.tables import TableNames, consumed_events, consumer_attempts, outbox_state

LEASE = "consumed-cleanup"
"""Under this name one process at a time cleans."""


class Upkeep:
    """Every method works on a Connection inside a transaction that the caller owns."""

    dialect: str
    good_isolation: tuple[str, ...] = ()
    """In which the application's own sessions may begin."""

    def __init__(self, names: TableNames) -> None:
        metadata = MetaData()
        self.consumed = consumed_events(metadata, names, self.dialect)
        self.attempts = consumer_attempts(metadata, names, self.dialect)
        self.state_table = outbox_state(metadata, names, self.dialect)
        self.state = State(self.state_table)
        self.expired_events = self._expired(self.consumed, self.consumed.c.consumed_at)
        self.expired_attempts = self._expired(self.attempts, self.attempts.c.updated_at)
        self.counting = self._counts()
        ids = bindparam("ids_", type_=EventId, expanding=True)
        columns = self.consumed.c
        self._there = select(columns.event_id).where(
            columns.consumer == bindparam("consumer_"), columns.event_id.in_(ids)
        )
        self._forget = [
            delete(table).where(table.c.consumer == bindparam("consumer_"), table.c.event_id.in_(ids))
            for table in (self.consumed, self.attempts)
        ]

    def forget(self, connection: Connection, consumer: str, ids: Sequence[UUID]) -> set[UUID]:
        """Away with these marks and with what was counted of their failures; returns those that were there."""
        given = {"consumer_": consumer, "ids_": list(ids)}
        found = set(connection.execute(self._there, given).scalars())
        for statement in self._forget:
            connection.execute(statement, given)
        return found

    # What a dialect may say differently.

    def engine_for(self, engine: Engine) -> Engine:
        """The application's engine, in the mood that cleaning needs."""
        return engine

    def is_conflict(self, error: DBAPIError) -> bool:
        """Whether the database broke the transaction off for another one's sake: run again it may pass."""
        raise NotImplementedError

    def limit_transaction(self, connection: Connection, seconds: float, *, own: bool) -> None:
        """Let the server end this transaction if its process stands still in it for so long."""

    def server(self, connection: Connection) -> tuple[str, tuple[int, ...], tuple[int, ...]]:
        """Its name, its version, and the oldest one that we know to work."""
        raise NotImplementedError

    def default_isolation(self, connection: Connection) -> str | None:
        """In which sessions begin that say nothing about it; None where there is no choice."""
        return None

    @staticmethod
    def _version(connection: Connection) -> tuple[int, ...]:
        return tuple(part for part in connection.dialect.server_version_info or () if isinstance(part, int))

    def _expired(self, table: Table, since: Column[object]) -> Expired:
        return Expired(table, since)  # type: ignore[arg-type]  # a column of a Table made at run time

    def _counts(self) -> Counting:
        return Counting(self.consumed, self.attempts)
