"""Reads settings from YAML, describes what is wrong with them in one line, and prints those in effect."""

from __future__ import annotations

import json
import logging
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from yarn_accel.errors import ConfigError

logger = logging.getLogger(__name__)

_MAX_SHOWN = 60
#: Pydantic's type of an error -> the right value in words, with the bounds that pydantic names.
_WANTED = {
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
    **dict.fromkeys(("int_type", "int_parsing", "int_parsing_size", "int_from_float"), "a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "a number"),
    **dict.fromkeys(("tuple_type", "list_type"), "a list"),
    **dict.fromkeys(("dict_type", "model_type", "model_attributes_type"), "a mapping of keys to values"),
    **dict.fromkeys(("literal_error", "enum"), "{expected}"),
    "string_type": "a text",
    "path_type": "a path",
    "finite_number": "a finite number",
    "greater_than": "greater than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "too_short": "{min_length} or more in number",
    "too_long": "at most {max_length} in number",
    "string_too_short": "a text of length {min_length} or more",
    "string_too_long": "a text of length {max_length} at most",
    "string_pattern_mismatch": "a text that matches {pattern}",
}


def read_settings(path: Path, *, may_be_empty: bool = False) -> dict[str, Any]:
    """The keys and values of a file; none of an empty one, where that is allowed.

    Raises:
        ConfigError: it cannot be read, is not YAML, gives a key twice, or is not a mapping; names the file.
    """
    try:
        values = _loaded(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except ConfigError as error:
        raise ConfigError(f"{path}: {error.message}", cure=error.cure) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not YAML: {_reason(error)}") from None
    if values is None and may_be_empty:
        return {}
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: not a mapping of keys to values")
    return {str(key): value for key, value in values.items()}


def with_current_names(values: Mapping[str, Any], former: Mapping[str, str], place: str) -> dict[str, Any]:
    """The settings under their current names; logs a warning for each former name.

    Args:
        former: former name -> current name.
        place: the file, and the section if any, for messages.

    Raises:
        ConfigError: a setting was given under both names.
    """
    renamed = dict(values)
    for old, new in former.items():
        if old not in renamed:
            continue
        if new in renamed:
            raise ConfigError(f"{place}: {old} is the former name of {new}", cure="keep one of the two")
        logger.warning(
            "%s: `%s` is now called `%s`; the next version refuses the former name", place, old, new
        )
        renamed[new] = renamed.pop(old)
    return renamed


def described(settings: BaseModel, indent: str = "") -> Iterator[str]:
    """The settings in effect as lines of YAML, each with what it means."""
    values = settings.model_dump(mode="json")
    for name, field in type(settings).model_fields.items():
        value = getattr(settings, name)
        if isinstance(value, BaseModel):
            yield f"{indent}{name}:"
            yield from described(value, indent + "  ")
        else:
            yield f"{indent}{name}: {json.dumps(values[name])}  # {field.description}"


def complaints(error: ValidationError, model: type[BaseModel]) -> str:
    """All faults of settings for `model`: each key with its fault, unknown keys with the known ones."""
    texts: list[str] = []
    wanted: dict[str, list[str]] = {}
    given: dict[str, str] = {}
    for item in error.errors():
        place, section = _found(model, item["loc"])
        if item["type"] in _WANTED:
            words = _WANTED[item["type"]].format(**item.get("ctx", {}))
            wanted.setdefault(place, []).append(words.replace("'", '"'))
            given[place] = _shown(item["input"])
            continue
        if item["type"] == "extra_forbidden":
            message = f"unknown key; known: {', '.join(sorted(section.model_fields))}"
        elif item["type"] == "missing":
            message = "missing"
        else:
            message = item["msg"].removeprefix("Value error, ")
        texts.append(f"{place}: {message}" if place else message)
    texts += (f"{place}: must be {' or '.join(some)}, not {given[place]}" for place, some in wanted.items())
    return "; ".join(texts)


def _loaded(text: str) -> Any:
    """The values in a text; `ConfigError` for a key that is given twice, as one of the two would be lost."""
    loader = yaml.SafeLoader(text)
    try:
        root = loader.get_single_node()
        _check_keys(root, set())
        return loader.construct_document(root) if root is not None else None
    finally:
        loader.dispose()


def _check_keys(node: yaml.Node | None, seen: set[int]) -> None:
    """Check all mappings below a node, each once, however many aliases it has."""
    if not isinstance(node, yaml.CollectionNode) or id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for each in node.value:
            _check_keys(each, seen)
        return
    places: dict[str, yaml.Mark] = {}
    for key, value in node.value:
        if isinstance(key, yaml.ScalarNode):
            first = places.setdefault(key.value, key.start_mark)
            if first is not key.start_mark:
                raise ConfigError(
                    f"line {key.start_mark.line + 1}: {key.value} was given in line {first.line + 1} already",
                    cure="keep one of the two",
                )
        _check_keys(value, seen)


def _reason(error: yaml.YAMLError | UnicodeDecodeError) -> str:
    """The place and the reason at which the parser stopped."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return f"line {mark.line + 1}, column {mark.column + 1}: {error.problem}"
    return " ".join(str(error).split())


def _shown(value: Any) -> str:
    """A value about as it stands in the file, and not all of a long one."""
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


def _found(model: type[BaseModel], place: tuple[int | str, ...]) -> tuple[str, type[BaseModel]]:
    """A place as people write it, and the innermost model on the way there.

    Pydantic names the branches of a union as well, which nobody has written.
    """
    parts: list[str] = []
    inner: Any = None
    for part in place:
        field = model.model_fields.get(str(part))
        inner = field.annotation if field is not None else inner
        is_branch = field is None and typing.get_origin(inner) in (typing.Union, types.UnionType)
        if not is_branch:
            parts.append(str(part))
        for each in (inner, *typing.get_args(inner)):
            if isinstance(each, type) and issubclass(each, BaseModel):
                model, inner = each, None
                break
    return ".".join(parts), model
