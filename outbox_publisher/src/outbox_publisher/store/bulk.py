"""Many rows of one claim changed at once, each with values of its own, fenced by the claim's token."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias
from uuid import UUID

from sqlalchemy import ColumnElement, Table, bindparam, update
from sqlalchemy.engine import Connection
from sqlalchemy.types import TypeEngine

from outbox_shared.sqltypes import EventId

Columns: TypeAlias = Mapping[str, TypeEngine[Any]]
Given: TypeAlias = Mapping[str, ColumnElement[Any]]
Assign: TypeAlias = Callable[[Given], dict[str, Any]]


class BulkUpdate(Protocol):
    """`columns` are what each row brings (the first is its id); `assign` says what becomes of them."""

    def __init__(self, events: Table, columns: Columns, assign: Assign) -> None: ...

    def run(self, connection: Connection, token: UUID, rows: Sequence[tuple[Any, ...]]) -> int:
        """Returns how many rows were still this token's."""


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

    def run(self, connection: Connection, token: UUID, rows: Sequence[tuple[Any, ...]]) -> int:
        parameters = [{**dict(zip(self._names, row, strict=True)), "token": token} for row in rows]
        return connection.execute(self._statement, parameters).rowcount
