"""`publish()` stores an event in the caller's own transaction: it is there if and only if the caller's change is."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar, Unpack, overload
from uuid import UUID

from outbox_publisher.decorators import Publishing, publishing
from outbox_publisher.draft import BatchOptions, EventDraft, Options, draft_of, drafts_of
from outbox_publisher.prepare import Preparer
from outbox_publisher.serialization import JsonSerializer, Serializer
from outbox_publisher.settings import PublisherSettings
from outbox_publisher.store import Inserts, inserts_for
from outbox_shared.context import current_story
from outbox_shared.driver import Driver
from outbox_shared.errors import MissingTable, PublishError
from outbox_shared.ids import parse_event_id
from outbox_shared.tables import is_missing_table
from outbox_shared.transaction import Transaction, driver_of, open_transaction

R = TypeVar("R")

PUBLISH = 'outbox.publish(session, "order-created", payload, key=order.id)'
BATCH = 'outbox.publish_batch(session, "line-added", lines, key=lambda line: line.order_id)'
CANCEL = "outbox.cancel(session, event_id)"


@dataclass(frozen=True, slots=True)
class Published:
    """The event's id, and whether this call stored it: False for a caller's `event_id` that was there already."""

    id: UUID
    stored: bool


@dataclass(frozen=True, slots=True)
class PublishedBatch:
    """The events' ids in their order, and how many this call stored."""

    ids: tuple[UUID, ...]
    stored: int


class Outbox:
    """The publishing side of a service. Holds settings only: no connection, no thread, nothing to close."""

    def __init__(self, settings: PublisherSettings, *, serializer: Serializer | None = None) -> None:
        self._tables = settings.tables.names
        self._prepare = Preparer(settings, serializer or JsonSerializer()).prepare

    @overload
    def publish(
        self, transaction: Transaction, event: str, payload: Any, /, **options: Unpack[Options]
    ) -> Published: ...
    @overload
    def publish(self, transaction: Transaction, event: EventDraft, /) -> Published: ...

    def publish(self, transaction: Transaction, event: str | EventDraft, /, *payload: Any, **options: Any) -> Published:
        """Store one event in `transaction` (a Session, Connection or adapted connection); it is sent after, and only if, that commits.

        Every error comes before any SQL, so that your transaction is as usable as before. The options:

        key             decides the Kafka partition: str, int or UUID; defaults to `aggregate_id`
        topic           where it goes; defaults to the settings' for this event type
        headers         your own, text by name
        event_id        a UUID or text of yours: publishing it again stores nothing, as long as its row is kept
        delay           how long it waits before it is sent: a timedelta or text such as `10m`; or `not_before`, a datetime
        aggregate_type, aggregate_id, correlation_id, version, occurred_at, content_type
        """
        return self.store(transaction, draft_of(event, payload, options), PUBLISH)

    @overload
    def publish_batch(
        self, transaction: Transaction, events: str, payloads: Iterable[Any], /, **options: Unpack[BatchOptions]
    ) -> PublishedBatch: ...
    @overload
    def publish_batch(self, transaction: Transaction, events: Iterable[EventDraft], /) -> PublishedBatch: ...

    def publish_batch(
        self, transaction: Transaction, events: str | Iterable[EventDraft], /, *payloads: Any, **options: Any
    ) -> PublishedBatch:
        """Store many events at once: payloads of one type, or drafts. An option is a value for all, or a function of the payload.

        One statement where the database has a form for it (PostgreSQL always does). On MariaDB and MySQL events with an `event_id` of
        yours are stored one by one. If any of them is refused, nothing was sent to the database.
        """
        return self.store_batch(transaction, drafts_of(events, payloads, options), BATCH)

    def cancel(self, transaction: Transaction, event_id: UUID | str, /) -> bool:
        """Take back an event that still waits, for example a delayed one; False if it was sent, is being sent or does not exist.

        Like everything else it happens when your transaction commits.
        """
        return self.remove(transaction, event_id, CANCEL)

    def publishes(
        self,
        event_type: str,
        *,
        payload: str | Callable[..., Any] | None = None,
        session: str | Callable[..., Any] = "session",
        many: bool = False,
        **options: Any,
    ) -> Callable[[Callable[..., R]], Callable[..., R]]:
        """Publish what a function returns, in the transaction that it was given as `session`.

        `payload` is a function of the result, or the name of a parameter; `session` the name of another parameter, or a function of
        the arguments (`session=lambda self, **_: self.session`). With `many=True` each item of a returned list is an event.
        """
        plan = Publishing(event_type, payload, session, many, options)
        return publishing(plan, self)

    # The same for AsyncOutbox, which shows its own call in errors.

    def store(self, transaction: Transaction, draft: EventDraft, call: str) -> Published:
        checked = open_transaction(transaction, call=call, async_form="AsyncOutbox")
        event = self._prepare(draft, current_story())
        stored = self._run(driver_of(checked), lambda inserts, driver: inserts.one(driver, event))
        return Published(event.id, stored)

    def store_batch(self, transaction: Transaction, drafts: Iterable[EventDraft], call: str) -> PublishedBatch:
        checked = open_transaction(transaction, call=call, async_form="AsyncOutbox")
        story, events = current_story(), []
        for number, draft in enumerate(drafts):
            try:
                events.append(self._prepare(draft, story))
            except PublishError as error:
                error.add_note(f"event number {number} of this batch, counted from 0")
                raise
        if not events:
            return PublishedBatch((), 0)
        stored = self._run(driver_of(checked), lambda inserts, driver: inserts.many(driver, events))
        return PublishedBatch(tuple(event.id for event in events), stored)

    def remove(self, transaction: Transaction, event_id: UUID | str, call: str) -> bool:
        checked, known = open_transaction(transaction, call=call, async_form="AsyncOutbox"), parse_event_id(event_id)
        return self._run(driver_of(checked), lambda inserts, driver: inserts.cancel(driver, known))

    def _run(self, driver: Driver, work: Callable[[Inserts, Driver], R]) -> R:
        inserts = inserts_for(driver.speech, self._tables)
        try:
            return work(inserts, driver)
        except Exception as error:
            if is_missing_table(error):
                name = inserts.table_name
                raise MissingTable(f"the database has no table {name}: run `outbox-publisher init-db`") from error
            raise
