"""Many rows changed or deleted at once; those of a claim are fenced by its token."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias
from uuid import UUID

from sqlalchemy import ColumnElement, Table, bindparam, delete, update
from sqlalchemy.engine import Connection
from sqlalchemy.types import TypeEngine

from outbox_publisher.store.hot import Changed, Rows
from outbox_shared.sqltypes import EventId

Columns: TypeAlias = Mapping[str, TypeEngine[Any]]
Given: TypeAlias = Mapping[str, ColumnElement[Any]]
Assign: TypeAlias = Callable[[Given], dict[str, Any]]


class BulkUpdate(Protocol):
    """`columns` are what each row brings (the first is its id); `assign` says what becomes of them."""

    def __init__(self, events: Table, columns: Columns, assign: Assign) -> None: ...

    def run(self, connection: Connection, token: UUID, rows: Sequence[tuple[Any, ...]]) -> Changed:
        """Counts the rows that were still this token's."""


class UpdateByRow:
    """The plain form: one prepared statement, executed for each row."""

    def __init__(self, events: Table, columns: Columns, assign: Assign) -> None:
        self._names = [f"given_{name}" for name in columns]
        given = {name: bindparam(f"given_{name}", type_=kind) for name, kind in columns.items()}
        self._statement = (
            update(events)
            .where(events.c.id == given["id"], events.c.claim_token == bindparam("token", type_=EventId))
            .values(assign(given))
        )

    def run(self, connection: Connection, token: UUID, rows: Sequence[tuple[Any, ...]]) -> Changed:
        parameters = [{**dict(zip(self._names, row, strict=True)), "token": token} for row in rows]
        return Rows(connection.execute(self._statement, parameters).rowcount)


class BulkDelete(Protocol):
    def run(self, connection: Connection, ids: Sequence[UUID], token: UUID | None = None) -> Changed:
        """Delete rows by their ids; with a token, only those that are still its own. Counts those that went."""


class DeleteById:
    """The plain form. `is_one_of` is how the dialect compares with many ids."""

    def __init__(self, table: Table, is_one_of: Callable[[ColumnElement[Any], str], ColumnElement[bool]]) -> None:
        self._any = delete(table).where(is_one_of(table.c.id, "ids_"))
        self._fenced = None
        if "claim_token" in table.c:
            self._fenced = self._any.where(table.c.claim_token == bindparam("token_", type_=EventId))

    def run(self, connection: Connection, ids: Sequence[UUID], token: UUID | None = None) -> Changed:
        if token is None or self._fenced is None:
            return Rows(connection.execute(self._any, {"ids_": list(ids)}).rowcount)
        return Rows(connection.execute(self._fenced, {"ids_": list(ids), "token_": token}).rowcount)
