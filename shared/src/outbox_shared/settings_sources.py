"""Where settings are read: a YAML or TOML file, a .env file (for commands only), the environment.

Keys may be written in kebab-case or snake_case. They are normalised here, in sources of our own, and not by pydantic aliases: with
aliases a variable of the environment would lose to the file without a word. Names that users choose (event types) stay as they are.
"""

import json
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from outbox_shared.errors import ConfigurationError
from outbox_shared.settings_keys import block_of, field_named, is_json, known_here, merged, names_below, nearest

FILES = ("outbox.yml", "outbox.yaml", "outbox.toml")
DOTENV = ".env"
PREFIX = "OUTBOX_"
SECTIONS = ("PUBLISHER", "CONSUMER")
USERS_OWN_NAMES = frozenset({"events", "properties"})
"""Mappings whose keys are the user's: event types, and librdkafka's own settings."""


def variables(dotenv: Mapping[str, str | None]) -> dict[str, str]:
    """Our variables, environment over .env, in upper case. An empty one counts as not set: compose files pass such on."""
    read = [*dotenv.items(), *os.environ.items()]
    return {name.upper(): value for name, value in read if value and name.upper().startswith(PREFIX)}


def find_file(given: Mapping[str, str]) -> Path | None:
    """The one that OUTBOX_CONFIG names, else the first of FILES in the working directory."""
    named = given.get("OUTBOX_CONFIG")
    if named is None:
        return next((path for path in map(Path, FILES) if path.is_file()), None)
    if not Path(named).is_file():
        raise ConfigurationError(f"OUTBOX_CONFIG names {named}, which is not a file")
    return Path(named)


def read_file(path: Path) -> dict[str, Any]:
    content = _parse(path)
    if content is None:
        return {}
    if not isinstance(content, Mapping) or set(content) != {"outbox"}:
        raise ConfigurationError(f"{path}: everything stands under one top-level key, `outbox:`")
    normalised = normalise(content["outbox"] or {})
    if not isinstance(normalised, dict):
        raise ConfigurationError(f"{path}: under `outbox:` stand keys and values, a block, not a single value")
    return normalised


def _parse(path: Path) -> Any:
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ConfigurationError(f"{path} is not text in UTF-8") from None
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from None
    if path.suffix == ".toml":
        try:
            return tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise ConfigurationError(f"{path} is not TOML: {error}") from None
    import yaml  # noqa: PLC0415 - loaded only where a YAML file is read

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigurationError(f"{path} is not YAML: {_place(error)}") from None


def _place(error: Exception) -> str:
    """Line and reason. The parser's own text repeats the line, and a password with it."""
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or "it cannot be parsed"
    return problem if mark is None else f"line {mark.line + 1}, column {mark.column + 1}: {problem}"


def normalise(value: Any, *, users_names: bool = False) -> Any:
    """kebab-case keys become snake_case, at every depth; the user's own names are left alone."""
    if isinstance(value, Mapping):
        below = {}
        for key, inner in value.items():
            name = key if users_names else str(key).replace("-", "_")
            if name in below:
                raise ConfigurationError(f"{key} is written twice in one block, with - and with _: keep one of them")
            below[name] = normalise(inner, users_names=not users_names and name in USERS_OWN_NAMES)
        return below
    if isinstance(value, list):
        return [normalise(item) for item in value]
    return value


def from_variables(tree: type[BaseModel], given: Mapping[str, str]) -> dict[str, Any]:
    """What the variables say, in the shape of the tree; a more exact one wins over a block in JSON.

    An unknown one is a mistake only in the section that the tree describes: beside a Service called outbox, Kubernetes sets
    OUTBOX_SERVICE_HOST and more. The other package's section is passed on unchecked.
    """
    read: dict[str, Any] = {}
    for name in sorted(given, key=lambda name: (name.count("__"), name)):
        parts = name.removeprefix(PREFIX).split("__")
        found = _find(tree, parts)
        if isinstance(found, str):
            if len(parts) > 1 and parts[0] in SECTIONS:
                raise ConfigurationError(f"{name}: {found}")
            continue
        path, annotation = found
        value: Any = _from_json(name, given[name]) if is_json(annotation) else given[name]
        for part in reversed(path):
            value = {part: value}
        read = merged(read, normalise(value))
    return read


def _find(tree: type[BaseModel], parts: list[str]) -> tuple[list[str], Any] | str:
    """The path of a variable's key and its type, or what is wrong with its name."""
    path: list[str] = []
    annotation: Any = tree
    for number, part in enumerate(parts):
        model = block_of(annotation)
        if model is None:
            if annotation is Any:  # the other package's section
                return [*path, *(part.lower() for part in parts[number:])], str
            return _not_deeper(parts[:number], annotation)
        found = field_named(model, part)
        if found is None:
            near = nearest(part, model, parts[:number], tree)
            return f"no such setting; {known_here(model) if near is None else f'did you mean {variable_of(near)}?'}"
        path.append(found[0])
        annotation = found[1].annotation
    return path, annotation


def variable_of(path: list[str]) -> str:
    """The variable of a key: `publisher.lease` is OUTBOX_PUBLISHER__LEASE."""
    return PREFIX + "__".join(part.upper().replace("-", "_") for part in path)


def _not_deeper(parts: list[str], annotation: Any) -> str:
    if names_below(annotation) is None:
        return f"no such setting; {variable_of(parts)} holds a value itself"
    return (
        f"write all of them as JSON, {variable_of(parts)}='{{\"<name>\": …}}': no variable can be called order-created"
    )


def _from_json(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise ConfigurationError(f"{name} holds JSON, such as {{…}} or […], and this is none") from None
