"""Reads settings from YAML, describes what is wrong with them in one line, and prints those in effect."""

from __future__ import annotations

import gc
import importlib
import json
import logging
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, GetCoreSchemaHandler, ValidationError
from pydantic_core import CoreSchema, core_schema

from yarn_accel.errors import ConfigError

logger = logging.getLogger(__name__)

#: libyaml's parser where PyYAML has it, which takes a fifth of the time; both load nothing but plain values.
_LOADER: type[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_MAX_SHOWN = 60
_MAX_FAULTS = 8
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


@dataclass(frozen=True, slots=True)
class LazySection:
    """The model of a section that is imported where a file has it: `Annotated[Any, LazySection(...)]`."""

    module: str
    name: str

    def model(self) -> type[BaseModel]:
        """Import it."""
        found: type[BaseModel] = getattr(importlib.import_module(self.module), self.name)
        return found

    def __get_pydantic_core_schema__(self, _: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Validate all but None by the model."""
        return core_schema.no_info_before_validator_function(self._validated, handler(Any))

    def _validated(self, value: Any) -> Any:
        return None if value is None else self.model().model_validate(value)


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
    except RecursionError:
        raise ConfigError(f"{path}: not YAML: nested too deeply") from None
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


def complaints(error: ValidationError, model: type[BaseModel], values: Any = None) -> str:
    """All faults of settings for `model`: each key with its fault, unknown keys with the known ones.

    Args:
        values: what was validated, for the names of what lies in lists.
    """
    texts: list[str] = []
    places = [item["loc"] for item in error.errors()]
    wanted: dict[str, list[str]] = {}
    given: dict[str, str] = {}
    for item in error.errors():
        loc = item["loc"]
        if item["type"] == "too_short" and any(each != loc and each[: len(loc)] == loc for each in places):
            # Pydantic does not count what is wrong for another reason.
            continue
        place, section = _found(model, loc, values)
        if item["type"] in _WANTED:
            bounds = {key: _as_written(each) for key, each in item.get("ctx", {}).items()}
            words = _WANTED[item["type"]].format(**bounds)
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
    if len(texts) > _MAX_FAULTS:
        texts[_MAX_FAULTS:] = [f"and {len(texts) - _MAX_FAULTS} more"]
    return "; ".join(texts)


def _loaded(text: str) -> Any:
    """The values in a text; `ConfigError` for a key that is given twice, as one of the two would be lost."""
    was_on = gc.isenabled()
    # A large file becomes a million objects without cycles, which the collector would visit again and again.
    gc.disable()
    try:
        return _loaded_by(_LOADER, text)
    except yaml.YAMLError:
        # PyYAML's own parser says more of what is wrong.
        return _loaded_by(yaml.SafeLoader, text)
    finally:
        if was_on:
            gc.enable()


def _loaded_by(make_loader: type[Any], text: str) -> Any:
    loader = make_loader(text)
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
    return _cut(json.dumps(value, default=str, ensure_ascii=False))


def _as_written(bound: Any) -> Any:
    """A large bound without its fraction, which is 0."""
    return int(bound) if isinstance(bound, float) and 1e6 <= abs(bound) < 1e18 else bound


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


def _found(
    model: type[BaseModel], place: tuple[int | str, ...], values: Any = None
) -> tuple[str, type[BaseModel]]:
    """A place as people write it, and the innermost model on the way there.

    Pydantic names the branches of a union as well, which nobody has written.
    """
    parts: list[str] = []
    inner: Any = None
    for part in place:
        field = model.model_fields.get(str(part))
        if field is not None:
            lazy = (each.model() for each in field.metadata if isinstance(each, LazySection))
            inner = next(lazy, field.annotation)
        is_branch = field is None and typing.get_origin(inner) in (typing.Union, types.UnionType)
        if not is_branch:
            values = _part(values, part)
            parts.append(f"{part}{_name_of(values)}" if isinstance(part, int) else str(part))
        for each in (inner, *typing.get_args(inner)):
            if isinstance(each, type) and issubclass(each, BaseModel):
                model, inner = each, None
                break
    return ".".join(parts), model


def _part(values: Any, part: int | str) -> Any:
    """A value inside others; None: there is none."""
    try:
        return values[part]
    except (LookupError, TypeError):
        return None


def _name_of(values: Any) -> str:
    """`` (NAME)`` of an entry of a list that has an `id` or `name`; empty for others."""
    name = values.get("id", values.get("name")) if isinstance(values, Mapping) else None
    return f" ({_cut(name)})" if isinstance(name, str) and name else ""
