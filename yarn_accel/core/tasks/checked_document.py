"""Reads an object of a JSON document that somebody sent: every key is asked for with its type and its bound.

What differs is a `RemoteProtocolError` with the place. Lengths are compared before anything is built of what
came; unknown keys are refused at `close`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from enum import Enum
from typing import Any, TypeVar

from yarn_accel.errors import RemoteProtocolError

_MAX_SHOWN = 60
_Choice = TypeVar("_Choice", bound=Enum)


class CheckedObject:
    """One object, or one list of a fixed length, whose keys are its positions.

    Args:
        value: what came.
        place: where it stands, for errors.
    """

    def __init__(self, value: Any, place: str) -> None:
        if not isinstance(value, dict):
            raise RemoteProtocolError(f"{place}: {_shown(value)} is no object")
        self._values: dict[Any, Any] = value
        self._place = place
        self._asked: set[Any] = set()

    def error(self, key: object, text: str) -> RemoteProtocolError:
        """What is wrong with a key."""
        return RemoteProtocolError(f"{self._place}.{key} {text}")

    def close(self) -> None:
        """Refuse keys that nobody asked for."""
        unknown = sorted(str(key)[:_MAX_SHOWN] for key in self._values if key not in self._asked)
        if unknown:
            known = ", ".join(sorted(map(str, self._asked)))
            raise RemoteProtocolError(f"{self._place}: unknown key {unknown[0]!r}; known: {known}")

    def is_equal_to(self, value: Any) -> bool:
        """Whether all of it is as in another object, which was checked."""
        return bool(self._values == value)

    def is_null(self, key: str) -> bool:
        """Whether it is null."""
        return self._value(key) is None

    def text(self, key: object, most: int, pattern: re.Pattern[str] | None = None) -> str:
        """A text of at most so many characters, without NUL."""
        return self._text(key, self._value(key), most, pattern)

    def line(self, key: object, most: int) -> str:
        """The same, with spaces in place of what a terminal acts on."""
        text = self.text(key, most)
        return text if text.isprintable() else "".join(char if char.isprintable() else " " for char in text)

    def names(self, most: int) -> list[str]:
        """The keys of an object that may have any."""
        if len(self._values) > most:
            raise RemoteProtocolError(f"{self._place}: has {len(self._values)} keys, {most} are taken")
        return [self._text(key, key, _MAX_SHOWN) for key in self._values]

    def values(self, key: str, most: int) -> list[Any]:
        """A list of anything, for a caller that checks it."""
        return self._list(key, most)

    def row(self, key: object, n: int) -> CheckedObject:
        """A list of `n` values, whose keys are 0 to n - 1."""
        return self._row(key, self._value(key), n)

    def texts(self, key: object, most: int, longest: int) -> tuple[str, ...]:
        """A list of texts."""
        return tuple(self._text(key, each, longest) for each in self._list(key, most))

    def text_pairs(
        self, key: str, most: int, pattern: re.Pattern[str], longest: int
    ) -> tuple[tuple[str, str], ...]:
        """An object of texts, whose keys fit the pattern; sorted."""
        value = self._value(key)
        if not isinstance(value, dict) or len(value) > most:
            raise self.error(key, f"is no object of at most {most} keys")
        return tuple(
            (self._text(key, name, longest, pattern), self._text(key, text, longest))
            for name, text in sorted(value.items())
        )

    def count(self, key: object, most: int, least: int = 0) -> int:
        """A whole number within these bounds."""
        value = self._value(key)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise self.error(key, f"is {_shown(value)}, not a whole number from {least} to {most}")
        return value

    def counts(self, key: str, n: int, most: int) -> tuple[int, ...]:
        """A list of exactly `n` whole numbers from 0."""
        row = self._row(key, self._value(key), n)
        return tuple(row.count(at, most) for at in range(n))

    def number(self, key: object, most: float) -> float:
        """A number from 0."""
        value = self._value(key)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        # An integer is compared before it is converted: a long one does not fit a float.
        if not is_number or not 0 <= value <= most or not math.isfinite(value):
            raise self.error(key, f"is {_shown(value)}, not a number from 0 to {most:g}")
        return float(value)

    def flag(self, key: object) -> bool:
        """True or false."""
        value = self._value(key)
        if not isinstance(value, bool):
            raise self.error(key, f"is {_shown(value)}, neither true nor false")
        return value

    def choice(self, key: str, kind: type[_Choice]) -> _Choice:
        """One of an enum's values."""
        value = self._value(key)
        for each in kind:
            if isinstance(value, str) and each.value == value:
                return each
        raise self.error(key, f"is {_shown(value)}, none of {', '.join(str(each.value) for each in kind)}")

    def below(self, key: object) -> CheckedObject:
        """An object below this one."""
        return CheckedObject(self._value(key), f"{self._place}.{key}")

    def objects(self, key: str, most: int) -> Iterator[CheckedObject]:
        """A list of objects."""
        for at, each in enumerate(self._list(key, most)):
            yield CheckedObject(each, f"{self._place}.{key}[{at}]")

    def rows(self, key: str, most: int, n: int) -> Iterator[CheckedObject]:
        """A list of lists of `n` values each, whose keys are 0 to n - 1."""
        for each in self._list(key, most):
            yield self._row(key, each, n)

    def _row(self, key: object, value: Any, n: int) -> CheckedObject:
        if not isinstance(value, list) or len(value) != n:
            raise self.error(key, f"has {_shown(value)}, not a list of {n}")
        return CheckedObject(dict(enumerate(value)), f"{self._place}.{key}")

    def _value(self, key: object) -> Any:
        self._asked.add(key)
        if key not in self._values:
            raise self.error(key, "is missing")
        return self._values[key]

    def _list(self, key: object, most: int) -> list[Any]:
        value = self._value(key)
        if not isinstance(value, list) or len(value) > most:
            raise self.error(key, f"is no list of at most {most}")
        return value

    def _text(self, key: object, value: Any, most: int, pattern: re.Pattern[str] | None = None) -> str:
        if not isinstance(value, str) or len(value) > most or "\0" in value:
            raise self.error(key, f"is {_shown(value)}, not a text of at most {most} characters")
        if not value.isascii() and any("\ud800" <= char <= "\udfff" for char in value):
            raise self.error(key, "has half a character (a lone surrogate)")
        if pattern is not None and not pattern.match(value):
            raise self.error(key, f"is {_shown(value)}, which has characters that it must not have")
        return value


def _shown(value: Any) -> str:
    """A little of a value; nothing of what a container holds."""
    if isinstance(value, dict | list):
        return f"a {'list' if isinstance(value, list) else 'mapping'} of {len(value)}"
    if isinstance(value, int) and abs(value) > 2**64:
        return "a number of more than 64 bits"
    return repr(value[:_MAX_SHOWN] if isinstance(value, str) else value)
