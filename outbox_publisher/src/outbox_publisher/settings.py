"""`PublisherSettings`: everything that publisher and relay can be told, with its default.

In code the keys are flat, `PublisherSettings(database_url=…, events={…})`, and nothing else is read.
`PublisherSettings.load()` reads file and environment, where the same keys stand under `outbox` and `outbox.publisher`.
"""

from datetime import timedelta
from functools import cached_property
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from outbox_shared.durations import Duration, format_duration
from outbox_shared.settings import FlatSettings, Globals, Section, TablesSettings, Tree, load

SETTLE_RESERVE = timedelta(seconds=3)
"""What a lease must leave beyond publish-timeout: late delivery reports (up to 1 s) and the settle itself."""

Pause = Annotated[Duration, Field(ge=timedelta(milliseconds=1))]
"""Between two rounds of a loop: none at all would be a busy one."""

PositiveInt = Annotated[int, Field(ge=1)]


class KafkaSettings(Section):
    bootstrap_servers: str | None = None
    properties: dict[str, str | int | float | bool] = Field(default_factory=dict)


class SenderSettings(Section):
    """`publisher.sender`: which broker, and how long one send may take."""

    type: str | None = None
    publish_timeout: Duration = timedelta(seconds=5)
    unknown_topic_grace: Duration = timedelta(seconds=10)
    kafka: KafkaSettings = KafkaSettings()


class BackoffSettings(Section):
    enabled: bool = True
    delay: Duration = timedelta(seconds=10)
    multiplier: Annotated[float, Field(ge=1)] = 3.0
    max_delay: Duration = timedelta(hours=1)
    jitter: Annotated[float, Field(ge=0, le=1)] = 0.1


class DeliverySettings(Section):
    """`publisher.defaults`; an entry of `publisher.events` takes from there what it does not set itself."""

    topic: str | None = None
    batch_size: PositiveInt = 500
    fixed_delay: Pause = timedelta(milliseconds=500)
    max_retries: Annotated[int, Field(ge=0, le=30_000)] = 3
    backoff: BackoffSettings = BackoffSettings()


class RecoverySettings(Section):
    """`publisher.stuck-recovery`: how soon rows of a dead relay go back to PENDING."""

    batch_size: PositiveInt = 20
    fixed_delay: Pause = timedelta(seconds=30)


class PublisherSection(Section):
    """The keys of `outbox.publisher`."""

    enabled: bool = True
    name: Annotated[str, Field(min_length=1, max_length=100)] | None = None
    sender: SenderSettings = SenderSettings()
    defaults: DeliverySettings = DeliverySettings()
    events: dict[str, DeliverySettings] = Field(default_factory=dict)
    stuck_recovery: RecoverySettings = RecoverySettings()
    lease: Duration = timedelta(seconds=30)
    max_payload: PositiveInt = 1_000_000

    @model_validator(mode="after")
    def _check(self) -> Self:
        least = self.sender.publish_timeout + SETTLE_RESERVE
        if self.lease < least:
            raise ValueError(
                f"lease {format_duration(self.lease)} is too short: a send may take publish-timeout "
                f"{format_duration(self.sender.publish_timeout)} and its settle {format_duration(SETTLE_RESERVE)}; "
                f"write lease: {format_duration(least)} or more"
            )
        return self

    @cached_property
    def deliveries(self) -> dict[str, DeliverySettings]:
        """Each event type's settings: its own over the defaults."""
        base = self.defaults.model_dump()
        return {
            name: DeliverySettings(**_merge(base, own.model_dump(exclude_unset=True)))
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

    @classmethod
    def load(cls, **given: Any) -> Self:
        """Read OUTBOX_CONFIG or ./outbox.{yml,yaml,toml}, then OUTBOX_… of the environment; arguments win over both."""
        tree = load(_Tree, section="publisher", given=given)
        return cls._flatten(tree, tree.publisher)


def _merge(base: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in own.items():
        merged[key] = _merge(base[key], value) if isinstance(value, dict) and isinstance(base.get(key), dict) else value
    return merged


__all__ = ["PublisherSettings", "TablesSettings"]
