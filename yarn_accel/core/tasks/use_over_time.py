"""What a node did over time, as means of equal steps: figures 3, 4 and 10 of the HDAS paper."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from yarn_accel.core.tasks.outcome import NodeUse


class NodePlace(NamedTuple):
    """What a node has."""

    cores: int
    gpus: int
    bandwidth_bytes_per_s: float


@dataclass(frozen=True, slots=True)
class UseSteps:
    """Means in steps of `step_s` seconds; I/O is None in a step of which nothing is known."""

    step_s: float
    cores: tuple[float, ...]
    gpus: tuple[float, ...]
    gpus_computing: tuple[float, ...]
    io_bytes_per_s: tuple[float | None, ...]


def use_over_time(use: Sequence[NodeUse], end_s: float, n_steps: int) -> UseSteps:
    """The means of a node.

    Args:
        use: what it did, from second 0 on; I/O that is NaN is not known.
        end_s: when the last step ends; what was later is left out.
    """
    step_s = end_s / n_steps
    sums = [[0.0] * n_steps for _ in range(4)]
    io_s = [0.0] * n_steps
    number = 0
    ends = [min(each.at_s, end_s) for each in use[1:]] + [end_s]
    for each, until_s in zip(use, ends, strict=True):
        at_s = each.at_s
        is_known = not math.isnan(each.io_bytes_per_s)
        io = each.io_bytes_per_s if is_known else 0.0
        values = (each.n_cores_held, each.n_gpus_held, each.n_gpus_computing, io)
        while at_s < until_s:
            border_s = (number + 1) * step_s if number < n_steps - 1 else end_s
            next_s = min(until_s, border_s)
            for column, value in zip(sums, values, strict=True):
                column[number] += value * (next_s - at_s)
            io_s[number] += (next_s - at_s) * is_known
            at_s = next_s
            if next_s >= border_s:
                number = min(number + 1, n_steps - 1)
    cores, gpus, computing = (tuple(value / step_s for value in column) for column in sums[:3])
    io_means = tuple(value / s if s else None for value, s in zip(sums[3], io_s, strict=True))
    return UseSteps(step_s, cores, gpus, computing, io_means)
