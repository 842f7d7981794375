"""The one table of binding policies."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from yarn_accel.core.binding.container import ContainerBinding
from yarn_accel.core.binding.events import BindingPolicy
from yarn_accel.core.binding.paper import PaperBinding
from yarn_accel.core.binding.weighted import WeightedBinding
from yarn_accel.errors import ConfigError

#: The settings each policy takes.
SETTINGS: dict[str, tuple[str, ...]] = {
    "paper": (),
    "container": ("cross_rack", "min_gain_s", "min_gain_share", "max_moves"),
    "weighted": ("cross_rack",),
}


def make(name: str, settings: Mapping[str, Any] | None = None) -> BindingPolicy:
    """A new policy without nodes.

    Args:
        name: a key of `POLICIES`.
        settings: those in `SETTINGS`; ``cross_rack`` is ``fallback`` (default: the nodes of a rack without a
            serving ANode use those of other racks until it has one) or ``deny`` (racks stay apart);
            ``allow`` is the former name of ``fallback``.

    Raises:
        ConfigError: an unknown name or setting, or a value out of range; names the known ones.
    """
    if name not in POLICIES:
        raise ConfigError(f"binding.policy: no policy is called {name!r}; known: {', '.join(POLICIES)}")
    given = settings or {}
    for key in given:
        if key not in SETTINGS[name]:
            known = ", ".join(SETTINGS[name]) or "none"
            raise ConfigError(f"binding: {name!r} has no setting {key!r}; it has: {known}")
    return POLICIES[name](given)


def _paper(_: Mapping[str, Any]) -> BindingPolicy:
    return PaperBinding()


def _container(given: Mapping[str, Any]) -> BindingPolicy:
    # The mappers use these; whoever wrote them learns here what is wrong.
    for key in ("min_gain_s", "min_gain_share"):
        _check_number(given, key)
    _check_count(given, "max_moves")
    return ContainerBinding(_crosses(given))


def _weighted(given: Mapping[str, Any]) -> BindingPolicy:
    return WeightedBinding(_crosses(given))


POLICIES: dict[str, Callable[[Mapping[str, Any]], BindingPolicy]] = {
    "paper": _paper,
    "container": _container,
    "weighted": _weighted,
}


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
