"""`AsyncOutbox`: the same as `Outbox`, awaited. What touches the database is Outbox's own, run on the sync side of the session."""

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar, Unpack, overload
from uuid import UUID

from outbox_publisher.decorators import Publishing, publishing_async
from outbox_publisher.draft import BatchOptions, EventDraft, Options, draft_of, drafts_of
from outbox_publisher.outbox import BATCH, CANCEL, PUBLISH, Outbox, Published, PublishedBatch
from outbox_publisher.serialization import Serializer
from outbox_publisher.settings import PublisherSettings
from outbox_shared.async_transaction import AsyncTransaction, in_sync, sync_side

R = TypeVar("R")


class AsyncOutbox:
    """The publishing side of an async service: for AsyncSession, AsyncConnection and psycopg's AsyncConnection (adapted)."""

    def __init__(self, settings: PublisherSettings, *, serializer: Serializer | None = None) -> None:
        self._outbox = Outbox(settings, serializer=serializer)

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
        return await self._run(transaction, PUBLISH, lambda sync, call: self._outbox.store(sync, draft, call))

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
        return await self._run(transaction, BATCH, lambda sync, call: self._outbox.store_batch(sync, drafts, call))

    async def cancel(self, transaction: AsyncTransaction, event_id: UUID | str, /) -> bool:
        """Take back an event that still waits; False if it was sent, is being sent or does not exist."""
        return await self._run(transaction, CANCEL, lambda sync, call: self._outbox.remove(sync, event_id, call))

    def publishes(
        self,
        event_type: str,
        *,
        payload: str | Callable[..., Any] | None = None,
        session: str | Callable[..., Any] = "session",
        many: bool = False,
        **options: Any,
    ) -> Callable[[Callable[..., Awaitable[R]]], Callable[..., Awaitable[R]]]:
        """Publish what an async function returns, in the transaction that it was given as `session`; see Outbox.publishes."""
        plan = Publishing(event_type, payload, session, many, options)
        return publishing_async(plan, self, lambda given: sync_side(given, call=f"await {PUBLISH}", sync_form="Outbox"))

    async def _run(self, transaction: AsyncTransaction, call: str, work: Callable[[Any, str], R]) -> R:
        shown = f"await {call}"
        return await in_sync(transaction, lambda sync: work(sync, shown), call=shown, sync_form="Outbox")
