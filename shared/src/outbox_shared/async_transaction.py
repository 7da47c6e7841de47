"""The sync side of an async caller's transaction: everything that touches the database is written once, below this line."""

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

import greenlet  # noqa: F401 - without it SQLAlchemy 2.0 fails at the first use only, and 2.1 no longer installs it
from sqlalchemy.engine import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session
from sqlalchemy.util import greenlet_spawn  # what run_sync itself is made of

from outbox_shared.adapters import Call, ForeignTransaction
from outbox_shared.errors import NoActiveTransaction

R = TypeVar("R")

AsyncTransaction: TypeAlias = "AsyncSession | async_scoped_session[Any] | AsyncConnection | ForeignTransaction"
"""What the async classes take first."""


async def in_sync(transaction: AsyncTransaction, work: Callable[[Any], R], call: Call) -> R:
    """Run `work` with the sync Session, Connection or adapter behind `transaction`, where it may wait for the database."""
    return await greenlet_spawn(work, sync_side(transaction, call))


def sync_side(transaction: Any, call: Call) -> Any:
    """The sync Session, Connection or adapter behind `transaction`."""
    if isinstance(transaction, async_scoped_session):
        transaction = transaction()
    if isinstance(transaction, AsyncSession):
        return transaction.sync_session
    if isinstance(transaction, AsyncConnection):
        if transaction.sync_connection is None:
            raise NoActiveTransaction(
                "This AsyncConnection was not opened. Write\n\n    async with engine.begin() as connection:\n"
                f"        {call.through('connection')}"
            )
        return transaction.sync_connection
    if isinstance(transaction, ForeignTransaction) and transaction.is_async:
        return transaction
    name = type(transaction).__name__
    if isinstance(transaction, Session | scoped_session | Connection | ForeignTransaction):
        raise TypeError(f"{name} is sync: use {call.other_form} with it, or pass an AsyncSession to {call.line}")
    raise TypeError(
        f"The first argument is the transaction, an AsyncSession or AsyncConnection, not {name}: {call.line}"
    )
