"""The settings of bindings: a policy by its name, and the table of performance weights.

The table of weights (paper section 5, second idea)::

    default: 1.0
    devices:
      NVIDIA H200 NVL: 8.0
      NVIDIA H200*: 9.5        # any other H200; of several patterns that fit the longest counts
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from yarn_accel.core.binding.policies import ContainerBinding, PaperBinding, WeightedBinding
from yarn_accel.core.binding.policy import BindingPolicy
from yarn_accel.core.binding.stacks import MAX_WEIGHT
from yarn_accel.errors import ConfigError

#: Name of a policy -> the settings it takes.
POLICIES: dict[str, tuple[str, ...]] = {
    "paper": (),
    "container": ("cross_rack", "min_gain_s", "min_gain_share", "max_moves"),
    "weighted": ("cross_rack",),
}
_KEYS = ("default", "devices")
_Table = tuple[tuple[str, float], ...]


def make(name: str, settings: Mapping[str, Any] | None = None) -> BindingPolicy:
    """A new policy without nodes.

    Args:
        name: a key of `POLICIES`.
        settings: those in `POLICIES`; ``cross_rack`` is ``fallback`` (default: the nodes of a rack without a
            serving ANode use those of other racks until it has one) or ``deny`` (racks stay apart);
            ``allow`` is the former name of ``fallback``.

    Raises:
        ConfigError: an unknown name or setting, or a value out of range; names the known ones.
    """
    if name not in POLICIES:
        raise ConfigError(f"binding.policy: no policy is called {name!r}; known: {', '.join(POLICIES)}")
    given = settings or {}
    for key in given:
        if key not in POLICIES[name]:
            known = ", ".join(POLICIES[name]) or "none"
            raise ConfigError(f"binding: {name!r} has no setting {key!r}; it has: {known}")
    if name == "paper":
        return PaperBinding()
    if name == "weighted":
        return WeightedBinding(_crosses(given))
    # Mappers use these; they are checked here so that the master refuses a wrong one at its start.
    for key in ("min_gain_s", "min_gain_share"):
        _check_number(given, key)
    _check_count(given, "max_moves")
    return ContainerBinding(_crosses(given))


def _crosses(given: Mapping[str, Any]) -> bool:
    value = given.get("cross_rack", "fallback")
    if value not in ("fallback", "deny", "allow"):
        raise ConfigError(f"binding.cross_rack: expected fallback or deny, found {value!r}")
    return bool(value != "deny")


def _check_number(given: Mapping[str, Any], key: str) -> None:
    value = given.get(key, 0)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ConfigError(f"binding.{key}: expected a number from 0, found {value!r}")


def _check_count(given: Mapping[str, Any], key: str) -> None:
    value = given.get(key, 0)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ConfigError(f"binding.{key}: expected a whole number from 0, found {value!r}")


@dataclass(frozen=True, slots=True)
class DeviceWeights:
    """Weights by the device names that drivers report; case and repeated blanks do not matter.

    Attributes:
        edited: (name or pattern, weight) pairs; a pattern ends in ``*``.
        default: of a device that is not in the table.
    """

    edited: _Table = ()
    default: float = 1.0

    def look_up(self, device: str) -> float:
        """The weight of one device."""
        name = _folded(device)
        fitting = [(pattern, weight) for pattern, weight in self.edited if _fits(_folded(pattern), name)]
        if not fitting:
            return self.default
        return max(fitting, key=lambda one: (not one[0].endswith("*"), len(_folded(one[0]))))[1]

    def of_node(self, devices: Iterable[str]) -> float:
        """The weight of an ANode: the sum of its devices' weights; the default when it names no device."""
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
