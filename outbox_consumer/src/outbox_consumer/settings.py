"""`ConsumerSettings`: everything that a consumer can be told, with its default.

In code the keys are flat, `ConsumerSettings(name=…, lock_timeout=…)`, and nothing else is read.
`ConsumerSettings.load()` reads file and environment, where the same keys stand under `outbox` and `outbox.consumer`.
"""

from datetime import timedelta
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from outbox_shared.durations import Duration, format_duration
from outbox_shared.errors import ConfigurationError
from outbox_shared.retries import retries_of
from outbox_shared.settings import (
    CONSUMER_RETENTION,
    REPLAY_WINDOW,
    CleanUpSettings,
    DatabaseUrl,
    FlatSettings,
    Globals,
    PositiveDuration,
    PositiveInt,
    RedisUrl,
    Section,
    TablesSettings,
    Tree,
    duration_at,
    is_on,
    load,
    replays_outlive,
)
from outbox_shared.tables import CONSUMER_NAME_LENGTH

SHORTEST_WAIT = timedelta(milliseconds=1)
LONGEST_WAIT = timedelta(days=1)
PUBLISHER_TTL = timedelta(hours=1)
"""The default of publisher.clean-up.ttl, where only the file's other half would tell."""


class ConsumerCleanUpSettings(CleanUpSettings):
    """`consumer.clean-up`: the retention of consumed rows is the time in which a duplicate is recognised."""

    batch_size: PositiveInt = 2000
    ttl: PositiveDuration = CONSUMER_RETENTION


def _check_cache_name(name: str) -> str:
    if not name or not name.isprintable() or any(character.isspace() for character in name):
        raise ValueError("write a prefix for Redis keys without blanks, such as outbox:consumed")
    return name


class CacheSettings(Section):
    """`consumer.cache`: remembers consumed ids in front of the database. It pays where most messages are duplicates."""

    enabled: bool = False
    cache_name: Annotated[str, AfterValidator(_check_cache_name)] = "outbox:consumed"
    ttl: PositiveDuration = timedelta(hours=1)
    size: PositiveInt = 100_000
    redis_url: RedisUrl | None = Field(default=None, repr=False)


class ConsumerSection(Section):
    """The keys of `outbox.consumer`."""

    enabled: bool = True
    name: str | None = None
    database_url: DatabaseUrl | None = Field(default=None, repr=False)
    lock_timeout: Duration = timedelta(seconds=5)
    clean_up: ConsumerCleanUpSettings = ConsumerCleanUpSettings()
    cache: CacheSettings = CacheSettings()

    @field_validator("name")
    @classmethod
    def _check_name(cls, value: str | None) -> str | None:
        return None if value is None else check_name(value)

    @field_validator("lock_timeout")
    @classmethod
    def _check_lock_timeout(cls, value: timedelta) -> timedelta:
        if not SHORTEST_WAIT <= value <= LONGEST_WAIT:  # PostgreSQL reads 0 as "for ever"
            raise ValueError(
                f"a delivery waits for its twin between 1ms and 1d, such as 5s, not {format_duration(value)}"
            )
        return value

    @model_validator(mode="after")
    def _check_cache(self) -> Self:
        """A cache that outlives the rows would hide events after a restore, and its hits could be checked nowhere."""
        meant = self.cache.enabled or "ttl" in self.cache.model_fields_set
        if meant and self.cache.ttl > self.clean_up.ttl:
            kept = format_duration(self.clean_up.ttl)
            raise ValueError(
                f"cache.ttl {format_duration(self.cache.ttl)} is longer than the rows behind it are kept, clean-up.ttl {kept}; "
                f"write cache.ttl: {kept} or less"
            )
        return self


class _Tree(Globals, Tree):  # type: ignore[misc]  # pydantic merges the two configurations
    consumer: ConsumerSection = ConsumerSection()
    publisher: Any = None


class ConsumerSettings(FlatSettings, ConsumerSection):
    """The settings of one consumer: globals and its section, flat."""

    def __init__(
        self, **given: Any
    ) -> None:  # nested blocks may be plain dicts, which a generated signature would not allow
        super().__init__(**given)

    @classmethod
    def _read(cls, given: dict[str, Any], *, dotenv: bool) -> Self:
        tree = load(_Tree, section="consumer", given=given, dotenv=dotenv)
        return cls._flatten(tree, tree.consumer, tree.publisher)

    @property
    def cache_redis_url(self) -> str | None:
        """The cache's own Redis, else the common one; none means a cache inside the process only."""
        return self.cache.redis_url or self.redis_url

    def warnings(self) -> list[str]:
        found = []
        if (
            not self.cache.enabled
            and self.cache.model_fields_set - {"enabled"}
            and "enabled" not in self.cache.model_fields_set
        ):
            found.append(
                "consumer.cache is written, but a cache is off by default: write cache.enabled: true to use it"
            )
        if self.enabled and is_on(self._other):
            kept = duration_at(self._other, "clean_up.ttl", PUBLISHER_TTL)
            found += replays_outlive(self.clean_up.ttl, kept, "publisher.clean-up.ttl")
            if is_on(self._other, "dlq"):
                window = duration_at(self._other, "dlq.replay_window", REPLAY_WINDOW)
                found += replays_outlive(self.clean_up.ttl, window, "publisher.dlq.replay-window")
            for key, last in retries_of(self._other):
                found += replays_outlive(self.clean_up.ttl, last, key)
        return found

    def require_name(self) -> str:
        if self.name is None:
            raise ConfigurationError(
                "a consumer needs a name, the same in every process that does the same work: "
                'IdempotentConsumer(sessions, name="billing"), or consumer.name (OUTBOX_CONSUMER__NAME) in the settings'
            )
        return self.name


def check_name(name: object) -> str:
    """The name is half of the key that tells duplicates: one that changes by a blank would run every event again."""
    if not isinstance(name, str):
        raise ValueError(f"a consumer's name is text such as 'billing', not {type(name).__name__}")  # noqa: TRY004
    if not name:
        raise ValueError("a consumer's name cannot be empty; write one such as 'billing'")
    if name != name.strip():
        raise ValueError(f"a consumer's name has no blanks around it: write {name.strip()!r}, not {name!r}")
    if not name.isprintable():
        raise ValueError(f"a consumer's name has printable characters only, unlike {name!r}")
    if len(name) > CONSUMER_NAME_LENGTH:
        raise ValueError(f"a consumer's name has at most {CONSUMER_NAME_LENGTH} characters; this one has {len(name)}")
    return name


__all__ = ["CacheSettings", "ConsumerCleanUpSettings", "ConsumerSettings", "TablesSettings"]
