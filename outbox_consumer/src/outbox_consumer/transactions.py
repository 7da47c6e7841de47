"""The transaction around a handler: opened here, kept whole while the handler runs, committed here.

A handler that ends the transaction by itself would tear mark and effect apart: committed early, a crash leaves half of the work marked as
done; rolled back and then committed here, the event is lost. So its `commit()` is refused before anything is sent (savepoints pass),
and afterwards the transaction must be the very one that it was given, still able to commit.

The refusal sits in the Session's `before_commit`, and before statements such as ROLLBACK. The engine's `commit` event would be too late:
raising there returns a connection with an open transaction to the pool.
"""

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from sqlalchemy import event
from sqlalchemy.engine import Connection
from sqlalchemy.orm import Session

from outbox_consumer.hidden_errors import errors_on
from outbox_consumer.store import ConsumedStore
from outbox_shared.errors import HandlerEndedTransaction

log = logging.getLogger(__name__)

R = TypeVar("R")

_SAVEPOINT = "Wrap what may fail in `with session.begin_nested():` and let the rest of the handler go on."
_GIVEN_UP = (
    "a statement of the handler failed and the handler went on: the database has given the transaction up, and a commit "
    f"would silently keep nothing of it. {_SAVEPOINT}"
)


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


def run_guarded(session: Session, connection: Connection, store: ConsumedStore, work: Callable[[], R]) -> R:
    """Run `work` in the session's open transaction; HandlerEndedTransaction if that is not the transaction in which it ends."""
    root, core = session.get_transaction(), connection.get_transaction()
    with _refusing(session, connection, store) as refused, errors_on(connection) as hidden:
        result = work()
    if refused:
        raise HandlerEndedTransaction(
            f"{refused[0]} and hid the error that this raised: nothing was consumed. {_SAVEPOINT}"
        )
    same = session.get_transaction() is root and not connection.closed and connection.get_transaction() is core
    if root is None or core is None or not same:
        raise HandlerEndedTransaction(
            f"the handler ended the transaction that it was given (rollback(), close() or the connection's commit()). {_SAVEPOINT}"
        )
    active = root.is_active and core.is_active and not connection.invalidated
    if not (active and store.can_commit(connection)):
        raise HandlerEndedTransaction(_GIVEN_UP) from _telling(hidden, store)
    for error in hidden:
        if not store.outlived(connection, error):
            raise HandlerEndedTransaction(_GIVEN_UP) from error
    return result


@contextlib.contextmanager
def _refusing(session: Session, connection: Connection, store: ConsumedStore) -> Iterator[list[str]]:
    """Raise where the transaction would be ended, before anything is sent; yields what was refused."""
    refused: list[str] = []

    def refuse_commit(_session: Session) -> None:
        if not session.in_nested_transaction():
            refused.append("the handler called commit()")
            raise HandlerEndedTransaction(
                "the handler called commit(): the consumer commits after it, its changes and the mark together. Remove the "
                "commit(); to keep a part when a later one fails, use `with session.begin_nested():`"
            )

    def refuse_sql(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if store.ends_transaction(statement):
            refused.append(f"the handler executed {statement[:40]!r}")
            raise HandlerEndedTransaction(
                f"the handler executed {statement[:40]!r}, which would end the transaction of its changes and the mark. {_SAVEPOINT}"
            )

    event.listen(session, "before_commit", refuse_commit)
    event.listen(connection, "before_cursor_execute", refuse_sql)
    try:
        yield refused
    finally:
        event.remove(session, "before_commit", refuse_commit)
        event.remove(connection, "before_cursor_execute", refuse_sql)


def _telling(hidden: Sequence[BaseException], store: ConsumedStore) -> BaseException | None:
    """The error that explains best what became of the transaction: a conflict, after which it is begun again, else the first."""
    conflicts = [error for error in hidden if store.is_conflict(error)]
    return next(iter([*conflicts, *hidden]), None)


def _roll_back(session: Session) -> None:
    """Undo everything. If even that fails, the connection is broken: it is dropped, and the error that led here comes out."""
    try:
        session.rollback()
    except Exception:
        log.debug("rollback failed; the connection is dropped", exc_info=True)
        with contextlib.suppress(Exception):
            session.invalidate()
