"""The keys that settings models have, as people write them, and what is said about a mistake in one of them.

A model's fields are our keys and are written in kebab-case. A mapping (event types, librdkafka's properties) holds names of the user's
own, which are repeated exactly as they were given.
"""

import difflib
from collections.abc import Iterator, Mapping
from types import UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails


class Key(NamedTuple):
    """One key of a file, below `outbox`: `publisher.sender.publish-timeout`."""

    path: str
    field: FieldInfo


def keys_of(model: type[BaseModel], above: str = "") -> Iterator[Key]:
    """Every key that takes a value, at every depth, in the order of the models."""
    for name, field in model.model_fields.items():
        path = above + written(name, field)
        block = block_of(field.annotation)
        if block is None:
            yield Key(path, field)
        else:
            yield from keys_of(block, f"{path}.")


def written(name: str, field: FieldInfo) -> str:
    return (field.alias or name).replace("_", "-")


def block_of(annotation: Any) -> type[BaseModel] | None:
    """The model that stands below a key, if it is a block of keys of ours."""
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def names_below(annotation: Any) -> Any:
    """What each of the user's own names may hold, if the key is a mapping of them; else None."""
    return get_args(annotation)[-1] if _origin(annotation) is dict else None


def is_json(annotation: Any) -> bool:
    """Whether a variable of the environment holds this key as JSON: whatever is more than one plain value."""
    if get_origin(annotation) in {Union, UnionType}:
        return any(is_json(part) for part in get_args(annotation))
    return block_of(annotation) is not None or _origin(annotation) in {dict, list, tuple}


def _origin(annotation: Any) -> Any:
    return get_origin(annotation) or annotation


def field_named(model: type[BaseModel], key: str) -> tuple[str, FieldInfo] | None:
    """A model's field by any spelling of its key, with the name under which values are given to the model."""
    wanted = key.replace("_", "-").lower()
    for name, field in model.model_fields.items():
        if written(name, field) == wanted:
            return field.alias or name, field
    return None


def explain(error: ValidationError, model: type[BaseModel], prefix: str = "") -> str:
    """One line per mistake: the key as it is written in a file, and what to write instead."""
    lines = [_line(mistake, model, prefix) for mistake in error.errors(include_url=False)]
    return "the settings cannot work:\n  " + "\n  ".join(dict.fromkeys(lines))


def nearest(key: str, model: type[BaseModel], above: list[str], root: type[BaseModel]) -> list[str] | None:
    """The whole path of what was probably meant: a key of this block, else one of nearly this name in another block."""
    key = key.replace("_", "-").lower()
    here = [written(name, field) for name, field in model.model_fields.items()]
    if near := difflib.get_close_matches(key, here, n=1):
        return [*above, near[0]]
    elsewhere = {path[-1]: path for path in reversed(list(_paths(root)))}
    if near := difflib.get_close_matches(key, elsewhere, n=1, cutoff=0.8):
        return elsewhere[near[0]]
    return None


def known_here(model: type[BaseModel]) -> str:
    return f"known here: {', '.join(sorted(written(name, field) for name, field in model.model_fields.items()))}"


def _paths(model: type[BaseModel], above: tuple[str, ...] = ()) -> Iterator[list[str]]:
    """Every key, blocks too."""
    for name, field in model.model_fields.items():
        path = (*above, written(name, field))
        yield list(path)
        block = block_of(field.annotation)
        if block is not None:
            yield from _paths(block, path)


def _line(mistake: ErrorDetails, model: type[BaseModel], prefix: str) -> str:
    path, above = _where(model, mistake["loc"])
    key = ".".join(path)
    if mistake["type"] == "extra_forbidden" and above is not None:
        near = nearest(path[-1], above, path[:-1], model)
        if near is None:
            meant = known_here(above)
        elif near[:-1] == path[:-1]:
            meant = f"did you mean {near[-1]}?"
        else:
            meant = f"did you mean {prefix}{'.'.join(near)}?"
        what = f"no such setting; {meant}"
    else:
        what = _what_to_write(mistake)
    # a check of the whole names its keys itself
    return f"{prefix}{key}: {what}" if key else what


def _where(model: type[BaseModel], loc: tuple[int | str, ...]) -> tuple[list[str], type[BaseModel] | None]:
    """A mistake's path as it is written, and the block in which its last key stands. Pydantic's own additions are left out."""
    path: list[str] = []
    annotation: Any = model
    block: type[BaseModel] | None = None
    for part in loc:
        if part == "[key]":
            break
        inside = block_of(annotation)
        if inside is not None:
            found = field_named(inside, str(part))
            block = inside
            path.append(str(part).replace("_", "-") if found is None else written(*found))
            annotation = None if found is None else found[1].annotation
        elif (below := names_below(annotation)) is not None:
            path.append(str(part))
            annotation = below
        elif isinstance(part, int):  # the third value of a list, say
            path.append(str(part + 1))
            break
        else:  # the branch of a union
            break
    return path, block


def _what_to_write(mistake: ErrorDetails) -> str:
    """Our own words where we have them. The value is repeated only where it cannot be a secret."""
    given, context = mistake["input"], mistake.get("ctx", {})
    match mistake["type"]:
        case "greater_than_equal":
            return f"write {_value(context['ge'])} or more, not {_value(given)}"
        case "less_than_equal":
            return f"write {_value(context['le'])} or less, not {_value(given)}"
        case "int_type" | "int_parsing" | "int_from_float":
            return f"write a whole number, not {_value(given)}"
        case "float_type" | "float_parsing" | "finite_number":
            return f"write a number, not {_value(given)}"
        case "bool_type" | "bool_parsing":
            return f"write true or false, not {_value(given)}"
        case "literal_error":
            return f"write {_either(context['expected'])}, not {_value(given)}"
        case "model_type" | "model_attributes_type" | "dict_type":
            return "here stand keys and values, a block, not a single value"
        case "tuple_type" | "list_type":
            return "write a list, in [ ]"
        case "string_too_short":
            return "write some text, or leave the key out"
        case "string_type":
            return "write text, in quotes where YAML would read something else"
    return mistake["msg"].removeprefix("Value error, ")


def _value(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else repr(value)


def _either(expected: str) -> str:
    return expected.replace("'", "")


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` laid on `base`, block by block; anything that is not a block is replaced whole."""
    result = dict(base)
    for key, value in over.items():
        below = result.get(key)
        both = isinstance(value, Mapping) and isinstance(below, Mapping)
        result[key] = merged(below, value) if both else value  # type: ignore[arg-type]
    return result
