"""The transaction around a handler: opened here, kept whole while the handler runs, committed here.

A handler that ends the transaction by itself would tear mark and effect apart: committed early, a crash leaves half of the work marked as
done; rolled back and then committed here, the event is lost. So its `commit()` is refused before anything is sent (savepoints pass),
and afterwards the transaction must be the very one that it was given, still able to commit.

The refusal sits in the Session's `before_commit`. The engine's `commit` event would be too late: raising there returns a connection with
an open transaction to the pool.
"""

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias, TypeVar

from sqlalchemy import event
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from outbox_consumer.store import ConsumedStore
from outbox_shared.errors import HandlerEndedTransaction

log = logging.getLogger(__name__)

R = TypeVar("R")

Sessions: TypeAlias = "sessionmaker[Any] | scoped_session[Any]"

_SAVEPOINT = "Wrap what may fail in `with session.begin_nested():` and let the rest of the handler go on."


def sessions_of(source: object) -> Sessions:
    """What makes sessions: a sessionmaker or scoped_session as it is, an Engine wrapped in one."""
    if isinstance(source, sessionmaker | scoped_session):
        return source
    if isinstance(source, Engine):
        # what a handler returns can still be read after the commit
        return sessionmaker(source, expire_on_commit=False)
    name = type(source).__name__
    if name.startswith(("Async", "async_")):
        raise TypeError(f"{name} is async: IdempotentConsumer takes a sync sessionmaker, scoped_session or Engine")
    if isinstance(source, Session):
        raise TypeError(
            "IdempotentConsumer makes a session of its own for each message: pass the sessionmaker or the Engine. "
            "To take part in a transaction of yours, write `if consumer.claim(session, message):`"
        )
    if isinstance(source, Connection):
        raise TypeError("pass sessionmaker(connection) to consume inside this Connection's transaction, or its Engine")
    raise TypeError(f"IdempotentConsumer takes a sessionmaker, scoped_session or Engine first, not {name}")


def new_session(sessions: Sessions) -> Session:
    """A session that nobody else uses, also where each thread has one already."""
    made = sessions.session_factory() if isinstance(sessions, scoped_session) else sessions()
    if not isinstance(made, Session):
        raise TypeError(
            f"the session factory makes {type(made).__name__} objects, and this consumer needs a sync Session"
        )
    return made


@contextlib.contextmanager
def fresh_session(sessions: Sessions) -> Iterator[Session]:
    """A session for one message, closed afterwards.

    Where each thread has a scoped session, this one takes its place meanwhile: code that reaches for it works in the same transaction.
    """
    with contextlib.ExitStack() as after:
        session = new_session(sessions)
        after.callback(session.close)
        if isinstance(sessions, scoped_session):
            registry = sessions.registry
            if registry.has():
                after.callback(registry.set, registry())
            else:
                after.callback(registry.clear)
            registry.set(session)
        yield session


@contextlib.contextmanager
def transaction(session: Session) -> Iterator[None]:
    """Begin; commit when the block ends; undo everything when it raises, and let that error out unchanged."""
    session.begin()
    try:
        yield
        session.commit()
    except BaseException:
        _roll_back(session)
        raise


def run_guarded(session: Session, connection: Connection, store: ConsumedStore, work: Callable[[Session], R]) -> R:
    """Run `work` in the session's open transaction; HandlerEndedTransaction if that is not the transaction in which it ends."""
    root, core = session.get_transaction(), connection.get_transaction()
    refused = False

    def refuse(_session: Session) -> None:
        nonlocal refused
        if not session.in_nested_transaction():
            refused = True
            raise HandlerEndedTransaction(
                "the handler called commit(): the consumer commits after it, its changes and the mark together. Remove the "
                "commit(); to keep a part when a later one fails, use `with session.begin_nested():`"
            )

    event.listen(session, "before_commit", refuse)
    try:
        result = work(session)
    finally:
        event.remove(session, "before_commit", refuse)
    if refused:
        raise HandlerEndedTransaction(
            "the handler called commit() and hid the error that this raised: nothing was consumed. Remove the commit()"
        )
    same = session.get_transaction() is root and not connection.closed and connection.get_transaction() is core
    if root is None or core is None or not same:
        raise HandlerEndedTransaction(
            f"the handler ended the transaction that it was given (rollback(), close() or the connection's commit()). {_SAVEPOINT}"
        )
    active = root.is_active and core.is_active and not connection.invalidated
    if not (active and store.can_commit(connection)):
        raise HandlerEndedTransaction(
            "a statement of the handler failed and the handler went on: the database has given the transaction up, and a commit "
            f"would silently keep nothing. {_SAVEPOINT}"
        )
    return result


def _roll_back(session: Session) -> None:
    """Undo everything. If even that fails, the connection is broken: it is dropped, and the error that led here comes out."""
    try:
        session.rollback()
    except Exception:
        log.debug("rollback failed; the connection is dropped", exc_info=True)
        with contextlib.suppress(Exception):
            session.invalidate()
