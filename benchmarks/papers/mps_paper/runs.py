"""The worlds of the paper's three experiments, and their runs in processes."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from random import Random

from yarn_accel.core.dags.heft import heft
from yarn_accel.core.dags.model import Dag, DagEdge, DagId, Machine, PriorityClass
from yarn_accel.core.dags.policies.registry import make_dag_policy
from yarn_accel.core.tasks.values import ResourceId
from yarn_accel.dags.generator import DagShape, random_dag
from yarn_accel.sim.dag_simulator import simulate_dags
from yarn_accel.sim.dag_world import DagArrival, DagWorld, MachineStay

_MEAN_S = 10.0
_EVERY_S = 5.0
_OWN_S = 36.0
_HETEROGENEITY = 1.0
_N_OTHERS = 11
_LOWER = (PriorityClass.HIGH, PriorityClass.BASIC)


@dataclass(frozen=True)
class Cell:
    """One run: experiment, policy, x of its figure (DAGs, or the arrival of the preemptive one), seed."""

    kind: str
    policy: str
    point: int
    seed: int


@dataclass(frozen=True)
class CellResult:
    """What is kept of a run; `first` is the DAG that the third experiment is about."""

    mean_makespan_s: float
    unfairness: float
    utilisation: float
    moved: int
    first_makespan_s: float
    first_slowdown: float


def world_of_cell(cell: Cell) -> DagWorld:
    """The same for every policy, and with the same DAGs for every x of a seed."""
    rng = Random(f"{cell.kind} {cell.seed}")
    n_machines = 5 if cell.kind == "same" else 3
    machines = tuple(Machine(ResourceId(f"m{n}")) for n in range(n_machines))
    stays = tuple(MachineStay(machine) for machine in machines)
    if cell.kind == "preemptive":
        first = _scaled(_dag("first", rng, machines), machines, _OWN_S)
        others = [
            DagArrival(DagId(f"d{n}"), _dag(f"d{n}", rng, machines), 0.0, rng.choice(_LOWER))
            for n in range(_N_OTHERS)
        ]
        arrival = DagArrival(DagId("first"), first, float(cell.point), PriorityClass.PREEMPTIVE)
        return DagWorld(1.0, stays, (arrival, *others))
    arrivals = []
    for n in range(cell.point):
        level = PriorityClass(rng.randrange(3)) if cell.kind == "mixed" else PriorityClass.BASIC
        arrivals.append(DagArrival(DagId(f"d{n}"), _dag(f"d{n}", rng, machines), n * _EVERY_S, level))
    return DagWorld(1.0, stays, tuple(arrivals))


def run_cells(cells: Sequence[Cell]) -> Iterator[tuple[Cell, CellResult]]:
    """Run all, on as many processes as there are cores; in their order."""
    context = multiprocessing.get_context("forkserver")
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), mp_context=context) as pool:
        yield from zip(cells, pool.map(_run, cells, chunksize=4), strict=True)


def _run(cell: Cell) -> CellResult:
    world = world_of_cell(cell)
    outcome = simulate_dags(world, make_dag_policy(cell.policy, world.bandwidth_bytes_per_s))
    first = outcome.dags[world.dags[0].dag_id]
    makespans = [each.makespan_s for each in outcome.dags.values()]
    return CellResult(
        sum(makespans) / len(makespans),
        outcome.unfairness,
        outcome.utilisation,
        outcome.moved,
        first.makespan_s,
        first.slowdown,
    )


def _dag(name: str, rng: Random, machines: Sequence[Machine]) -> Dag:
    """Within Table 3, `ccr` as a ratio; machines differ by task as in HEFT's own experiments."""
    shape = DagShape(
        rng.randint(5, 30),
        fat=rng.uniform(0.1, 0.8),
        density=rng.uniform(0.2, 0.8),
        regularity=rng.uniform(0.2, 0.8),
        ratio=rng.uniform(0, 3),
    )
    return random_dag(name, shape, rng, _MEAN_S, 1.0, machines=machines, heterogeneity=_HETEROGENEITY)


def _scaled(dag: Dag, machines: Sequence[Machine], own_s: float) -> Dag:
    """The same with this makespan alone."""
    factor = own_s / heft(dag, machines, 1.0).makespan_s
    tasks = tuple(
        replace(
            task,
            runtime_s=None if task.runtime_s is None else task.runtime_s * factor,
            times_s={machine: seconds * factor for machine, seconds in task.times_s.items()},
        )
        for task in dag.tasks
    )
    edges = tuple(DagEdge(edge.parent, edge.child, edge.n_bytes * factor) for edge in dag.edges)
    return Dag(dag.name, tasks, edges)
