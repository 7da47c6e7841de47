"""What a consumer's role must be able to do, tried out in a transaction that is rolled back."""

from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy import Table, delete, insert, select, update
from sqlalchemy.engine import Connection

from outbox_consumer.store.upkeep.base import Upkeep
from outbox_shared.ids import new_event_id
from outbox_shared.state import LEASE

_NOBODY = "outbox-doctor"
_ROLES = "docs/how-to/roles.md has the grants for a consumer's role"


@dataclass(frozen=True, slots=True)
class Probe:
    purpose: str
    attempt: Callable[[Upkeep, Connection], None]
    is_needed: bool = False
    remedy: str = _ROLES


def _mark(upkeep: Upkeep, connection: Connection) -> None:
    connection.execute(insert(upkeep.consumed).values(consumer=_NOBODY, event_id=new_event_id()))


def _unmark(upkeep: Upkeep, connection: Connection) -> None:
    _look_and_delete(connection, upkeep.consumed)


def _count_failures(upkeep: Upkeep, connection: Connection) -> None:
    table = upkeep.attempts
    connection.execute(insert(table).values(consumer=_NOBODY, event_id=new_event_id(), attempts=1))
    connection.execute(update(table).where(table.c.consumer == _NOBODY).values(attempts=2))
    _look_and_delete(connection, table)


def _hold_a_lease(upkeep: Upkeep, connection: Connection) -> None:
    upkeep.state.put(connection, LEASE, _NOBODY)
    upkeep.state.put(connection, LEASE, _NOBODY)
    upkeep.state.remove(connection, LEASE, _NOBODY)


def _look_and_delete(connection: Connection, table: Table) -> None:
    connection.execute(select(table.c.event_id).where(table.c.consumer == _NOBODY).limit(1))
    connection.execute(delete(table).where(table.c.consumer == _NOBODY))


_ELSEWHERE = f"another role may do it (outbox-consumer cleanup, with clean-up.enabled: false here); else {_ROLES}"

PROBES = (
    Probe("mark events as consumed", _mark, is_needed=True),
    Probe("clean up consumed rows", _unmark, remedy=_ELSEWHERE),
    Probe("hold the lease for cleaning", _hold_a_lease, remedy=_ELSEWHERE),
    Probe("count a message's failures", _count_failures),
)
