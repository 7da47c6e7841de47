"""A draft becomes a row: everything that can be wrong with an event is found here, before any SQL.

So a mistake leaves the caller's transaction as usable as it was.
"""

import json
from functools import lru_cache
from typing import Any
from uuid import UUID, uuid5

from outbox_publisher.draft import EventDraft
from outbox_publisher.event import NewEvent
from outbox_publisher.serialization import About, Serializer, bounded
from outbox_publisher.settings import PublisherSettings
from outbox_publisher.validation import headers_of, key_of, label_of, line_of, moment_of, text_of, version_of, wait_of
from outbox_shared.context import Story
from outbox_shared.errors import ConfigurationError, PublishError, UnknownEventType
from outbox_shared.ids import lane_of, new_event_id
from outbox_shared.tables import EVENT_TYPE_LENGTH

_IDEMPOTENCY_KEYS = UUID("6b1f1f0e-5a5f-5d0c-9a57-0e6f0c7b0a11")
"""The namespace of ids that are made of text. A constant of the contract, like the form of the name below it."""


class Preparer:
    """Checks and serializes events for one Outbox.

    What the same few events of a program have in common is remembered: a batch of a thousand checks its type and topic once.
    """

    def __init__(self, settings: PublisherSettings, serializer: Serializer) -> None:
        self._settings, self._serializer = settings, serializer
        self._remembered = lru_cache(maxsize=256, typed=True)(self._labels)  # typed: 1 and True are one key otherwise

    def prepare(self, draft: EventDraft, story: Story) -> NewEvent:
        given = (draft.event_type, draft.topic, draft.aggregate_type, draft.content_type)
        try:
            event_type, topic, aggregate_type, content_type = self._remembered(*given)
        except TypeError:  # a list or the like, which nothing can remember: it gets its error from the check itself
            event_type, topic, aggregate_type, content_type = self._labels(*given)
        event_id = new_event_id() if draft.event_id is None else id_of(draft.event_id, event_type, self._settings)
        # most events have few of these: asking here costs less than asking in six functions
        aggregate_id = None if draft.aggregate_id is None else key_of("aggregate_id", draft.aggregate_id)
        key = aggregate_id if draft.key is None else key_of("key", draft.key)
        version = None if draft.version is None else version_of(draft.version)
        occurred_at = None if draft.occurred_at is None else moment_of("occurred_at", draft.occurred_at)
        headers = None if draft.headers is None else headers_of(draft.headers)
        delay = None if draft.delay is None else wait_of(draft.delay)
        not_before = None if draft.not_before is None else moment_of("not_before", draft.not_before)
        if delay is not None and not_before is not None:
            raise PublishError("delay and not_before say the same thing: give one of them")
        body = self._serializer(draft.payload, About(event_id, event_type, version, occurred_at))
        return NewEvent(
            event_id,
            lane_of(key, event_id),
            event_type,
            topic,
            key,
            json.dumps(headers, ensure_ascii=False) if headers else None,
            aggregate_type,
            aggregate_id,
            story.correlation_id if draft.correlation_id is None else line_of("correlation_id", draft.correlation_id),
            story.traceparent,
            story.tracestate,
            story.baggage,
            version,
            occurred_at,
            content_type,
            bounded(body, self._settings.max_payload),
            delay,
            not_before,
            draft.event_id is not None,
        )

    def _labels(
        self, event_type: Any, topic: Any, aggregate_type: Any, content_type: Any
    ) -> tuple[str, str | None, str | None, str]:
        checked = label_of("event_type", event_type, EVENT_TYPE_LENGTH)
        return (
            checked,
            topic_of(checked, topic, self._settings),
            None if aggregate_type is None else line_of("aggregate_type", aggregate_type),
            line_of("content_type", self._serializer.content_type if content_type is None else content_type),
        )


def id_of(given: Any, event_type: str, settings: PublisherSettings) -> UUID:
    """A UUID as it is; text becomes one, apart for each service and type, so that they cannot swallow each other's events."""
    if isinstance(given, UUID):
        return given
    if not isinstance(given, str):
        kind = f"{type(given).__module__}.{type(given).__qualname__}"
        raise PublishError(f"event_id takes uuid.UUID or text, not {kind}: write UUID(...)")
    if not isinstance(given, str):
        raise PublishError(
            f"event_id is a UUID or text, not {type(given).__name__}: write event_id=f'order-{{order.id}}'"
        )
    text = text_of("event_id", given, 512)
    if settings.name is None:
        raise ConfigurationError(
            "an event_id made of text needs publisher.name, which keeps the ids of two services apart: "
            'set it, PublisherSettings(name="shop", …), or pass a UUID'
        )
    return uuid5(_IDEMPOTENCY_KEYS, f"{settings.name}\x00{event_type}\x00{text}")


def topic_of(event_type: str, given: str | None, settings: PublisherSettings) -> str | None:
    """Given here, else by event type, else the default: resolved once and stored, so that every relay sends it to the same place."""
    topic = settings.delivery_of(event_type).topic if given is None else given
    if topic is not None:
        return label_of("topic", topic)
    if settings.sender.type == "handlers":  # those go by the type alone
        return None
    raise UnknownEventType(
        f"no topic is known for {event_type!r}: pass topic=…, or set outbox.publisher.events.{event_type}.topic "
        "or outbox.publisher.defaults.topic"
    )
