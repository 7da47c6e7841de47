"""`publish()` stores an event in the caller's own transaction: it is there if and only if the caller's change is."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy.exc import DBAPIError

from outbox_publisher.serialization import serialize
from outbox_publisher.settings import PublisherSettings
from outbox_publisher.store import store_for
from outbox_publisher.validation import headers_of, key_of, text_of
from outbox_shared.errors import MissingTable, PublishError, UnknownEventType
from outbox_shared.headers import DEFAULT_CONTENT_TYPE
from outbox_shared.ids import lane_of, new_event_id
from outbox_shared.tables import EVENT_TYPE_LENGTH, is_missing_table
from outbox_shared.transaction import Transaction, join, open_transaction

_CALL = 'outbox.publish(session, "order-created", payload, key=order.id)'


@dataclass(frozen=True, slots=True)
class Published:
    """The event's id, and whether this call stored it."""

    id: UUID
    stored: bool


class Outbox:
    """The publishing side of a service. Holds settings only: no connection, no thread, nothing to close."""

    def __init__(self, settings: PublisherSettings) -> None:
        self._settings = settings

    def publish(
        self,
        transaction: Transaction,
        event_type: str,
        payload: Any,
        *,
        key: str | int | UUID | None = None,
        topic: str | None = None,
        headers: Mapping[str, str] | None = None,
        aggregate_type: str | None = None,
        aggregate_id: str | int | UUID | None = None,
        correlation_id: str | None = None,
        version: int | None = None,
        occurred_at: datetime | None = None,
        content_type: str = DEFAULT_CONTENT_TYPE,
    ) -> Published:
        """Store one event in `transaction` (a Session or Connection); it is sent after, and only if, that commits.

        Every error comes before any SQL, so that your transaction is as usable as before. `key` decides the Kafka partition and
        defaults to `aggregate_id`.
        """
        checked = open_transaction(transaction, call=_CALL, async_form="AsyncOutbox")
        event_id = new_event_id()
        own_headers = headers_of(headers)
        aggregate = key_of("aggregate_id", aggregate_id)
        message_key = key_of("key", key) or aggregate
        row = {
            "id": event_id,
            "lane": lane_of(message_key, event_id),
            "event_type": text_of("event_type", event_type, EVENT_TYPE_LENGTH),
            "topic": self._topic(event_type, topic),
            "key": message_key,
            "headers": json.dumps(own_headers) if own_headers else None,
            "aggregate_type": _optional("aggregate_type", aggregate_type),
            "aggregate_id": aggregate,
            "correlation_id": _optional("correlation_id", correlation_id),
            "version": _version(version),
            "occurred_at": _aware(occurred_at),
            "content_type": text_of("content_type", content_type),
            "payload": serialize(payload, self._settings.max_payload),
        }
        connection = join(checked)
        store = store_for(connection.dialect.name, self._settings.tables.names)
        try:
            store.insert(connection, row)
        except DBAPIError as error:
            if is_missing_table(error):
                name = store.tables.events.fullname
                raise MissingTable(f"the database has no table {name}: run `outbox-publisher init-db`") from error
            raise
        return Published(event_id, stored=True)

    def _topic(self, event_type: str, given: str | None) -> str:
        """Given here, else by event type, else the default: resolved once and stored, so that every relay sends it to the same place."""
        topic = self._settings.delivery_of(event_type).topic if given is None else given
        if topic is None:
            raise UnknownEventType(
                f"no topic is known for {event_type!r}: pass topic=…, or set outbox.publisher.events.{event_type}.topic "
                "or outbox.publisher.defaults.topic"
            )
        return text_of("topic", topic)


def _optional(name: str, value: str | None) -> str | None:
    return None if value is None else text_of(name, value)


def _version(version: Any) -> int | None:
    if version is None:
        return None
    if isinstance(version, int) and not isinstance(version, bool) and 0 <= version < 2**31:
        return version
    raise PublishError(f"version must be a whole number from 0 to {2**31 - 1}, not {version!r}")


def _aware(moment: datetime | None) -> datetime | None:
    if moment is not None and moment.tzinfo is None:
        raise PublishError("occurred_at has no time zone: write datetime.now(UTC)")
    return moment
