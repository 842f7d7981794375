"""Settings from a YAML file, what is wrong with them in one line, and those in effect as such a file."""

from __future__ import annotations

import json
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from yarn_accel.errors import ConfigError

__all__ = ["complaints", "described", "read_settings"]


def read_settings(path: Path, *, may_be_empty: bool = False) -> dict[str, Any]:
    """The keys and values of a file; none of an empty one, where that is allowed.

    Raises:
        ConfigError: it cannot be read, is not YAML, or not a mapping; names the file.
    """
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
    if values is None and may_be_empty:
        return {}
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: not a mapping of keys to values")
    return {str(key): value for key, value in values.items()}


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
    """What is wrong with settings for `model`: each key with its fault, unknown ones with the known."""
    texts = []
    for item in error.errors():
        place = ".".join(str(part) for part in item["loc"])
        if item["type"] == "extra_forbidden":
            known = ", ".join(sorted(_section(model, item["loc"][:-1]).model_fields))
            texts.append(f"{place}: unknown key; known: {known}")
        else:
            message = item["msg"].removeprefix("Value error, ")
            texts.append(f"{place}: {message}" if place else message)
    return "; ".join(texts)


def _section(model: type[BaseModel], place: tuple[int | str, ...]) -> type[BaseModel]:
    """The innermost model on the way to a place."""
    for part in place:
        field = model.model_fields.get(str(part))
        inner = field.annotation if field is not None else None
        for each in (inner, *typing.get_args(inner)):
            if isinstance(each, type) and issubclass(each, BaseModel):
                model = each
    return model
