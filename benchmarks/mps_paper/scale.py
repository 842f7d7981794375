"""How long a decision of `mps` takes with many DAGs."""

from __future__ import annotations

import time
from random import Random

from benchmarks.result import Row, observed
from yarn_accel.core.dags.model import DagId, Machine, PriorityClass
from yarn_accel.core.dags.policies.registry import make_dag_policy
from yarn_accel.core.tasks.values import ResourceId
from yarn_accel.dags.generator import DagShape, random_dag
from yarn_accel.sim.dag_simulator import DagSimulation
from yarn_accel.sim.dag_world import DagArrival, DagWorld, MachineStay

_N_TASKS = 100
_N_MACHINES = 100


def large_world(n_dags: int, classes: int, seed: int = 1) -> DagWorld:
    """DAGs of 100 tasks that all arrive at 0 s, on 100 machines of different speeds."""
    rng = Random(seed)
    stays = tuple(MachineStay(Machine(ResourceId(f"m{n}"), rng.uniform(0.5, 2))) for n in range(_N_MACHINES))
    arrivals = []
    for n in range(n_dags):
        shape = DagShape(
            _N_TASKS,
            fat=rng.uniform(0.1, 0.8),
            density=rng.uniform(0.2, 0.8),
            regularity=rng.uniform(0.2, 0.8),
            ratio=rng.uniform(0, 1),
        )
        dag = random_dag(f"d{n}", shape, rng, 10.0, 1.0)
        arrivals.append(DagArrival(DagId(dag.name), dag, 0.0, PriorityClass(2 - rng.randrange(classes))))
    return DagWorld(1.0, stays, tuple(arrivals))


def scale_rows(quick: bool) -> list[Row]:
    """CPU time per decision; of the large world's first events, and of 100 DAGs to their end."""
    rows = []
    for what, classes in (("one class", 1), ("three classes", 3)):
        cpu_s, _ = _decisions(large_world(200 if quick else 1_000, classes), 20 if quick else 300)
        ordered = sorted(each * 1e3 for each in cpu_s)
        note = f"{len(ordered)} decisions of the beginning, when most tasks wait; CPU time of one core"
        for share, goal in ((0.5, "<= 50"), (0.99, "<= 250")):
            value = ordered[min(len(ordered) - 1, int(share * len(ordered)))]
            rows.append(
                observed(
                    f"1,000 DAGs, {what}: decision, quantile {share:g}", value, "ms", goal=goal, note=note
                )
            )
    n_dags = 10 if quick else 100
    started_s = time.process_time()
    _decisions(large_world(n_dags, 3), 10**9)
    took_s = time.process_time() - started_s
    rows.append(
        observed(f"{n_dags} DAGs of 100 tasks, end to end", took_s, "s", goal="<= 120", note="CPU time")
    )
    return rows


def _decisions(world: DagWorld, most: int) -> tuple[list[float], DagSimulation]:
    policy = make_dag_policy("mps", world.bandwidth_bytes_per_s)
    simulation = DagSimulation(world, policy)
    simulation.step()
    cpu_s = []
    while simulation.n_decisions < most:
        n_before, started_s = simulation.n_decisions, time.process_time()
        if not simulation.step():
            break
        if simulation.n_decisions > n_before:
            cpu_s.append(time.process_time() - started_s)
    return cpu_s, simulation
