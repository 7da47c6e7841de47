"""Telling somebody when a transaction's work can be seen by others: once COMMIT has returned, and not after a rollback.

An engine's `commit` event fires before COMMIT is sent. What comes after it is that the connection goes back to its pool, sync or async;
and for a Session on a Connection that somebody keeps, the session's own `after_commit`. A Connection that is kept and committed again
and again tells nothing until it is given back.
"""

import threading
import weakref
from collections.abc import Callable
from typing import Any, TypeAlias

from sqlalchemy import event
from sqlalchemy.engine import Connection, Dialect, Engine
from sqlalchemy.orm import Session

from outbox_shared.origins import EngineOrigin, Origin

Tell: TypeAlias = "Callable[[Origin], None]"

_NEWS = "outbox_news"
"""A key in the `info` of a connection's record: who is to be told."""

_origins: "weakref.WeakKeyDictionary[Dialect, EngineOrigin]" = weakref.WeakKeyDictionary()
"""By dialect: an engine keeps its own, whatever is done to its pool and options."""
_guard = threading.RLock()


def when_visible(connection: Connection, session: Session | None, tell: Tell) -> None:
    """Call `tell` once what is done in this transaction can be seen; `tell` must not raise. Sends nothing."""
    info = connection.info
    news = info.get(_NEWS)
    if news is None:
        if connection.dialect not in _origins:
            _watch(connection.engine)
        news = info[_NEWS] = set()
    news.add(tell)
    if session is not None and session.bind is connection and _NEWS not in session.info:
        session.info[_NEWS] = True
        event.listen(session, "after_commit", _after_commit)


def _watch(engine: Engine) -> None:
    with _guard:
        if engine.dialect in _origins:
            return
        base = _base(engine)
        origin = _origins[engine.dialect] = EngineOrigin(base)

        def checkin(_driver: Any, record: Any) -> None:
            _tell(record.info, origin)

        # a pool keeps its listeners when the engine is disposed of and makes another one
        event.listen(base.pool, "checkin", checkin)
        event.listen(base, "rollback", _rolled_back)


def _base(engine: Engine) -> Engine:
    """The engine behind those that `execution_options` made of it."""
    while (proxied := getattr(engine, "_proxied", None)) is not None:
        engine = proxied
    return engine


def _tell(info: dict[Any, Any], origin: Origin) -> None:
    for tell in info.pop(_NEWS, ()):
        tell(origin)


def _rolled_back(connection: Connection) -> None:
    if not connection.closed and not connection.invalidated:  # else there is no record to ask
        connection.info.pop(_NEWS, None)


def _after_commit(session: Session) -> None:
    """Also called when a savepoint is released, and inside of somebody's outer transaction: then nobody can see anything yet."""
    connection = session.bind
    if isinstance(connection, Connection) and not connection.closed and not connection.in_transaction():
        _tell(connection.info, _origins[connection.dialect])
