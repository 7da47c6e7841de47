"""The blocks of `outbox.publisher`, one class each. What must fit together between them is checked in `settings`."""

from datetime import timedelta
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, field_validator

from outbox_publisher.plugins import installed_senders
from outbox_shared.durations import Duration
from outbox_shared.settings import REPLAY_WINDOW, CleanUpSettings, Pause, PositiveDuration, PositiveInt, Section

SENDERS = ("kafka", "rabbitmq", "handlers", "memory")


def _one_string(value: Any) -> Any:
    """Several servers may be written as a list, too."""
    return ",".join(value) if isinstance(value, list) and all(isinstance(item, str) for item in value) else value


def _one_property(value: Any) -> Any:
    if not isinstance(value, str | int | float | bool):
        raise ValueError("write text, a number, true or false")  # noqa: TRY004 - pydantic collects ValueErrors
    return value


def _amqp_url(value: str) -> str:
    if value.partition("://")[0] not in {"amqp", "amqps"}:
        raise ValueError("write a URL such as amqp://user@host:5672/vhost, or amqps:// for TLS")
    return value


class KafkaSettings(Section):
    bootstrap_servers: Annotated[str, BeforeValidator(_one_string)] | None = None
    properties: dict[str, Annotated[str | int | float | bool, BeforeValidator(_one_property)]] = Field(
        default_factory=dict,
        repr=False,  # a SASL password may be among them
    )

    @field_validator("properties", mode="before")
    @classmethod
    def _nothing_is_empty(cls, value: Any) -> Any:
        return {} if value is None else value


class RabbitSettings(Section):
    url: Annotated[str, AfterValidator(_amqp_url)] | None = Field(default=None, repr=False)


class SenderSettings(Section):
    """`publisher.sender`: which broker, and how long one send may take."""

    type: str | None = None
    bean_name: Annotated[str, Field(min_length=1)] | None = None
    publish_timeout: PositiveDuration = timedelta(seconds=5)
    emergency_timeout: PositiveDuration = timedelta(seconds=120)
    unknown_topic_grace: Duration = timedelta(seconds=10)
    kafka: KafkaSettings = KafkaSettings()
    rabbitmq: RabbitSettings = RabbitSettings()

    @field_validator("type")
    @classmethod
    def _one_spelling(cls, value: str | None) -> str | None:
        """`rabbit_mq` is how spring-outbox writes it. What we do not know may be another distribution's, by its exact name."""
        if value is None:
            return None
        name = value.strip().lower().replace("rabbit_mq", "rabbitmq").replace("rabbit-mq", "rabbitmq")
        if name in SENDERS:
            return name
        installed = installed_senders()
        if value.strip() in installed:
            return value.strip()
        known = f"{', '.join(SENDERS[:-1])} or {SENDERS[-1]}"
        also = f", or of the installed ones {', '.join(installed)}" if installed else ""
        raise ValueError(f"there is no sender {value!r}; write {known}{also}")


class BackoffSettings(Section):
    enabled: bool = True
    delay: Duration = timedelta(seconds=10)
    multiplier: Annotated[float, Field(ge=1, le=1000, allow_inf_nan=False)] = 3.0
    max_delay: Duration = timedelta(hours=1)
    jitter: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = 0.1


def one_line(topic: str) -> str:
    """As publish takes it."""
    if topic != topic.strip() or "\n" in topic or "\r" in topic:
        raise ValueError(
            f"a topic is one line without blanks around it: write {' '.join(topic.split())!r}, not {topic!r}"
        )
    return topic


class DeliverySettings(Section):
    """`publisher.defaults`; an entry of `publisher.events` takes from there what it does not set itself."""

    topic: Annotated[str, Field(min_length=1, max_length=255), AfterValidator(one_line)] | None = None
    batch_size: PositiveInt = 500
    initial_delay: Duration = timedelta(0)
    fixed_delay: Pause = timedelta(milliseconds=500)
    max_retries: Annotated[int, Field(ge=0, le=30_000)] = 3
    backoff: BackoffSettings = BackoffSettings()


class RecoverySettings(Section):
    """`publisher.stuck-recovery`: how soon rows of a dead relay go back to PENDING."""

    batch_size: PositiveInt = 20
    max_batch_processing_time: PositiveDuration = timedelta(seconds=300)
    initial_delay: Duration = timedelta(0)
    fixed_delay: Pause = timedelta(seconds=30)


class GaugeCacheSettings(Section):
    ttls: tuple[Duration, ...] = (timedelta(seconds=60),) * 3

    @field_validator("ttls")
    @classmethod
    def _one_for_each(cls, value: tuple[timedelta, ...]) -> tuple[timedelta, ...]:
        if len(value) != 3:
            raise ValueError(
                f"write three durations such as [60s, 60s, 60s]: for all events, by status, by type and status; not {len(value)}"
            )
        return value


class GaugeSettings(Section):
    enabled: bool = True
    cache: GaugeCacheSettings = GaugeCacheSettings()


class MetricsSettings(Section):
    gauge: GaugeSettings = GaugeSettings()


class DeadLetterCleanUpSettings(CleanUpSettings):
    """`publisher.dlq.clean-up`: RESOLVED dead letters, which people may want to look up for a while."""

    ttl: Duration = timedelta(days=30)
    fixed_delay: Pause = timedelta(minutes=5)


class DeadLetterSettings(Section):
    """`publisher.dlq`: the table of what could not be sent."""

    enabled: bool = True
    batch_size: PositiveInt = 500
    transfer_to_initial_delay: Duration = timedelta(0)
    transfer_to_fixed_delay: Pause = timedelta(seconds=30)
    transfer_from_initial_delay: Duration = timedelta(0)
    transfer_from_fixed_delay: Pause = timedelta(seconds=5)
    replay_window: Duration = REPLAY_WINDOW
    clean_up: DeadLetterCleanUpSettings = DeadLetterCleanUpSettings()
    metrics: MetricsSettings = MetricsSettings()
