"""`IdempotentConsumer`: a handler's database effect happens once per event and consumer name.

A broker delivers at least once; the second time must change nothing. For each message: insert the mark (consumer, event id), run the
handler, commit both, and only then return, so that the caller acknowledges what is certainly kept. A duplicate finds the mark, a twin
that arrives meanwhile waits for it, and a crash anywhere before the commit leaves neither mark nor effect: the redelivery runs it.
"""

from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Protocol, Self, TypeVar, overload

from sqlalchemy.orm import Session

from outbox_consumer.cache import Cache
from outbox_consumer.consumption import Consumption, OnError
from outbox_consumer.decorators import make_idempotent
from outbox_consumer.foreign import IdFrom
from outbox_consumer.handlers import SYNC, SYNC_BATCH, WarnOnce, arguments_wanted, finished
from outbox_consumer.outcome import Outcome
from outbox_consumer.sessions import SessionSource, SyncSessions
from outbox_consumer.settings import ConsumerSettings
from outbox_consumer.telemetry import Telemetry
from outbox_shared.adapters import Call
from outbox_shared.transaction import Transaction

M = TypeVar("M")
R = TypeVar("R")
P = ParamSpec("P")
Owner = TypeVar("Owner")

_CLAIM = Call("consumer.claim(session, message)", "AsyncIdempotentConsumer")
_CLAIM_BATCH = Call("consumer.claim_batch(session, messages)", "AsyncIdempotentConsumer")


class IdempotentConsumer:
    """Consumes each event once under one name. Thread-safe; one per process and name is enough.

    `cache` remembers consumed ids in front of the database. It may serve several consumers, and is its maker's to close; without it the
    settings decide. `id_from` finds the id in messages of producers that set no outbox_event_id. `telemetry` tells metrics and traces
    elsewhere than in the process's own registry and provider.
    """

    def __init__(
        self,
        sessions: SessionSource,
        name: str | None = None,
        *,
        cache: Cache | None = None,
        settings: ConsumerSettings | None = None,
        id_from: IdFrom | None = None,
        telemetry: Telemetry | None = None,
    ) -> None:
        self._consumption = Consumption(SyncSessions(sessions), name, cache, settings, id_from, telemetry)
        self.name, self.settings = self._consumption.name, self._consumption.settings
        self._warn_once = WarnOnce()
        self._consumption.create_tables()

    @overload
    def consume(self, message: M, handler: Callable[[Session, M], R]) -> Outcome[R]: ...
    @overload
    def consume(self, message: object, handler: Callable[[Session], R]) -> Outcome[R]: ...
    @overload
    def consume(self, message: object, handler: Callable[[], R]) -> Outcome[R]: ...

    def consume(self, message: object, handler: Callable[..., R]) -> Outcome[R]:
        """Run `handler(session, message)` if this event is new here, and commit its changes with the mark.

        Whatever the handler raises rolls everything back and comes out unchanged. When this returns, the message can be acknowledged.
        """
        wanted = arguments_wanted(handler, SYNC)
        if not wanted:
            self._warn_once.without_session(handler)

        def work(session: Session) -> R:
            result: R = finished(handler, handler(*(session, message)[:wanted]))
            return result

        return self._consumption.one(message, work)

    @overload
    def consume_batch(
        self, messages: Iterable[M], handler: Callable[[Session, list[M]], R], on_error: OnError = "raise"
    ) -> list[Outcome[R]]: ...
    @overload
    def consume_batch(
        self, messages: Iterable[object], handler: Callable[[Session], R], on_error: OnError = "raise"
    ) -> list[Outcome[R]]: ...
    @overload
    def consume_batch(
        self, messages: Iterable[object], handler: Callable[[], R], on_error: OnError = "raise"
    ) -> list[Outcome[R]]: ...

    def consume_batch(
        self, messages: Iterable[Any], handler: Callable[..., R], on_error: OnError = "raise"
    ) -> list[Outcome[R]]:
        """Run `handler(session, fresh)` once for those of `messages` that are new here, in their order, in one transaction.

        Returns one outcome for each message, in order. The handler is not called where nothing is new. If it raises, nothing of the
        batch is consumed and its error comes out; with `on_error="bisect"` the batch is tried again by halves, each a transaction of
        its own, until the bad messages are alone: they are FAILED, with the error, and the others are committed.
        """
        wanted = arguments_wanted(handler, SYNC_BATCH)
        if not wanted:
            self._warn_once.without_session(handler)

        def work(session: Session, fresh: list[Any]) -> R:
            result: R = finished(handler, handler(*(session, fresh)[:wanted]))
            return result

        return self._consumption.batch(messages, work, on_error)

    def claim(self, transaction: Transaction, message: object) -> bool:
        """Mark the event as consumed in a transaction of yours. True: it is new, do the work; False: it was consumed before.

        The mark is kept or lost with your transaction. After an error of this call, roll back.
        """
        return self._consumption.claim(transaction, message, _CLAIM)

    def claim_batch(self, transaction: Transaction, messages: Iterable[M]) -> list[M]:
        """Mark many in a transaction of yours, and return those that are new, in their order."""
        return self._consumption.claim_batch(transaction, messages, _CLAIM_BATCH)

    @overload
    def idempotent(self, function: Callable[Concatenate[Session, P], R], /) -> Callable[P, R | None]: ...
    @overload
    def idempotent(
        self, function: Callable[Concatenate[Owner, Session, P], R], /
    ) -> Callable[Concatenate[Owner, P], R | None]: ...
    @overload
    def idempotent(self, /, *, session: str = "session", message: str | None = None) -> "_Decorator": ...

    def idempotent(
        self, function: Callable[..., Any] | None = None, /, *, session: str = "session", message: str | None = None
    ) -> Any:
        """Decorate a message callback: its session parameter is filled here, its caller passes the rest.

        The parameters are found as `session` and `message`; `@consumer.idempotent(session="db", message="record")` names others.
        The decorated function returns what the function returned, and None for a duplicate.
        """

        def decorate(function: Callable[..., R]) -> Callable[..., R | None]:
            return make_idempotent(function, self._consumption.one, session=session, message=message)

        return decorate if function is None else decorate(function)

    def close(self) -> None:
        """End what this consumer does in the background. What is being consumed goes on."""
        for kept in self._consumption.close():
            kept.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class _Decorator(Protocol):
    def __call__(self, function: Callable[..., R], /) -> Callable[..., R | None]: ...
