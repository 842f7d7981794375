"""How far `paper` strays from what `weighted` keeps: stacks of equal size, reached with the fewest moves."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from yarn_accel.core.binding import (
    ANodeAdded,
    BindingEvent,
    BindingPolicy,
    Move,
    WeightChanged,
    WeightedBinding,
)


def misplaced(sizes: Sequence[int]) -> int:
    """How many NNodes of a rack would have to move for its stacks to differ by at most one.

    >>> misplaced([3, 2, 2]), misplaced([5, 1, 0]), misplaced([])
    (0, 3, 0)
    """
    if not sizes:
        return 0
    least, n_larger = divmod(sum(sizes), len(sizes))
    falling = sorted(sizes, reverse=True)
    return sum(max(size - least - (number < n_larger), 0) for number, size in enumerate(falling))


@dataclass(frozen=True, slots=True)
class Deviation:
    """A policy beside a balanced one over the same events.

    Attributes:
        n_moves: NNodes that were given an ANode, newcomers included.
        n_moves_balanced: the same under `weighted` with equal weights, the fewest for its balance.
        misplaced_mean: NNodes of all racks that would have to move for balance, after an event.
        misplaced_max: the most there ever were.
        excess_max: the most NNodes any ANode ever had above the most loaded one of its rack when balanced.
    """

    n_events: int
    n_moves: int
    n_moves_balanced: int
    misplaced_mean: float
    misplaced_max: int
    excess_max: int


def deviation(policy: BindingPolicy, events: Iterable[BindingEvent]) -> Deviation:
    """Drive a policy without nodes, and a balanced one beside it, through events; all weights count as 1."""
    balanced = WeightedBinding()
    rack_of: dict[str, str] = {}
    n_moves = n_moves_balanced = excess_max = 0
    stray: list[int] = []
    for event in events:
        if isinstance(event, WeightChanged):
            continue
        if isinstance(event, ANodeAdded):
            event = ANodeAdded(event.node, event.rack)
            rack_of[event.node] = event.rack
        n_moves += _n_bound(policy.apply(event))
        n_moves_balanced += _n_bound(balanced.apply(event))
        sizes = _sizes(policy, rack_of)
        stray.append(sum(map(misplaced, sizes)))
        excess_max = max([excess_max, *(max(rack) - math.ceil(sum(rack) / len(rack)) for rack in sizes)])
    mean = sum(stray) / len(stray) if stray else 0.0
    return Deviation(len(stray), n_moves, n_moves_balanced, mean, max(stray, default=0), excess_max)


def _n_bound(moves: Iterable[Move]) -> int:
    return sum(move.new is not None for move in moves)


def _sizes(policy: BindingPolicy, rack_of: Mapping[str, str]) -> list[list[int]]:
    """The sizes of the stacks, by rack."""
    racks: dict[str, list[int]] = {}
    for anode, load in policy.loads().items():
        racks.setdefault(rack_of[anode], []).append(round(load))
    return list(racks.values())
