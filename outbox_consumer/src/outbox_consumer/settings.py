"""`ConsumerSettings`: everything that a consumer can be told, with its default.

In code the keys are flat, `ConsumerSettings(name=…, lock_timeout=…)`, and nothing else is read.
`ConsumerSettings.load()` reads file and environment, where the same keys stand under `outbox` and `outbox.consumer`.
"""

from datetime import timedelta
from typing import Any, Self

from pydantic import field_validator

from outbox_shared.durations import Duration, format_duration
from outbox_shared.errors import ConfigurationError
from outbox_shared.settings import FlatSettings, Globals, Section, TablesSettings, Tree, load
from outbox_shared.tables import CONSUMER_NAME_LENGTH

SHORTEST_WAIT = timedelta(milliseconds=1)
LONGEST_WAIT = timedelta(days=1)


class ConsumerSection(Section):
    """The keys of `outbox.consumer`."""

    enabled: bool = True
    name: str | None = None
    database_url: str | None = None
    lock_timeout: Duration = timedelta(seconds=5)

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


class _Tree(Globals, Tree):  # type: ignore[misc]  # pydantic merges the two configurations
    consumer: ConsumerSection = ConsumerSection()
    publisher: Any = None
    thread_pool_size: Any = None  # stands beside the sections in a file, and is the publisher's


class ConsumerSettings(FlatSettings, ConsumerSection):
    """The settings of one consumer: globals and its section, flat."""

    def __init__(
        self, **given: Any
    ) -> None:  # nested blocks may be plain dicts, which a generated signature would not allow
        super().__init__(**given)

    @classmethod
    def load(cls, **given: Any) -> Self:
        """Read OUTBOX_CONFIG or ./outbox.{yml,yaml,toml}, then OUTBOX_… of the environment; arguments win over both."""
        tree = load(_Tree, section="consumer", given=given)
        return cls._flatten(tree, tree.consumer)

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


__all__ = ["ConsumerSettings", "TablesSettings"]
