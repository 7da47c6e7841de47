"""Every error that the two packages raise on purpose.

    OutboxError
    ├── ConfigurationError            the settings cannot work; says which key to change
    │   └── MissingDependency         an extra is not installed; names the pip command
    ├── MissingTable                  the database has no outbox tables; names init-db
    ├── NoActiveTransaction           (also RuntimeError) there is no transaction to join
    ├── PublishError                  (also ValueError) an event that cannot be stored as given
    │   ├── UnknownEventType          no topic for this event type
    │   ├── SerializationError        the payload cannot become bytes
    │   ├── InvalidHeader             a header name or value that no broker takes
    │   ├── InvalidKey                a key that is empty, "None", too long or not text
    │   └── PayloadTooLarge           more bytes than publisher.max-payload
    └── ConsumeError                  a message or handler that cannot be consumed as given
        ├── MissingEventId            (also ValueError) the message has no outbox_event_id
        ├── MalformedEventId          (also ValueError) its outbox_event_id is no UUID
        ├── EventInProgress           another consumer holds this event right now; try again
        ├── LeaseLost                 a guard's handler ran, but another delivery of the event may have run too
        ├── RedisUnavailable          Redis alone knows, and it does not answer: nothing was decided
        └── HandlerEndedTransaction   (also RuntimeError) the handler ended the transaction that it was given

The message says what to write instead. Errors of publishing come before any SQL, so the caller's transaction is as usable as before.
"""


class OutboxError(Exception):
    """Root of everything that outbox_publisher and outbox_consumer raise on purpose."""


class ConfigurationError(OutboxError):
    """The settings cannot work as they are; the message names the key to change."""


class MissingDependency(ConfigurationError, ImportError):
    """An optional library is not installed; the message is the pip command."""

    def __init__(self, needed_for: str, extra: str) -> None:
        super().__init__(f"{needed_for} needs an extra that is not installed: pip install '{extra}'")


class MissingTable(OutboxError):
    """A table of the outbox does not exist in the database; the message names the init-db command."""


class NoActiveTransaction(OutboxError, RuntimeError):
    """There is no open transaction to join, so nothing would tie the event to the change that it announces."""


class PublishError(OutboxError, ValueError):
    """An event that cannot be stored as it was given."""


class UnknownEventType(PublishError):
    """No topic is known for this event type."""


class SerializationError(PublishError):
    """The payload cannot be turned into bytes."""


class InvalidHeader(PublishError):
    """A header that the contract reserves or that a broker would refuse."""


class InvalidKey(PublishError):
    """A key that cannot be what the caller meant."""


class PayloadTooLarge(PublishError):
    """The serialized payload is larger than `publisher.max-payload`."""


class ConsumeError(OutboxError):
    """A message or handler that cannot be consumed as it was given."""

    index: int | None = None
    """Which message of a batch it is about, counted from 0."""


class MissingEventId(ConsumeError, ValueError):
    """The message carries no outbox_event_id header."""


class MalformedEventId(ConsumeError, ValueError):
    """The message's outbox_event_id header is not a UUID."""


class EventInProgress(ConsumeError):
    """Another transaction is consuming this event right now; deliver the message again later."""


class LeaseLost(ConsumeError):
    """The lease of a `guard()` ended before its handler did, and another delivery of the event took it over."""


class RedisUnavailable(ConsumeError):
    """`RedisIdempotency` has nothing but Redis to ask, and Redis did not answer, or refused; deliver the message again later."""


class HandlerEndedTransaction(ConsumeError, RuntimeError):
    """The handler committed, rolled back or closed the transaction that the mark depends on."""
