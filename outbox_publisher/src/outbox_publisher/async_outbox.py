"""`AsyncOutbox`: the same as `Outbox`, awaited. What touches the database is Outbox's own, run on the sync side of the session."""

from collections.abc import Callable, Coroutine, Iterable
from typing import Any, ParamSpec, TypeVar, Unpack, overload
from uuid import UUID

from outbox_publisher.decorators import Publishing, publishing_async
from outbox_publisher.draft import (
    BatchOptions,
    EventDraft,
    Options,
    PublishesOptions,
    draft_of,
    drafts_of,
    id_to_cancel,
)
from outbox_publisher.serialization import Serializer
from outbox_publisher.settings import PublisherSettings
from outbox_publisher.writer import EventWriter, Published, PublishedBatch
from outbox_shared.adapters import Call
from outbox_shared.async_transaction import AsyncTransaction, in_sync, sync_side

P = ParamSpec("P")
R = TypeVar("R")

_PUBLISH = Call('outbox.publish(session, "order-created", payload, key=order.id)', "Outbox", is_async=True)
_BATCH = Call('outbox.publish_batch(session, "line-added", lines)', "Outbox", is_async=True)
_CANCEL = Call("outbox.cancel(session, published.id)", "Outbox", is_async=True)


class AsyncOutbox:
    """The publishing side of an async service: for AsyncSession, AsyncConnection and psycopg's AsyncConnection (adapted)."""

    def __init__(self, settings: PublisherSettings, *, serializer: Serializer | None = None) -> None:
        self._writer = EventWriter(settings, serializer)

    @overload
    async def publish(
        self, transaction: AsyncTransaction, event: str, payload: Any, /, **options: Unpack[Options]
    ) -> Published: ...
    @overload
    async def publish(self, transaction: AsyncTransaction, event: EventDraft, /) -> Published: ...

    async def publish(
        self, transaction: AsyncTransaction, event: str | EventDraft, /, *payload: Any, **options: Any
    ) -> Published:
        """Store one event in `transaction`; it is sent after, and only if, that commits. The options are those of Outbox.publish."""
        draft = draft_of(event, payload, options)
        return await in_sync(transaction, lambda sync: self._writer.store(sync, draft, _PUBLISH), _PUBLISH)

    @overload
    async def publish_batch(
        self, transaction: AsyncTransaction, events: str, payloads: Iterable[Any], /, **options: Unpack[BatchOptions]
    ) -> PublishedBatch: ...
    @overload
    async def publish_batch(self, transaction: AsyncTransaction, events: Iterable[EventDraft], /) -> PublishedBatch: ...

    async def publish_batch(
        self, transaction: AsyncTransaction, events: str | Iterable[EventDraft], /, *payloads: Any, **options: Any
    ) -> PublishedBatch:
        """Store many events at once: payloads of one type, or drafts. An option is a value for all, or a function of the payload."""
        drafts = drafts_of(events, payloads, options)
        return await in_sync(transaction, lambda sync: self._writer.store_batch(sync, drafts, _BATCH), _BATCH)

    async def cancel(self, transaction: AsyncTransaction, event_id: UUID | str, /) -> bool:
        """Take back an event that still waits; False if it was sent, is being sent or does not exist."""
        known = id_to_cancel(event_id)
        return await in_sync(transaction, lambda sync: self._writer.cancel(sync, known, _CANCEL), _CANCEL)

    async def wake(self) -> None:
        """Tell relays that you have committed, where your connection cannot; see Outbox.wake."""
        self._writer.wake(on_loop=True)

    def publishes(
        self,
        event_type: str,
        *,
        payload: str | Callable[..., Any] | None = None,
        session: str | Callable[..., Any] = "session",
        many: bool = False,
        **options: Unpack[PublishesOptions],
    ) -> Callable[[Callable[P, Coroutine[Any, Any, R]]], Callable[P, Coroutine[Any, Any, R]]]:
        """Publish what an async function returns, in the transaction that it was given as `session`; see Outbox.publishes."""
        plan = Publishing(event_type, payload, session, many, options)
        return publishing_async(plan, self, lambda given: sync_side(given, _PUBLISH))
