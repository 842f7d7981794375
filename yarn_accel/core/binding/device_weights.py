"""The admin's table of performance weights (paper section 5, second idea)::

default: 1.0
devices:
  NVIDIA H200 NVL: 8.0
  NVIDIA H200*: 9.5        # any other H200; of several patterns that fit the longest counts
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from yarn_accel.core.binding.stacks import MAX_WEIGHT
from yarn_accel.errors import ConfigError

_KEYS = ("default", "devices")
Table = tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class DeviceWeights:
    """Weights by device name as its driver tells it; case and repeated blanks do not matter.

    Attributes:
        edited: (name or pattern, weight) pairs; a pattern ends in ``*``.
        default: of a device that is not in the table.
    """

    edited: Table = ()
    default: float = 1.0

    def look_up(self, device: str) -> float:
        """The weight of one device."""
        name = _folded(device)
        fitting = [(pattern, weight) for pattern, weight in self.edited if _fits(_folded(pattern), name)]
        if not fitting:
            return self.default
        return max(fitting, key=lambda one: (not one[0].endswith("*"), len(_folded(one[0]))))[1]

    def of_node(self, devices: Iterable[str]) -> float:
        """The weight of an ANode: that of all its devices together; the default when it names none."""
        return min(sum(map(self.look_up, devices)) or self.default, MAX_WEIGHT)

    @classmethod
    def from_mapping(cls, content: Mapping[str, Any], place: str = "weights") -> DeviceWeights:
        """The table, from parsed YAML.

        Raises:
            ConfigError: an unknown key, a pattern with ``*`` before its end, a weight that is none.
        """
        for key in content:
            if key not in _KEYS:
                raise ConfigError(f"{place}: unknown key {key!r}; known: {', '.join(_KEYS)}")
        devices = content.get("devices") or {}
        if not isinstance(devices, Mapping):
            raise ConfigError(f"{place}.devices: expected names with weights, found {type(devices).__name__}")
        edited = tuple(
            (_pattern(name, place), _weight(value, f"{place}.devices.{name}"))
            for name, value in devices.items()
        )
        return cls(edited, default=_weight(content.get("default", 1.0), f"{place}.default"))


def _folded(name: str) -> str:
    return " ".join(name.split()).casefold()


def _fits(pattern: str, name: str) -> bool:
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern


def _pattern(name: Any, place: str) -> str:
    if not isinstance(name, str) or "*" in name[:-1]:
        raise ConfigError(f"{place}.devices: {name!r} is no device name; a * may only be its end")
    return name


def _weight(value: Any, place: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1e6:
        raise ConfigError(f"{place}: expected a number above 0 and up to a million, found {value!r}")
    return float(value)
