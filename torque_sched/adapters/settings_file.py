"""Settings from a YAML file, and what is wrong with them in one line."""

from __future__ import annotations

import json
import logging
import re
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from torque_sched.adapters.state_file import read_plain
from torque_sched.errors import ConfigError

logger = logging.getLogger(__name__)

_SHOWN = 60
_WORDS = (
    (re.compile(r", (unable to|got) .*"), ""),
    (re.compile(r"a (valid )?dictionary or (an )?instance of .*"), "a mapping of keys to values"),
    (re.compile(r"a valid tuple"), "a list"),
    (re.compile(r"a valid boolean"), "true or false"),
    (re.compile(r"a valid integer"), "a whole number"),
    (re.compile(r"a valid (number|string)"), r"a \1"),
)
"""The checker's words, and those for somebody who writes YAML."""


class _Loader(yaml.SafeLoader):
    """YAML in which a key stands once: of two, one would be lost without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """As the base has it, after a look at the keys."""
        lines: dict[str, int] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                line = key.start_mark.line + 1
                if key.value in lines:
                    raise ConfigError(
                        f"{key.value} stands in line {lines[key.value]} and again in line {line}"
                    )
                lines[key.value] = line
        return super().construct_mapping(node, deep)


# YAML 1.1, which the library reads, wants a point and a sign in it.
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9]+(?:\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def read_settings(path: Path, renamed: Mapping[str, str]) -> dict[str, Any]:
    """The keys and values of a file; none of an empty one.

    Args:
        path: a YAML file.
        renamed: old name -> new name of a key, ``section.key`` for one in a section. A key under its old name
            is taken with a warning that names the new one.

    Raises:
        ConfigError: it cannot be read, is not YAML, has a key twice (also under both names), or is not a
            mapping; names the file.
    """
    try:
        values = yaml.load(read_plain(path).decode("utf-8"), _Loader)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except ConfigError as error:
        raise ConfigError(f"{path}: {error.message}", cure="leave one of them") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not YAML: {_in_a_line(error)}") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: not a mapping of keys to values")
    settings = {str(key): value for key, value in values.items()}
    for old, new in renamed.items():
        _rename(path, settings, old, new)
    return settings


def _rename(path: Path, settings: dict[str, Any], old: str, new: str) -> None:
    section, _, key = old.rpartition(".")
    place = settings.get(section) if section else settings
    if not isinstance(place, dict) or key not in place:
        return
    wanted = new.rpartition(".")[2]
    if wanted in place:
        raise ConfigError(f"{path}: {old} is the old name of {new}, and both are set", cure=f"leave {new}")
    place[wanted] = place.pop(key)
    logger.warning("%s: %s is now called %s; the old name goes with the next version", path, old, new)


def described(settings: BaseModel, indent: str = "") -> Iterator[str]:
    """The settings in effect as lines of YAML, each with what it means."""
    values = settings.model_dump(mode="json")
    for name, entry in type(settings).model_fields.items():
        value = getattr(settings, name)
        if isinstance(value, BaseModel):
            yield f"{indent}{name}:"
            yield from described(value, indent + "  ")
        else:
            yield f"{indent}{name}: {json.dumps(_as_set(values[name]))}  # {entry.description}"


def _as_set(value: Any) -> Any:
    """A value without what is not set in the mappings within it."""
    if isinstance(value, list):
        return [_as_set(each) for each in value]
    if isinstance(value, dict):
        return {key: _as_set(each) for key, each in value.items() if each is not None}
    return value


def complaints(error: ValidationError, model: type[BaseModel]) -> str:
    """What is wrong with settings for `model`: each key with its fault, unknown ones with the known."""
    texts = []
    for item in error.errors():
        place = ".".join(str(part) for part in item["loc"])
        if item["type"] == "extra_forbidden":
            known = ", ".join(sorted(_section(model, item["loc"][:-1]).model_fields))
            texts.append(f"{place}: unknown key; known: {known}")
        else:
            message = _plain(item["msg"], item["input"])
            texts.append(f"{place}: {message}" if place else message)
    return "; ".join(texts)


def _in_a_line(error: Exception) -> str:
    """The parser's word without the name it gives to every text."""
    return " ".join(str(error).replace('in "<unicode string>",', "in").split())


def _plain(message: str, given: Any) -> str:
    """The checker's sentence in words for somebody who writes YAML."""
    if message == "Field required":
        return "missing"
    if not message.startswith("Input should be "):
        return message.removeprefix("Value error, ")
    wanted = message.removeprefix("Input should be ")
    for pattern, words in _WORDS:
        wanted = pattern.sub(words, wanted)
    shown = repr(given)
    return f"must be {wanted}, not {shown if len(shown) <= _SHOWN else shown[:_SHOWN] + '...'}"


def _section(model: type[BaseModel], place: tuple[int | str, ...]) -> type[BaseModel]:
    for part in place:
        entry = model.model_fields.get(str(part))
        inner = entry.annotation if entry is not None else None
        for each in (inner, *typing.get_args(inner)):
            if isinstance(each, type) and issubclass(each, BaseModel):
                model = each
    return model
