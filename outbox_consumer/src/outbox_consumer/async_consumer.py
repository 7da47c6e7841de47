"""`AsyncIdempotentConsumer`: the same as IdempotentConsumer, awaited.

What touches the database is written once, on the sync side of the session; this runs it in SQLAlchemy's greenlet, where it may wait for
the driver, and comes back to the event loop for the handler. The handler is awaited in the caller's own task.
"""

from collections.abc import Awaitable, Callable, Coroutine, Iterable
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Protocol, Self, TypeVar, overload

from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.util import await_only, greenlet_spawn

from outbox_consumer.async_sessions import AsyncSessions, AsyncSessionSource
from outbox_consumer.cache import Cache
from outbox_consumer.consumption import Consumption, OnError
from outbox_consumer.decorators import make_idempotent_async
from outbox_consumer.foreign import IdFrom
from outbox_consumer.handlers import ASYNC, ASYNC_BATCH, WarnOnce, arguments_wanted, finished, promised
from outbox_consumer.outcome import Outcome
from outbox_consumer.settings import ConsumerSettings
from outbox_consumer.telemetry import Telemetry
from outbox_shared.adapters import Call
from outbox_shared.async_transaction import AsyncTransaction, in_sync

M = TypeVar("M")
R = TypeVar("R")
P = ParamSpec("P")
Owner = TypeVar("Owner")

_CLAIM = Call("consumer.claim(session, message)", "IdempotentConsumer", is_async=True)
_CLAIM_BATCH = Call("consumer.claim_batch(session, messages)", "IdempotentConsumer", is_async=True)


class AsyncIdempotentConsumer:
    """Consumes each event once under one name, for any number of tasks of one event loop at a time. Handlers are `async def`.

    Its tables are created, where the settings say so, before the first message.
    """

    def __init__(
        self,
        sessions: AsyncSessionSource,
        name: str | None = None,
        *,
        cache: Cache | None = None,
        settings: ConsumerSettings | None = None,
        id_from: IdFrom | None = None,
        telemetry: Telemetry | None = None,
    ) -> None:
        self._consumption = Consumption(AsyncSessions(sessions), name, cache, settings, id_from, telemetry)
        self.name, self.settings = self._consumption.name, self._consumption.settings
        self._warn_once = WarnOnce()

    @overload
    async def consume(self, message: M, handler: Callable[[AsyncSession, M], Awaitable[R]]) -> Outcome[R]: ...
    @overload
    async def consume(self, message: object, handler: Callable[[AsyncSession], Awaitable[R]]) -> Outcome[R]: ...
    @overload
    async def consume(self, message: object, handler: Callable[[], Awaitable[R]]) -> Outcome[R]: ...

    async def consume(self, message: object, handler: Callable[..., Awaitable[R]]) -> Outcome[R]:
        """Await `handler(session, message)` if this event is new here, and commit its changes with the mark.

        Whatever the handler raises rolls everything back and comes out unchanged, cancellation too. When this returns, the message can
        be acknowledged.
        """
        wanted = arguments_wanted(handler, ASYNC)
        if not wanted:
            self._warn_once.without_session(handler)
        return await self._one(message, lambda session: _awaited(handler, handler(*(session, message)[:wanted])))

    @overload
    async def consume_batch(
        self,
        messages: Iterable[M],
        handler: Callable[[AsyncSession, list[M]], Awaitable[R]],
        on_error: OnError = "raise",
    ) -> list[Outcome[R]]: ...
    @overload
    async def consume_batch(
        self, messages: Iterable[object], handler: Callable[[AsyncSession], Awaitable[R]], on_error: OnError = "raise"
    ) -> list[Outcome[R]]: ...
    @overload
    async def consume_batch(
        self, messages: Iterable[object], handler: Callable[[], Awaitable[R]], on_error: OnError = "raise"
    ) -> list[Outcome[R]]: ...

    async def consume_batch(
        self, messages: Iterable[Any], handler: Callable[..., Awaitable[R]], on_error: OnError = "raise"
    ) -> list[Outcome[R]]:
        """Await `handler(session, fresh)` once for those of `messages` that are new; see IdempotentConsumer.consume_batch."""
        wanted = arguments_wanted(handler, ASYNC_BATCH)
        if not wanted:
            self._warn_once.without_session(handler)

        def work(session: AsyncSession, fresh: list[Any]) -> R:
            return _awaited(handler, handler(*(session, fresh)[:wanted]))

        return await greenlet_spawn(self._with_tables, lambda: self._consumption.batch(messages, work, on_error))

    async def claim(self, transaction: AsyncTransaction, message: object) -> bool:
        """Mark the event as consumed in a transaction of yours. True: it is new, do the work; False: it was consumed before."""
        return await in_sync(transaction, lambda sync: self._consumption.claim(sync, message, _CLAIM), _CLAIM)

    async def claim_batch(self, transaction: AsyncTransaction, messages: Iterable[M]) -> list[M]:
        """Mark many in a transaction of yours, and return those that are new, in their order."""
        return await in_sync(
            transaction, lambda sync: self._consumption.claim_batch(sync, messages, _CLAIM_BATCH), _CLAIM_BATCH
        )

    @overload
    def idempotent(
        self, function: Callable[Concatenate[AsyncSession, P], Coroutine[Any, Any, R]], /
    ) -> Callable[P, Coroutine[Any, Any, R | None]]: ...
    @overload
    def idempotent(
        self, function: Callable[Concatenate[Owner, AsyncSession, P], Coroutine[Any, Any, R]], /
    ) -> Callable[Concatenate[Owner, P], Coroutine[Any, Any, R | None]]: ...
    @overload
    def idempotent(self, /, *, session: str = "session", message: str | None = None) -> "_Decorator": ...

    def idempotent(
        self, function: Callable[..., Any] | None = None, /, *, session: str = "session", message: str | None = None
    ) -> Any:
        """Decorate an async message callback; see IdempotentConsumer.idempotent."""

        def decorate(function: Callable[..., Awaitable[R]]) -> Callable[..., Coroutine[Any, Any, R | None]]:
            return make_idempotent_async(function, self._one, _awaited, session=session, message=message)

        return decorate if function is None else decorate(function)

    async def close(self) -> None:
        """End what this consumer does in the background. What is being consumed goes on."""
        for kept in self._consumption.close():
            await kept.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def _one(self, message: object, work: Callable[[AsyncSession], R]) -> Outcome[R]:
        return await greenlet_spawn(self._with_tables, lambda: self._consumption.one(message, work))

    def _with_tables(self, work: Callable[[], R]) -> R:
        self._consumption.create_tables()
        return work()


def _awaited(handler: Callable[..., Awaitable[R]], promise: Awaitable[R]) -> R:
    """In the greenlet: let the loop run what the handler returned, in the caller's own task."""
    result: R = finished(handler, await_only(promised(handler, promise)))
    return result


class _Decorator(Protocol):
    def __call__(
        self, function: Callable[..., Coroutine[Any, Any, R]], /
    ) -> Callable[..., Coroutine[Any, Any, R | None]]: ...
