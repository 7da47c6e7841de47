"""outbox_state: few rows that all processes share, each under a kind and a name.

schema       the version of the tables, a row for each side
relay        a relay's heartbeat: it is alive until `until`
lease        one process at a time does this duty, until `until`
pause        `*`, `type:order-created` or `topic:orders`: stored, but not sent
suspects     an event type that has rows whose relay died over them
epoch        `cache`: what the keys of consumers' caches begin with; another value, and every cache has forgotten everything

An upsert is an UPDATE and, where nothing was there, an INSERT behind a savepoint: the same on every database, and rare enough.
"""

from datetime import datetime
from typing import Any

from sqlalchemy import Float, Table, bindparam, case, delete, insert, or_, select, update
from sqlalchemy.engine import Connection, Row
from sqlalchemy.exc import IntegrityError

from outbox_shared.sqltypes import statement_time, statement_time_plus, wall_time, wall_time_plus

RELAY, LEASE, PAUSE, SUSPECTS, EPOCH = "relay", "lease", "pause", "suspects", "epoch"


class State:
    """Reads and writes the table, in transactions that the caller owns."""

    def __init__(self, table: Table) -> None:
        self._table = table
        where = (table.c.kind == bindparam("kind_"), table.c.name == bindparam("name_"))
        until = wall_time_plus(bindparam("seconds_", type_=Float))
        written = {
            "until": until,
            "updated_at": wall_time(),
            "holder": bindparam("holder_"),
            "value": bindparam("value_"),
        }
        free = or_(table.c.until < statement_time(), table.c.holder == bindparam("holder_"))
        self._write = update(table).where(*where).values(written)
        self._take = update(table).where(*where, free).values(written)
        # past a row that somebody else is just taking: whoever stands still over it must not hold up all the others
        self._find_free = select(table.c.name).where(*where, free).with_for_update(skip_locked=True)
        self._insert = insert(table).values(written)
        self._delete = delete(table).where(*where)

    # Any row.

    def put(
        self, connection: Connection, kind: str, name: str, *, seconds: float = 0.0, value: str | None = None
    ) -> None:
        """Write a row, whether it was there or not."""
        given = {"kind_": kind, "name_": name, "holder_": None, "value_": value, "seconds_": seconds}
        if not connection.execute(self._write, given).rowcount:
            self._put_new(connection, given)

    def put_first(self, connection: Connection, kind: str, name: str, value: str) -> bool:
        """Write a row unless it is there; False if another process was first."""
        given = {"kind_": kind, "name_": name, "holder_": None, "value_": value, "seconds_": 0.0}
        return not self._is_there(connection, kind, name) and self._put_new(connection, given)

    def value(self, connection: Connection, kind: str, name: str) -> str | None:
        table = self._table
        found = select(table.c.value).where(table.c.kind == kind, table.c.name == name)
        return connection.execute(found).scalar()

    def remove(self, connection: Connection, kind: str, name: str) -> bool:
        return connection.execute(self._delete, {"kind_": kind, "name_": name}).rowcount == 1

    def remove_unless_touched(self, connection: Connection, kind: str, name: str, seen: datetime) -> None:
        """Remove a row as it was when we looked; one that somebody wrote again since then stays."""
        unchanged = self._delete.where(self._table.c.updated_at == bindparam("seen_"))
        connection.execute(unchanged, {"kind_": kind, "name_": name, "seen_": seen})

    def rows(self, connection: Connection, *kinds: str) -> list[Row[Any]]:
        """Every row of these kinds, with `alive`: whether its `until` is still ahead, by the database's clock."""
        columns = self._table.c
        alive = case((columns.until > statement_time(), 1), else_=0).label("alive")
        found = select(self._table, alive).where(columns.kind.in_(kinds)).order_by(columns.kind, columns.name)
        return list(connection.execute(found).all())

    def now(self, connection: Connection) -> datetime:
        """The clock by which `until` is meant."""
        return connection.execute(select(statement_time())).scalar_one()

    def remove_old(self, connection: Connection, kind: str, seconds: float) -> int:
        """Remove rows of a kind that ended so long ago."""
        table = self._table
        old = delete(table).where(table.c.kind == kind, table.c.until < statement_time_plus(-seconds))
        return connection.execute(old).rowcount

    # Leases.

    def take_lease(self, connection: Connection, name: str, holder: str, seconds: float) -> bool:
        """Whether the duty is ours for so long now: it was free, or ours already."""
        given = {"kind_": LEASE, "name_": name, "holder_": holder, "value_": None, "seconds_": seconds}
        if connection.execute(self._find_free, given).first() is not None:
            return connection.execute(self._take, given).rowcount == 1
        # look before the INSERT: a database's log would otherwise tell of a duplicate key at every try
        return not self._is_there(connection, LEASE, name) and self._put_new(connection, given)

    def end_lease(self, connection: Connection, name: str, holder: str) -> None:
        ours = self._delete.where(self._table.c.holder == holder)
        connection.execute(ours, {"kind_": LEASE, "name_": name})

    def _is_there(self, connection: Connection, kind: str, name: str) -> bool:
        table = self._table
        found = select(table.c.name).where(table.c.kind == kind, table.c.name == name)
        return connection.execute(found).first() is not None

    def _put_new(self, connection: Connection, given: dict[str, Any]) -> bool:
        row = {"kind": given["kind_"], "name": given["name_"]}
        rest = {name: given[name] for name in ("holder_", "value_", "seconds_")}
        try:
            with connection.begin_nested():
                connection.execute(self._insert, {**row, **rest})
        except IntegrityError:  # another process was there first
            return False
        return True
