"""How a mapper connects: each setting from the argument, else from the environment, else its default.

Standard library only, Python 3.8.
"""

from __future__ import annotations

import math
from typing import Any, Callable, Mapping, NamedTuple, Optional, Union

from yarn_accel.client.liveness import LOST_AFTER_S
from yarn_accel.errors import ConfigError

RUNNERS = ("hadoop", "local", "inline")
_LONGEST_S = 30 * 24 * 3600.0


class ConnectSettings(NamedTuple):
    """What `connect` decides by itself and a user may decide instead.

    Attributes:
        runner: one of `RUNNERS`; ``ACCEL_RUNNER``.
        fallback: compute in this process where no server answers; ``ACCEL_FALLBACK``, true or false.
        window: calls under way at once; ``ACCEL_WINDOW``.
        pack: how many small calls of the same form travel as one request, or "auto"; ``ACCEL_PACK``.
        patience_s: how long to look for a server, bear with a busy one, and wait for storage;
            ``ACCEL_PATIENCE_S``.
        lost_after_s: after so long without an acknowledgement a server's node is lost;
            ``ACCEL_LOST_AFTER_S``.
    """

    runner: str
    fallback: bool
    window: int
    pack: Union[int, str]
    patience_s: float
    lost_after_s: float

    @classmethod
    def resolve(cls, environ: Mapping[str, str], **given: Any) -> ConnectSettings:
        """The settings, given arguments first; None and the empty text leave one to the environment.

        Raises:
            ConfigError: names the argument or variable, and what was expected there.
        """
        values = {}
        for name, (parse, default) in _FIELDS.items():
            value, place = given.get(name), "argument " + name
            if value is None or value == "":
                place = "ACCEL_" + name.upper()
                value = environ.get(place, "")
            values[name] = default if value == "" else parse(place, value)
        return cls(**values)


def _runner(place: str, value: Any) -> str:
    if value not in RUNNERS:
        raise ConfigError("{}: expected one of {}, found {!r}".format(place, ", ".join(RUNNERS), value))
    return str(value)


def _truth(place: str, value: Any) -> bool:
    known = {True: True, False: False, "true": True, "false": False}
    found = known.get(value.lower() if isinstance(value, str) else value)
    if found is None:
        raise ConfigError("{}: expected true or false, found {!r}".format(place, value))
    return found


def _pack(place: str, value: Any) -> Union[int, str]:
    return "auto" if value == "auto" else _count(1 << 20)(place, value)


def _count(most: int) -> Callable[[str, Any], int]:
    def parse(place: str, value: Any) -> int:
        found = _number(value)
        if found is None or found != int(found) or not 1 <= found <= most:
            raise ConfigError("{}: expected a number from 1 to {}, found {!r}".format(place, most, value))
        return int(found)

    return parse


def _seconds(least: float, most: float) -> Callable[[str, Any], float]:
    def parse(place: str, value: Any) -> float:
        found = _number(value)
        if found is None or not least <= found <= most:
            raise ConfigError(
                "{} is {!r}: seconds from {:g} to {:g} expected".format(place, value, least, most)
            )
        return found

    return parse


def _number(value: Any) -> Optional[float]:
    try:
        found = float(value)
    except (TypeError, ValueError):
        return None
    return found if math.isfinite(found) and not isinstance(value, bool) else None


_FIELDS: Mapping[str, Any] = {
    "runner": (_runner, "hadoop"),
    "fallback": (_truth, True),
    "window": (_count(4096), 4),
    "pack": (_pack, 1),
    "patience_s": (_seconds(0.0, _LONGEST_S), 60.0),
    "lost_after_s": (_seconds(1.0, 3600.0), LOST_AFTER_S),
}
