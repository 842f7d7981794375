"""Frozen values as plain JSON data and back: messages on the wire, states in the store.

Only classes that are listed can be read, every field is checked against its type, and the classes check
their own bounds; whatever else arrives is a `ModelError` that names the field.
"""

from __future__ import annotations

import dataclasses
import math
import types
from collections.abc import Iterable
from enum import Enum
from typing import Any, NewType, Union, get_args, get_origin, get_type_hints

from torque_sched.errors import ModelError

_TEXT_CAP = 300_000
_ITEMS_CAP = 100_000


class Codec:
    """Reads and writes the listed dataclasses; each is named by its class name under ``kind``."""

    def __init__(self, classes: Iterable[type]) -> None:
        self._classes = {cls.__name__: cls for cls in classes}
        self._hints = {cls: get_type_hints(cls) for cls in self._classes.values()}

    def plain(self, value: Any) -> Any:
        """The value as dicts, lists, texts and numbers."""
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = {f.name: self.plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
            return {"kind": type(value).__name__, **fields}
        if isinstance(value, Enum):
            return [type(value).__name__, value.value]
        if isinstance(value, tuple):
            return [self.plain(item) for item in value]
        return value

    def value(self, plain: Any) -> Any:
        """The dataclass that `plain` made.

        Raises:
            ModelError: an unknown kind, a missing or unknown field, a wrong type or a value out of bounds.
        """
        if not isinstance(plain, dict) or not isinstance(plain.get("kind"), str):
            raise ModelError("a value without a kind")
        cls = self._classes.get(plain["kind"])
        if cls is None:
            raise ModelError(f"unknown kind {plain['kind'][:40]!r}")
        fields = {f.name: f for f in dataclasses.fields(cls)}
        unknown = set(plain) - set(fields) - {"kind"}
        required = {n for n, f in fields.items() if f.default is f.default_factory is dataclasses.MISSING}
        if unknown or required - set(plain):
            names = sorted(str(name)[:40] for name in unknown | (required - set(plain)))
            raise ModelError(f"{cls.__name__} with unknown or missing fields {', '.join(names[:5])}")
        hints = self._hints[cls]
        values = {
            name: self._read(hints[name], plain[name], f"{cls.__name__}.{name}")
            for name in fields
            if name in plain
        }
        return cls(**values)

    def _read(self, hint: Any, plain: Any, where: str) -> Any:
        if isinstance(hint, NewType):
            return self._read(hint.__supertype__, plain, where)
        origin = get_origin(hint)
        if origin in (Union, types.UnionType):
            return self._one_of(get_args(hint), plain, where)
        if origin is tuple:
            return self._items(get_args(hint), plain, where)
        if dataclasses.is_dataclass(hint):
            value = self.value(plain)
            if isinstance(hint, type) and isinstance(value, hint):
                return value
        elif isinstance(hint, type) and issubclass(hint, Enum):
            return _member(hint, plain, where)
        elif _fits(hint, plain):
            return float(plain) if hint is float else plain
        raise ModelError(f"{where} is no {getattr(hint, '__name__', hint)}")

    def _items(self, hints: tuple[Any, ...], plain: Any, where: str) -> tuple[Any, ...]:
        if not isinstance(plain, list) or len(plain) > _ITEMS_CAP:
            raise ModelError(f"{where} is no list of at most {_ITEMS_CAP} values")
        if len(hints) == 2 and hints[1] is Ellipsis:
            return tuple(self._read(hints[0], item, where) for item in plain)
        if len(hints) != len(plain):
            raise ModelError(f"{where} has {len(plain)} values instead of {len(hints)}")
        return tuple(self._read(hint, item, where) for hint, item in zip(hints, plain, strict=True))

    def _one_of(self, hints: tuple[Any, ...], plain: Any, where: str) -> Any:
        if plain is None and type(None) in hints:
            return None
        for hint in hints[:-1]:
            try:
                return self._read(hint, plain, where)
            except ModelError:
                continue
        return self._read(hints[-1], plain, where)


def _member(cls: type[Enum], plain: Any, where: str) -> Enum:
    if isinstance(plain, list) and len(plain) == 2 and plain[0] == cls.__name__:
        for member in cls:
            if member.value == plain[1]:
                return member
    raise ModelError(f"{where} is no {cls.__name__}")


def _fits(hint: Any, plain: Any) -> bool:
    if hint is bool:
        return isinstance(plain, bool)
    if isinstance(plain, bool):
        return False
    if hint is int:
        return isinstance(plain, int) and abs(plain) < 2**53
    if hint is float:
        return isinstance(plain, int | float) and math.isfinite(plain)
    return hint is str and isinstance(plain, str) and len(plain) <= _TEXT_CAP
