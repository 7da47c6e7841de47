"""What the database refused while a handler ran, also where the handler hid it.

A handler may catch a database error and go on. Most often that is harmless, but some errors end the whole transaction (a deadlock on
MariaDB, any error on PostgreSQL outside of a savepoint), and not every driver can be asked about it afterwards. So the errors of one
connection are kept while a handler runs on it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import event
from sqlalchemy.engine import Connection

_KEY = "outbox_consumer_errors"


@contextmanager
def errors_on(connection: Connection) -> Iterator[list[BaseException]]:
    """The driver's errors on this connection inside the block, oldest first."""
    dialect = connection.dialect
    if not event.contains(dialect, "handle_error", _keep):
        event.listen(dialect, "handle_error", _keep)
    errors: list[BaseException] = []
    info = connection.info
    outer = info.get(_KEY)
    info[_KEY] = errors
    try:
        yield errors
    finally:
        if outer is None:
            info.pop(_KEY, None)
        else:
            info[_KEY] = outer


def _keep(context: Any) -> None:
    connection = context.connection
    if connection is None or connection.closed or connection.invalidated:
        return
    errors = connection.info.get(_KEY)
    if errors is not None:
        errors.append(context.original_exception)
