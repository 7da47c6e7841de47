"""Settings of both packages: what they have in common, and how they are read.

A YAML or TOML file, then the environment, then arguments; the later wins. In code the keys are flat, in files they stand under `outbox`
and under the package's own section. Every mistake names its key and what to write instead.

Needs pydantic-settings, which both packages declare (`outbox-shared[settings]`).
"""

import os
from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any, Self, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    DotEnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from outbox_shared.database_urls import name_the_driver
from outbox_shared.durations import Duration, format_duration, parse_duration
from outbox_shared.errors import ConfigurationError
from outbox_shared.settings_keys import explain
from outbox_shared.settings_sources import DOTENV, find_file, from_variables, normalise, read_file, variables
from outbox_shared.tables import TableNames

SHORTEST = timedelta(milliseconds=1)


def _at_least_shortest(value: timedelta) -> timedelta:
    if value < SHORTEST:
        raise ValueError(f"write {format_duration(SHORTEST)} or more, not {format_duration(value)}")
    return value


PositiveInt = Annotated[int, Field(ge=1)]
PositiveDuration = Annotated[Duration, AfterValidator(_at_least_shortest)]
"""A timeout of 0 would be none at all, or for ever, depending on whom it is passed to."""

Pause = PositiveDuration
"""Between two rounds of a loop: none at all would be a busy one."""

DatabaseUrl = Annotated[str, AfterValidator(name_the_driver)]

CONSUMER_RETENTION = timedelta(days=7)
"""The default of consumer.clean-up.ttl: for so long a consumer knows that it has seen an event."""

REPLAY_WINDOW = timedelta(days=7)
"""The default of publisher.dlq.replay-window: for so long a dead letter is replayed without a question."""


def _is_redis_url(value: str) -> str:
    if value.partition("://")[0] not in {"redis", "rediss", "unix"}:
        raise ValueError("write a URL such as redis://host:6379/0, or rediss:// for TLS")
    return value


RedisUrl = Annotated[str, AfterValidator(_is_redis_url)]


class Section(BaseModel):
    """A block of settings: unknown keys are errors, values never change afterwards."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, validate_default=True)

    @model_validator(mode="before")
    @classmethod
    def _kebab_is_snake(cls, given: Any) -> Any:
        """Also for what is given in code, or as JSON in a variable. A block with nothing in it, as YAML has it, is None."""
        if isinstance(given, Mapping):
            return {str(key).replace("-", "_"): value for key, value in given.items()}
        return {} if given is None else given


class TablesSettings(Section):
    """`outbox.tables`: where the tables are and who creates them."""

    auto_create: bool = True
    schema_: str | None = Field(default=None, alias="schema")
    prefix: str = "outbox_"

    @model_validator(mode="after")
    def _check(self) -> Self:
        _ = self.names
        return self

    @property
    def names(self) -> TableNames:
        return TableNames(self.schema_, self.prefix)


class CleanUpSettings(Section):
    """A `clean-up` block: how long rows that have served are kept, and how they go."""

    enabled: bool = True
    batch_size: PositiveInt = 500
    ttl: Duration = timedelta(hours=1)
    initial_delay: Duration = timedelta(0)
    fixed_delay: Pause = timedelta(seconds=5)


def default_pool_size() -> int:
    return min(os.cpu_count() or 1, 5)


class Globals(Section):
    """The keys of `outbox` itself, common to both packages."""

    database_url: DatabaseUrl | None = Field(default=None, repr=False)
    redis_url: RedisUrl | None = Field(default=None, repr=False)
    thread_pool_size: PositiveInt = default_pool_size()
    tables: TablesSettings = TablesSettings()

    def require_database_url(self) -> str:
        if self.database_url is None:
            raise ConfigurationError(
                "no database is configured: set outbox.database-url (OUTBOX_DATABASE_URL), such as postgresql://user@host/database"
            )
        return self.database_url


class FlatSettings(Globals):
    """The base of a package's settings in code: globals and its own section, flat; a mistake is a ConfigurationError."""

    _other: Any = None
    """The other package's section, where one file holds both: not ours to check, but enough to warn."""

    def __init__(self, **given: Any) -> None:
        try:
            super().__init__(**given)
        except ValidationError as error:
            raise ConfigurationError(explain(error, type(self))) from None

    def warnings(self) -> list[str]:
        """What may be meant so and may be a mistake, a sentence each. Relay and consumer log them when they are built."""
        return []

    @classmethod
    def load(cls, **given: Any) -> Self:
        """Read OUTBOX_CONFIG or ./outbox.{yml,yaml,toml}, then OUTBOX_… of the environment; arguments win over both."""
        return cls._read(given, dotenv=False)

    @classmethod
    def load_for_cli(cls, **given: Any) -> Self:
        """The same for commands, which a person runs in a folder: ./.env stands between file and environment."""
        return cls._read(given, dotenv=True)

    @classmethod
    def _read(cls, given: dict[str, Any], *, dotenv: bool) -> Self:
        """Load the package's own tree, and flatten it."""
        raise NotImplementedError

    @classmethod
    def _flatten(cls, tree: Globals, section: Section, other: Any) -> Self:
        """Out of a tree that was read: the section over the globals, where it says anything."""
        common = {name: getattr(tree, name) for name in Globals.model_fields}
        own = {name: getattr(section, name) for name in type(section).model_fields}
        flat = cls(**{**common, **{name: value for name, value in own.items() if value is not None}})
        flat._other = other
        return flat


class Tree(BaseSettings):
    """The base of a package's settings tree: arguments over environment over file. Subclasses add `publisher` and `consumer`."""

    model_config = SettingsConfigDict(extra="forbid", populate_by_name=True)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        dotenv = dotenv_settings.env_vars if isinstance(dotenv_settings, DotEnvSettingsSource) else {}
        given = variables(dotenv)
        return init_settings, _Variables(settings_cls, given), _File(settings_cls, given)


class _Source(PydanticBaseSettingsSource):
    def __init__(self, settings_cls: type[BaseSettings], given: Mapping[str, str]) -> None:
        super().__init__(settings_cls)
        self._given = given

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        return None, field_name, False  # a source of ours is read as a whole


class _Variables(_Source):
    def __call__(self) -> dict[str, Any]:
        return from_variables(self.settings_cls, self._given)


class _File(_Source):
    def __call__(self) -> dict[str, Any]:
        path = find_file(self._given)
        return {} if path is None else read_file(path)


Loaded = TypeVar("Loaded", bound=Tree)


def load(tree: type[Loaded], *, section: str, given: Mapping[str, Any], dotenv: bool = False) -> Loaded:
    """Read the whole tree, with arguments (flat, as in code) over what was read, and every mistake in one error that names its key."""
    own: Any = tree.model_fields[section].annotation
    arguments: dict[str, Any] = {section: {}, "_env_file": DOTENV if dotenv else None}
    for key, value in normalise(given).items():
        is_global = key in Globals.model_fields and key not in own.model_fields
        (arguments if is_global else arguments[section])[key] = value
    try:
        return tree(**arguments)
    except ValidationError as error:
        raise ConfigurationError(explain(error, tree, prefix="outbox.")) from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"{DOTENV} is not text in UTF-8") from None


def replays_outlive(retention: timedelta, replay: timedelta, key: str) -> list[str]:
    """The warning where one file holds both sections and the publisher can send again what the consumer has forgotten."""
    if retention >= replay:
        return []
    kept, sent = format_duration(retention), format_duration(replay)
    return [
        (
            f"consumer.clean-up.ttl {kept} is shorter than {key} {sent}: an event that is sent again after {kept} runs its handler again; "
            f"write clean-up.ttl: {sent} for the consumer"
        )
    ]


def duration_at(section: Any, path: str, default: timedelta) -> timedelta:
    """A duration of the other package's section, as far as it can be read; `path` in snake_case."""
    for part in path.split("."):
        section = section.get(part) if isinstance(section, Mapping) else None
    try:
        return default if section is None else parse_duration(section)
    except ValueError:
        return default  # the other package will say so


def is_on(section: Any, *path: str) -> bool:
    """Whether the other package's section is there and nothing in it is turned off on the way."""
    if not isinstance(section, Mapping):
        return False
    if str(section.get("enabled", True)).lower() in {"false", "no", "off", "0"}:
        return False
    return is_on(section.get(path[0]) or {}, *path[1:]) if path else True
