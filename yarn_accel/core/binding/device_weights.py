"""The table of performance weights (paper section 5, second idea): measured, or edited by the admin.

What the admin wrote wins over what was measured, and that over the default::

    default: 1.0
    devices:
      NVIDIA H200 NVL: 8.0
      NVIDIA H200*: 9.5        # any other H200; of several patterns that fit the longest counts
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from yarn_accel.core.binding.stacks import MAX_WEIGHT
from yarn_accel.errors import ConfigError

__all__ = ["DeviceWeight", "DeviceWeights", "relative_weights"]

_KEYS = ("default", "devices")
Table = tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class DeviceWeight:
    """A weight and where it comes from, such as ``edited (NVIDIA H200*)``."""

    weight: float
    source: str


@dataclass(frozen=True, slots=True)
class DeviceWeights:
    """Weights by device name as its driver tells it; case and repeated blanks do not matter.

    Attributes:
        edited: (name or pattern, weight) pairs; a pattern ends in ``*``.
        measured: (name, weight) pairs.
        default: of a device in neither.
    """

    edited: Table = ()
    measured: Table = ()
    default: float = 1.0

    def look_up(self, device: str) -> DeviceWeight:
        """The weight of one device."""
        name = _folded(device)
        fitting = [(pattern, weight) for pattern, weight in self.edited if _fits(_folded(pattern), name)]
        if fitting:
            pattern, weight = max(fitting, key=lambda one: (not one[0].endswith("*"), len(_folded(one[0]))))
            return DeviceWeight(weight, f"edited ({pattern})")
        for known, weight in self.measured:
            if _folded(known) == name:
                return DeviceWeight(weight, "measured")
        return DeviceWeight(self.default, "default")

    def of_node(self, devices: Iterable[str]) -> float:
        """The weight of an ANode: that of all its devices together; the default when it names none."""
        return min(sum(self.look_up(device).weight for device in devices) or self.default, MAX_WEIGHT)

    def with_measured(self, weights: Mapping[str, float]) -> DeviceWeights:
        """The same table with other measured weights, such as those of `relative_weights`."""
        return replace(self, measured=tuple(sorted(weights.items())))

    @classmethod
    def from_mapping(cls, content: Mapping[str, Any], place: str = "weights") -> DeviceWeights:
        """The admin's part of the table, from parsed YAML.

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


def relative_weights(rates: Mapping[str, Mapping[str, float]], reference: str) -> dict[str, float]:
    """Weights from measured rates: how many times faster a device is than the reference.

    Args:
        rates: by device and operation, in any unit per second.
        reference: the device of weight 1.

    Returns:
        per device the geometric mean over the operations it shares with the reference, rounded to two digits,
        so that noise moves nobody; devices that share none are left out.
    """
    base = {operation: rate for operation, rate in rates.get(reference, {}).items() if rate > 0}
    weights = {}
    for device, own in rates.items():
        ratios = [own[operation] / base[operation] for operation in base if own.get(operation, 0.0) > 0]
        if ratios:
            weights[device] = float(f"{math.exp(sum(map(math.log, ratios)) / len(ratios)):.2g}")
    return weights


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
