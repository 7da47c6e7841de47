"""Some rows, found past those that others hold, and ours until the transaction ends."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from sqlalchemy import Integer, Select, bindparam
from sqlalchemy.engine import Connection, Row


def some(found: Select[Any]) -> Select[Any]:
    """As many as are bound to `limit_`, at most."""
    return found.limit(bindparam("limit_", type_=Integer))


class Locks(Protocol):
    def run(self, connection: Connection, limit: int, given: Mapping[str, Any]) -> Sequence[Row[Any]]:
        """`limit` rows at most, locked; `given` are the statement's own parameters."""


class LockAsFound:
    """The plain form: what is found is locked."""

    def __init__(self, found: Select[Any]) -> None:
        self._statement = some(found).with_for_update(skip_locked=True)

    def run(self, connection: Connection, limit: int, given: Mapping[str, Any]) -> Sequence[Row[Any]]:
        return connection.execute(self._statement, {"limit_": limit, **given}).all()
