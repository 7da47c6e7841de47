"""`publish()` stores an event in the caller's own transaction: it is there if and only if the caller's change is."""

from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, TypeVar, Unpack, overload
from uuid import UUID

from outbox_publisher.decorators import Publishing, publishing
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
from outbox_shared.transaction import Transaction

P = ParamSpec("P")
R = TypeVar("R")

_PUBLISH = Call('outbox.publish(session, "order-created", payload, key=order.id)', "AsyncOutbox")
_BATCH = Call('outbox.publish_batch(session, "line-added", lines, key=lambda line: line.order_id)', "AsyncOutbox")
_CANCEL = Call("outbox.cancel(session, published.id)", "AsyncOutbox")


class Outbox:
    """The publishing side of a service. Nothing to close: what wakes relays is your engine's, and ends with that."""

    def __init__(self, settings: PublisherSettings, *, serializer: Serializer | None = None) -> None:
        self._writer = EventWriter(settings, serializer)

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
        return self._writer.store(transaction, draft_of(event, payload, options), _PUBLISH)

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
        return self._writer.store_batch(transaction, drafts_of(events, payloads, options), _BATCH)

    def cancel(self, transaction: Transaction, event_id: UUID | str, /) -> bool:
        """Take back an event that still waits, for example a delayed one; False if it was sent, is being sent or does not exist.

        Like everything else it happens when your transaction commits.
        """
        return self._writer.cancel(transaction, id_to_cancel(event_id), _CANCEL)

    def wake(self) -> None:
        """Tell relays that you have committed, where your connection cannot: psycopg's own, and one of SQLAlchemy's that you keep.

        After the commit. The hint goes to `database-url` of the settings, on a connection and a thread of its own; it may be lost, and
        does nothing with `wakeup: poll`. Elsewhere the commit itself is the hint.
        """
        self._writer.wake()

    def publishes(
        self,
        event_type: str,
        *,
        payload: str | Callable[..., Any] | None = None,
        session: str | Callable[..., Any] = "session",
        many: bool = False,
        **options: Unpack[PublishesOptions],
    ) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Publish what a function returns, in the transaction that it was given as `session`.

        `payload` is a function of the result, or the name of a parameter; `session` the name of another parameter, or a function of
        the arguments (`session=lambda self, **_: self.session`). With `many=True` each item of a returned list is an event.
        """
        plan = Publishing(event_type, payload, session, many, options)
        return publishing(plan, self)
