"""`PublisherSettings`: everything that publisher and relay can be told, with its default.

In code the keys are flat, `PublisherSettings(database_url=…, events={…})`, and nothing else is read.
`PublisherSettings.load()` reads file and environment, where the same keys stand under `outbox` and `outbox.publisher`.
"""

from collections.abc import Iterator, Mapping
from datetime import timedelta
from functools import cached_property
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from outbox_publisher.settings_blocks import (
    BackoffSettings,
    DeadLetterCleanUpSettings,
    DeadLetterSettings,
    DeliverySettings,
    GaugeSettings,
    KafkaSettings,
    MetricsSettings,
    RabbitSettings,
    RecoverySettings,
    SenderSettings,
)
from outbox_shared.durations import Duration, format_duration
from outbox_shared.retries import Retries
from outbox_shared.settings import (
    CONSUMER_RETENTION,
    CleanUpSettings,
    FlatSettings,
    Globals,
    Pause,
    PositiveInt,
    Section,
    TablesSettings,
    Tree,
    duration_at,
    is_on,
    load,
    replays_outlive,
)
from outbox_shared.settings_keys import merged
from outbox_shared.tables import EVENT_TYPE_LENGTH

SETTLE_RESERVE = timedelta(seconds=3)
"""What a lease must leave beyond publish-timeout: late delivery reports (up to 1 s) and the settle itself."""


def _check_name(name: str) -> str:
    """The name is part of the ids that text keys become: one that changes by a blank would make every key a new one."""
    if not name or len(name) > 100 or name != name.strip() or not name.isprintable():
        raise ValueError("write 1 to 100 printable characters without blanks around them, such as shop")
    return name


def _check_event_type(name: object) -> None:
    """What every database stores as it is, and finds again."""
    if not isinstance(name, str):  # 404, or yes and on, which are True in YAML
        raise ValueError(f"an event type is text, and {name!r} was read as something else: write its name in quotes")  # noqa: TRY004
    if not name:
        raise ValueError("an event type has a name, such as order-created; this one is empty")
    if len(name) > EVENT_TYPE_LENGTH:
        raise ValueError(f"an event type has at most {EVENT_TYPE_LENGTH} characters; {name[:40]!r}… has {len(name)}")
    if name != name.strip():  # MariaDB compares 'a' and 'a ' as equal
        raise ValueError(f"an event type has no blanks around it: write {name.strip()!r}, not {name!r}")
    if "\n" in name or "\r" in name:
        raise ValueError(f"an event type is one line, unlike {name!r}")
    if "\x00" in name or any("\ud800" <= character <= "\udfff" for character in name):
        raise ValueError(f"an event type is text without NUL and surrogates, unlike {name!r}")


def _backoff_mistakes(where: str, backoff: BackoffSettings) -> Iterator[str]:
    if backoff.enabled and backoff.max_delay < backoff.delay:
        yield (
            f"{where}.backoff.max-delay {format_duration(backoff.max_delay)} is below {where}.backoff.delay "
            f"{format_duration(backoff.delay)}; write max-delay: {format_duration(backoff.delay)} or more"
        )


class PublisherSection(Section):
    """The keys of `outbox.publisher`."""

    enabled: bool = True
    name: Annotated[str, AfterValidator(_check_name)] | None = None
    sender: SenderSettings = SenderSettings()
    defaults: DeliverySettings = DeliverySettings()
    events: dict[str, DeliverySettings] = Field(default_factory=dict)
    stuck_recovery: RecoverySettings = RecoverySettings()
    clean_up: CleanUpSettings = CleanUpSettings()
    dlq: DeadLetterSettings = DeadLetterSettings()
    metrics: MetricsSettings = MetricsSettings()
    lease: Duration = timedelta(seconds=30)
    ordering: Literal["none", "key"] = "none"
    wakeup: Literal["notify", "poll"] = "notify"
    lock: Literal["none", "database", "redis"] = "none"
    window: PositiveInt = 4
    max_payload: PositiveInt = 1_000_000
    max_batch_bytes: PositiveInt = 16_000_000

    @field_validator("events", mode="before")
    @classmethod
    def _check_event_types(cls, events: Any) -> Any:
        for event_type in events if isinstance(events, Mapping) else ():
            _check_event_type(event_type)
        return {} if events is None else events

    @model_validator(mode="after")
    def _check(self) -> Self:
        mistake = next(self._mistakes(), None)
        if mistake is not None:
            raise ValueError(mistake)
        return self

    def _mistakes(self) -> Iterator[str]:
        """What cannot work together."""
        publish, emergency = self.sender.publish_timeout, self.sender.emergency_timeout
        least = publish + SETTLE_RESERVE
        if self.lease < least:
            yield (
                f"lease {format_duration(self.lease)} is too short: a send may take publish-timeout {format_duration(publish)} "
                f"and its settle {format_duration(SETTLE_RESERVE)}; write lease: {format_duration(least)} or more"
            )
        if emergency < publish:
            yield (
                f"sender.emergency-timeout {format_duration(emergency)} ends a whole batch before sender.publish-timeout "
                f"{format_duration(publish)} ends one send; write emergency-timeout: {format_duration(publish)} or more"
            )
        longest = self.stuck_recovery.max_batch_processing_time
        if longest < emergency:
            yield (
                f"stuck-recovery.max-batch-processing-time {format_duration(longest)} would take batches from relays that still work "
                f"on them, for up to sender.emergency-timeout {format_duration(emergency)}; "
                f"write max-batch-processing-time: {format_duration(emergency)} or more"
            )
        yield from _backoff_mistakes("defaults", self.defaults.backoff)
        for event_type, delivery in self.deliveries.items():
            yield from _backoff_mistakes(f"events.{event_type}", delivery.backoff)

    @cached_property
    def deliveries(self) -> dict[str, DeliverySettings]:
        """Each event type's settings: its own over the defaults."""
        base = self.defaults.model_dump()
        return {
            name: DeliverySettings(**merged(base, own.model_dump(exclude_unset=True)))
            for name, own in self.events.items()
        }

    def delivery_of(self, event_type: str) -> DeliverySettings:
        return self.deliveries.get(event_type, self.defaults)


class _Tree(Globals, Tree):  # type: ignore[misc]  # pydantic merges the two configurations
    publisher: PublisherSection = PublisherSection()
    consumer: Any = None


class PublisherSettings(FlatSettings, PublisherSection):
    """The settings of one publisher: globals and its section, flat."""

    def __init__(
        self, **given: Any
    ) -> None:  # nested blocks may be plain dicts, which a generated signature would not allow
        super().__init__(**given)

    @model_validator(mode="after")
    def _check_redis(self) -> Self:
        if self.lock == "redis" and self.redis_url is None:
            raise ValueError(
                "publisher.lock is redis, and no Redis is configured: set outbox.redis-url (OUTBOX_REDIS_URL)"
            )
        return self

    @classmethod
    def _read(cls, given: dict[str, Any], *, dotenv: bool) -> Self:
        tree = load(_Tree, section="publisher", given=given, dotenv=dotenv)
        return cls._flatten(tree, tree.publisher, tree.consumer)

    def warnings(self) -> list[str]:
        found = []
        if self.clean_up.enabled and not self.clean_up.ttl:
            found.append(
                "publisher.clean-up.ttl is 0: a row goes when it is delivered, and a later publish with the same event_id is sent again"
            )
        if self.enabled and is_on(self._other):
            retention = duration_at(self._other, "clean_up.ttl", CONSUMER_RETENTION)
            for key, replay in self._replays():
                found += replays_outlive(retention, replay, key)
        return found + list(_kafka_warnings(self.sender))

    def _replays(self) -> Iterator[tuple[str, timedelta]]:
        """For how long events can be sent again after they were delivered."""
        yield "publisher.clean-up.ttl", self.clean_up.ttl
        if self.dlq.enabled:
            yield "publisher.dlq.replay-window", self.dlq.replay_window
        yield "the retries of publisher.defaults", _retries(self.defaults).last()
        for name, delivery in self.deliveries.items():
            yield f"the retries of publisher.events.{name}", _retries(delivery).last()


def _retries(delivery: DeliverySettings) -> Retries:
    backoff = delivery.backoff
    return Retries(
        delivery.max_retries, backoff.enabled, backoff.delay, backoff.multiplier, backoff.max_delay, backoff.jitter
    )


def _kafka_warnings(sender: SenderSettings) -> Iterator[str]:
    """librdkafka's properties are the user's; those that take a promise back are named."""
    properties = sender.kafka.properties
    for key in ("acks", "request.required.acks"):
        if key in properties and str(properties[key]).lower() not in {"all", "-1"}:
            yield f"publisher.sender.kafka.properties sets {key} to {properties[key]}: an acknowledged event can be lost; write all"
    for key in ("message.timeout.ms", "delivery.timeout.ms"):
        if key in properties:
            yield f"publisher.sender.kafka.properties sets {key}: the lease is checked against sender.publish-timeout; write that instead"


__all__ = [
    "BackoffSettings",
    "CleanUpSettings",
    "DeadLetterCleanUpSettings",
    "DeadLetterSettings",
    "DeliverySettings",
    "GaugeSettings",
    "KafkaSettings",
    "MetricsSettings",
    "Pause",
    "PositiveInt",
    "PublisherSection",
    "PublisherSettings",
    "RabbitSettings",
    "RecoverySettings",
    "SenderSettings",
    "TablesSettings",
]
