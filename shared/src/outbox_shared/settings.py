"""How settings are read: a YAML or TOML file, then the environment, then arguments; the later wins.

Keys may be written in kebab-case or snake_case. They are normalised here, in a source of our own, and not by pydantic aliases: with
aliases a variable of the environment would lose to the file without a word. Names that users choose (event types) stay as they are.

Needs pydantic-settings, which both packages declare (`outbox-shared[settings]`).
"""

import difflib
import os
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from outbox_shared.errors import ConfigurationError
from outbox_shared.tables import TableNames

FILES = ("outbox.yml", "outbox.yaml", "outbox.toml")
USERS_OWN_NAMES = frozenset({"events", "properties"})
"""Mappings whose keys are the user's: event types, and librdkafka's own settings."""


class Section(BaseModel):
    """A block of settings: unknown keys are errors, values never change afterwards."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, validate_default=True)

    @model_validator(mode="before")
    @classmethod
    def _kebab_is_snake(cls, given: Any) -> Any:
        """Also for what is given in code, or as JSON in a variable."""
        return (
            {str(key).replace("-", "_"): value for key, value in given.items()} if isinstance(given, Mapping) else given
        )


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


class Globals(Section):
    """The keys of `outbox` itself, common to both packages."""

    database_url: str | None = None
    tables: TablesSettings = TablesSettings()

    @field_validator("database_url")
    @classmethod
    def _name_the_driver(cls, value: str | None) -> str | None:
        """`postgres://` and `postgresql://` mean psycopg, the driver that the extra installs."""
        if value is None:
            return None
        scheme, separator, rest = value.partition("://")
        if not separator:
            raise ValueError("write a URL such as postgresql://user@host/database or sqlite:///shop.db")
        return f"postgresql+psycopg://{rest}" if scheme in {"postgres", "postgresql"} else value

    def require_database_url(self) -> str:
        if self.database_url is None:
            raise ConfigurationError(
                "no database is configured: set outbox.database-url (OUTBOX_DATABASE_URL), such as postgresql://user@host/database"
            )
        return self.database_url


class FlatSettings(Globals):
    """The base of a package's settings in code: globals and its own section, flat; a mistake is a ConfigurationError."""

    def __init__(self, **given: Any) -> None:
        try:
            super().__init__(**given)
        except ValidationError as error:
            raise ConfigurationError(explain(error, type(self))) from None

    @classmethod
    def _flatten(cls, tree: Globals, section: Section) -> Self:
        """Out of a tree that was read: the section over the globals, where it says anything."""
        common = {name: getattr(tree, name) for name in Globals.model_fields}
        own = {name: getattr(section, name) for name in type(section).model_fields}
        return cls(**{**common, **{name: value for name, value in own.items() if value is not None}})


class Tree(BaseSettings):
    """The base of a package's settings tree: environment over file. Subclasses add `publisher` or `consumer`."""

    model_config = SettingsConfigDict(
        env_prefix="OUTBOX_",
        env_nested_delimiter="__",
        extra="forbid",
        populate_by_name=True,
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, Normalised(settings_cls, env_settings), FileSource(settings_cls)


class Normalised(PydanticBaseSettingsSource):
    """Another source with its keys in snake_case: JSON in a variable may be kebab-case."""

    def __init__(self, settings_cls: type[BaseSettings], source: PydanticBaseSettingsSource) -> None:
        super().__init__(settings_cls)
        self._source = source

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        return self._source.get_field_value(field, field_name)

    def __call__(self) -> dict[str, Any]:
        read: dict[str, Any] = normalise(self._source())
        return read


class FileSource(PydanticBaseSettingsSource):
    """The `outbox` block of OUTBOX_CONFIG, or of the first of FILES in the working directory."""

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        return None, field_name, False

    def __call__(self) -> dict[str, Any]:
        path = find_file()
        return {} if path is None else read_file(path)


def find_file() -> Path | None:
    named = os.environ.get("OUTBOX_CONFIG")
    if named:
        path = Path(named)
        if not path.is_file():
            raise ConfigurationError(f"OUTBOX_CONFIG names {named}, which is not a file")
        return path
    return next((path for path in map(Path, FILES) if path.is_file()), None)


def read_file(path: Path) -> dict[str, Any]:
    content = _parse(path)
    if content is None:
        return {}
    if not isinstance(content, Mapping) or set(content) != {"outbox"}:
        raise ConfigurationError(f"{path}: everything stands under one top-level key, `outbox:`")
    normalised = normalise(content["outbox"] or {})
    if not isinstance(normalised, dict):
        raise ConfigurationError(f"{path}: `outbox:` holds keys and values, not {content['outbox']!r}")
    return normalised


def _parse(path: Path) -> Any:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".toml":
        try:
            return tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise ConfigurationError(f"{path} is not TOML: {error}") from None
    import yaml  # noqa: PLC0415 - loaded only where a YAML file is read

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigurationError(f"{path} is not YAML: {error}") from None


def normalise(value: Any, *, users_names: bool = False) -> Any:
    """kebab-case keys become snake_case, at every depth; the user's own names are left alone."""
    if isinstance(value, Mapping):
        return {
            str(key) if users_names else str(key).replace("-", "_"): normalise(
                inner, users_names=not users_names and str(key) in USERS_OWN_NAMES
            )
            for key, inner in value.items()
        }
    if isinstance(value, list):
        return [normalise(item) for item in value]
    return value


Loaded = TypeVar("Loaded", bound=BaseModel)


def load(tree: type[Loaded], *, section: str, given: Mapping[str, Any]) -> Loaded:
    """Read the whole tree, with arguments (flat, as in code) over what was read, and every mistake in one error that names its key."""
    own: Any = tree.model_fields[section].annotation
    arguments: dict[str, Any] = {section: {}}
    for key, value in normalise(given).items():
        is_global = key in Globals.model_fields and key not in own.model_fields
        (arguments if is_global else arguments[section])[key] = value
    try:
        return tree(**arguments)
    except ValidationError as error:
        raise ConfigurationError(explain(error, tree, prefix="outbox.")) from None


def explain(error: ValidationError, model: type[BaseModel], prefix: str = "") -> str:
    """One line per mistake: the key as it is written in a file, and what to write instead."""
    lines = []
    for mistake in error.errors():
        path = [str(part) for part in mistake["loc"]]
        key = prefix + ".".join(part.replace("_", "-").strip("-") if part.islower() else part for part in path)
        if mistake["type"] == "extra_forbidden":
            known = _fields_at(model, path[:-1])
            near = difflib.get_close_matches(path[-1], known, n=1)
            hint = f"did you mean {near[0].replace('_', '-')}?" if near else f"known here: {', '.join(sorted(known))}"
            lines.append(f"{key}: no such setting; {hint}")
        else:
            lines.append(f"{key}: {mistake['msg'].removeprefix('Value error, ')}")
    return "the settings cannot work:\n  " + "\n  ".join(lines)


def _fields_at(model: type[BaseModel], path: Iterable[str]) -> list[str]:
    """The names that may stand below `path`, found by walking the models' annotations."""
    current: Any = model
    for part in path:
        field = current.model_fields.get(part) if isinstance(current, type) and issubclass(current, BaseModel) else None
        if field is not None:
            current = field.annotation
        elif getattr(current, "__args__", None):  # a mapping of the user's names to a model
            current = current.__args__[-1]
    if isinstance(current, type) and issubclass(current, BaseModel):
        return [field.alias or name for name, field in current.model_fields.items()]
    return []
