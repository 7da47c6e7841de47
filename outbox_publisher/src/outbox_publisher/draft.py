"""An event as a caller describes it: what `publish` takes as arguments, as one value."""

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from typing import Any, TypeAlias, TypedDict
from uuid import UUID

from outbox_shared.errors import MalformedEventId, PublishError
from outbox_shared.ids import parse_event_id

Key: TypeAlias = str | int | UUID


class Options(TypedDict, total=False):
    """What may be said about an event beside its type and payload."""

    key: Key | None
    topic: str | None
    headers: Mapping[str, str] | None
    event_id: UUID | str | None
    aggregate_type: str | None
    aggregate_id: Key | None
    correlation_id: str | None
    version: int | None
    occurred_at: datetime | None
    delay: timedelta | str | None
    not_before: datetime | None
    content_type: str | None


class BatchOptions(TypedDict, total=False):
    """The same for many payloads: each is a value for all of them, or a function of the payload."""

    key: Key | Callable[[Any], Key | None] | None
    topic: str | Callable[[Any], str | None] | None
    headers: Mapping[str, str] | Callable[[Any], Mapping[str, str] | None] | None
    event_id: Callable[[Any], UUID | str | None] | None
    aggregate_type: str | Callable[[Any], str | None] | None
    aggregate_id: Key | Callable[[Any], Key | None] | None
    correlation_id: str | Callable[[Any], str | None] | None
    version: int | Callable[[Any], int | None] | None
    occurred_at: datetime | Callable[[Any], datetime | None] | None
    delay: timedelta | str | Callable[[Any], timedelta | str | None] | None
    not_before: datetime | Callable[[Any], datetime | None] | None
    content_type: str | Callable[[Any], str | None] | None


class PublishesOptions(TypedDict, total=False):
    """The same for `@publishes`: each is a value, or a function of the result (with `many=True` of the item) and the arguments."""

    key: Key | Callable[..., Key | None] | None
    topic: str | Callable[..., str | None] | None
    headers: Mapping[str, str] | Callable[..., Mapping[str, str] | None] | None
    event_id: Callable[..., UUID | str | None] | None
    aggregate_type: str | Callable[..., str | None] | None
    aggregate_id: Key | Callable[..., Key | None] | None
    correlation_id: str | Callable[..., str | None] | None
    version: int | Callable[..., int | None] | None
    occurred_at: datetime | Callable[..., datetime | None] | None
    delay: timedelta | str | Callable[..., timedelta | str | None] | None
    not_before: datetime | Callable[..., datetime | None] | None
    content_type: str | Callable[..., str | None] | None


@dataclass(slots=True)
class EventDraft:
    """An event that is not stored yet: for code that describes events in one place and publishes them in another."""

    event_type: str
    payload: Any = field(repr=False)
    key: Key | None = None
    topic: str | None = None
    headers: Mapping[str, str] | None = None
    event_id: UUID | str | None = None
    aggregate_type: str | None = None
    aggregate_id: Key | None = None
    correlation_id: str | None = None
    version: int | None = None
    occurred_at: datetime | None = None
    delay: timedelta | str | None = None
    not_before: datetime | None = None
    content_type: str | None = None


ONE_ID_FOR_MANY = "one event_id cannot serve many events: pass a function of the payload, event_id=lambda line: …"
OPTIONS = frozenset(option.name for option in fields(EventDraft)) - {"event_type", "payload"}


def draft_of(event: str | EventDraft, payload: tuple[Any, ...], options: Mapping[str, Any]) -> EventDraft:
    """What `publish(session, …)` was called with: a type and its payload, or a draft and nothing else."""
    if isinstance(event, EventDraft):
        if payload or options:
            raise TypeError("an EventDraft says everything itself: publish(session, draft), without payload or options")
        return event
    if len(payload) != 1:
        raise TypeError(
            'publish takes an event type and its payload: outbox.publish(session, "order-created", payload)'
        )
    check_options(options)
    return EventDraft(event, payload[0], **options)


def drafts_of(
    events: str | Iterable[EventDraft], payloads: tuple[Any, ...], options: Mapping[str, Any]
) -> Iterable[EventDraft]:
    """What `publish_batch(session, …)` was called with: a type and payloads, or drafts and nothing else."""
    if isinstance(events, str):
        if (
            len(payloads) != 1
            or isinstance(payloads[0], str | bytes | Mapping)
            or not isinstance(payloads[0], Iterable)
        ):
            raise TypeError(
                'publish_batch takes a list of payloads: outbox.publish_batch(session, "line-added", lines)'
            )
        check_options(options)
        return _each(events, payloads[0], options)
    if isinstance(events, EventDraft) or not isinstance(events, Iterable):
        raise TypeError(
            f"publish_batch takes a list of EventDraft objects, not {type(events).__name__}: publish_batch(session, [draft, …])"
        )
    if payloads or options:
        raise TypeError("drafts say everything themselves: publish_batch(session, drafts), without payloads or options")
    return map(_a_draft, events)


def _a_draft(given: Any) -> EventDraft:
    if isinstance(given, EventDraft):
        return given
    raise TypeError(
        f"publish_batch(session, drafts) takes EventDraft objects, not {type(given).__name__}; for payloads of one type write "
        'outbox.publish_batch(session, "line-added", lines)'
    )


def _each(event_type: str, payloads: Iterable[Any], options: Mapping[str, Any]) -> Iterator[EventDraft]:
    """A draft for each payload, with what the functions among the options say about it.

    It is one and the same object each time, to be looked at before the next one is asked for: a batch makes enough garbage as it is.
    """
    functions = {name: option for name, option in options.items() if callable(option)}
    common = {name: option for name, option in options.items() if name not in functions}
    if common.get("event_id") is not None:
        raise TypeError(ONE_ID_FOR_MANY)
    draft = EventDraft(event_type, None, **common)
    for payload in payloads:
        draft.payload = payload
        for name, function in functions.items():
            setattr(draft, name, function(payload))
        yield draft


def id_to_cancel(given: Any) -> UUID:
    """What `cancel` takes: an event's id, as publish returned it."""
    try:
        return parse_event_id(given)
    except MalformedEventId:
        raise PublishError(
            "cancel takes the id that publish returned: published = outbox.publish(…), then outbox.cancel(session, published.id)"
        ) from None


def check_options(options: Mapping[str, Any]) -> None:
    for name in options:
        if name not in OPTIONS:
            near = difflib.get_close_matches(name, OPTIONS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(sorted(OPTIONS))}"
            raise TypeError(f"no option is called {name!r}: {hint}")
