"""Fair share with decay: a tree of shares, and usage that is forgotten by half-lives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torque_sched.errors import ConfigError

ROOT = "root"
UNKNOWN = "unknown"
DEFAULT_GPU_WEIGHT = 10.0
"""A node with GPUs has some 8 to 16 slots for each: so all its GPUs count about what all its slots do."""


@dataclass(frozen=True, slots=True)
class Share:
    """A user or group of the tree in ``resource_group``: its parent and its shares among its siblings."""

    name: str
    shares: float
    parent: str = ROOT


def weighed(proc_s: float, gpu_s: float, gpu_weight: float) -> float:
    """Usage as one figure: processor seconds, and GPU seconds as so many processor seconds each.

    >>> weighed(100.0, 8.0, 10.0)
    180.0
    """
    return proc_s + gpu_weight * gpu_s


def decayed(usage: Mapping[str, float], elapsed_s: float, half_life_s: float) -> dict[str, float]:
    """Usage after a while: after one half-life it counts half.

    >>> decayed({"ann": 8.0}, 20.0, 10.0)
    {'ann': 2.0}
    """
    factor = 0.5 ** (elapsed_s / half_life_s) if half_life_s > 0 else 0.0
    return {name: amount * factor for name, amount in usage.items()}


def entitlements(tree: Iterable[Share], unknown_shares: float) -> dict[str, float]:
    """What part of the whole each leaf of the tree is entitled to; users not in it share ``unknown``'s part.

    >>> entitlements([Share("g", 30), Share("ann", 1, "g"), Share("bob", 2, "g")], 10)
    {'ann': 0.25, 'bob': 0.5, 'unknown': 0.25}

    Raises:
        ConfigError: a name twice, an unknown parent, a circle or shares below zero.
    """
    if not unknown_shares >= 0:
        raise ConfigError(f"unknown_shares {unknown_shares:g}", cure="write 0 or more")
    entries = list(tree)
    by_name = {entry.name: entry for entry in entries}
    if len(by_name) != len(entries):
        raise ConfigError("resource_group names somebody twice", cure="keep one line for each name")
    children: dict[str, list[Share]] = {}
    for entry in entries:
        if entry.shares < 0 or (entry.parent != ROOT and entry.parent not in by_name):
            raise ConfigError(
                f"resource_group: {entry.name} has shares {entry.shares:g} of {entry.parent}",
                cure="shares are 0 or more, and a parent is root or has a line of its own",
            )
        children.setdefault(entry.parent, []).append(entry)
    children.setdefault(ROOT, []).append(Share(UNKNOWN, unknown_shares))
    found: dict[str, float] = {}
    _divide(ROOT, 1.0, children, found, set())
    _refuse_circles(entries, found, children)
    return found


def _divide(
    name: str, part: float, children: Mapping[str, list[Share]], found: dict[str, float], seen: set[str]
) -> None:
    """Give each child its part, leaves for good; every name is visited once."""
    stack = [(name, part)]
    while stack:
        current, whole = stack.pop()
        seen.add(current)
        family = children.get(current, [])
        total = sum(child.shares for child in family)
        for child in family:
            own = whole * child.shares / total if total else 0.0
            if child.name in children:
                stack.append((child.name, own))
            else:
                found[child.name] = own


def _refuse_circles(
    entries: Iterable[Share], found: Mapping[str, float], children: Mapping[str, list[Share]]
) -> None:
    reached = set(found)
    stack = [ROOT]
    while stack:
        for child in children.get(stack.pop(), []):
            reached.add(child.name)
            if child.name in children:
                stack.append(child.name)
    lost = sorted(entry.name for entry in entries if entry.name not in reached)
    if lost:
        raise ConfigError(
            f"resource_group: {', '.join(lost)} hang together in a circle", cure="start from root"
        )
