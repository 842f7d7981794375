"""Random DAGs with the meaning of DAGGEN's parameters, which the MPS paper's Table 3 lists.

Levels have about n^fat tasks, perturbed by up to 1 - regularity; a task has 1 + U(0, density x tasks of the
level above) parents there, or up to `jump` levels up. A task works on d elements, a multiple of 1024; its
edges carry 8 d^2 bytes. Its operations are op d^2, 2 op d^2 log2 d or d^3, with op of 64 to 512: the
*class* of DAGGEN's `ccr` (0: a random one). The other reading of `ccr` is a number: mean transfer over mean
computation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from yarn_accel.core.dags.model import Dag, DagEdge, DagTask, Machine
from yarn_accel.core.tasks.values import ResourceId
from yarn_accel.errors import ConfigError

_ELEMENTS = 1024


@dataclass(frozen=True, slots=True)
class DagShape:
    """DAGGEN's parameters.

    Attributes:
        n_tasks: how many.
        least_data: elements of a task, at least.
        most_data: at most.
        fat: 0 is a chain, 1 one level.
        density: of the edges between levels.
        regularity: 1 has equal levels.
        jump: how many levels an edge may cross.
        complexity: class of operations, 1 to 3; 0 is a random one for each task.
        ratio: if given, edges are scaled so that mean transfer over mean computation is this.
    """

    n_tasks: int
    least_data: int = 2048
    most_data: int = 11264
    fat: float = 0.5
    density: float = 0.5
    regularity: float = 0.5
    jump: int = 1
    complexity: int = 0
    ratio: float | None = None

    def __post_init__(self) -> None:
        shares = (self.fat, self.density, self.regularity)
        if self.n_tasks < 1 or self.jump < 1 or not all(0 <= each <= 1 for each in shares):
            raise ConfigError(f"shape of a DAG: n_tasks and jump are from 1, the others from 0 to 1: {self}")
        if not _ELEMENTS <= self.least_data <= self.most_data or self.complexity not in range(4):
            raise ConfigError(
                f"shape of a DAG: expected 1024 <= least_data <= most_data, class 0 to 3: {self}"
            )
        if self.ratio is not None and not 0 <= self.ratio < math.inf:
            raise ConfigError(f"shape of a DAG: ratio: expected a number from 0, found {self.ratio}")


def random_dag(
    name: str,
    shape: DagShape,
    rng: Random,
    mean_s: float,
    bandwidth_bytes_per_s: float,
    operations_per_s: float = 1e9,
    machines: Sequence[Machine] = (),
    heterogeneity: float = 0.0,
) -> Dag:
    """A DAG whose tasks take `mean_s` on average on a machine of speed 1.

    Args:
        name: of the DAG; tasks are called name.0, name.1, ...
        shape: what it looks like.
        rng: equal ones give equal DAGs.
        mean_s: all times, transfers too, are scaled by one factor for it.
        bandwidth_bytes_per_s: what the transfers are meant for.
        operations_per_s: of a machine of speed 1 before scaling; with `DagShape.ratio` it cancels out.
        machines: on each a task takes runtime / speed x U(1 - heterogeneity / 2, 1 + heterogeneity / 2).
        heterogeneity: 0 to 2.
    """
    levels = _levels(shape, rng)
    parents = _parents(shape, levels, rng)
    data = [
        int(rng.uniform(shape.least_data, shape.most_data)) // _ELEMENTS * _ELEMENTS
        for _ in range(shape.n_tasks)
    ]
    seconds = [_operations(shape, d, rng) / operations_per_s for d in data]
    scale = mean_s * len(seconds) / sum(seconds)
    n_bytes = [8.0 * d * d * scale for d in data]
    edges = [(parent, child) for child, each in enumerate(parents) for parent in each]
    if shape.ratio is not None and edges:
        mean_transfer_s = sum(n_bytes[parent] for parent, _ in edges) / len(edges) / bandwidth_bytes_per_s
        factor = shape.ratio * mean_s / mean_transfer_s
        n_bytes = [each * factor for each in n_bytes]
    tasks = []
    for number, alone_s in enumerate(seconds):
        spread = {
            machine.machine: alone_s
            * scale
            / machine.speed
            * rng.uniform(1 - heterogeneity / 2, 1 + heterogeneity / 2)
            for machine in machines
        }
        times_s: dict[ResourceId, float] = spread if heterogeneity else {}
        tasks.append(DagTask(f"{name}.{number}", alone_s * scale, times_s))
    listed = (DagEdge(tasks[p].task, tasks[c].task, n_bytes[p]) for p, c in edges)
    return Dag(name, tuple(tasks), tuple(listed))


def _levels(shape: DagShape, rng: Random) -> list[range]:
    usual = max(1, int(shape.n_tasks**shape.fat))
    spread = 1 - shape.regularity
    levels: list[range] = []
    n = 0
    while n < shape.n_tasks:
        size = max(1, int(usual * (1 + rng.uniform(-spread, spread))))
        levels.append(range(n, min(n + size, shape.n_tasks)))
        n = levels[-1].stop
    return levels


def _parents(shape: DagShape, levels: Sequence[range], rng: Random) -> list[list[int]]:
    found: list[list[int]] = [[] for _ in range(shape.n_tasks)]
    for depth in range(1, len(levels)):
        above = levels[depth - 1]
        for child in levels[depth]:
            wanted = min(1 + int(rng.uniform(0, shape.density * len(above))), len(above))
            chosen: set[int] = set()
            for _ in range(wanted):
                level = levels[max(0, depth - 1 - int(rng.uniform(0, shape.jump)))]
                first = rng.randrange(len(level))
                # Where a parent is taken already, the next one of its level is.
                turns = (level[(first + turn) % len(level)] for turn in range(len(level)))
                free = next((each for each in turns if each not in chosen), None)
                if free is not None:
                    chosen.add(free)
            found[child] = sorted(chosen)
    return found


def _operations(shape: DagShape, d: int, rng: Random) -> float:
    kind = shape.complexity or rng.randint(1, 3)
    op = rng.uniform(64, 512)
    if kind == 1:
        return op * d * d
    if kind == 2:
        return 2 * op * d * d * math.log2(d)
    return float(d) ** 3
