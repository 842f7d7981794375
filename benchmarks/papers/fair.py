"""Fairness and speed of `mps` and `hdas+` on seeded worlds of our own, beyond those of the papers.

- *Deep beside wide*: a chain and a bag of tasks whose work takes longer than the chain. Equation (3) has to
  see that the chain starves.
- *Equal DAGs at once*: many more than the machines can serve. Moves are work for nothing there.
- *Simple rules*: `round_robin_at_dispatch` and `least_progress` in the worlds of the first section and of the
  next one. They are as fair as anybody gets without a plan; what that costs is their makespan.
- *Classes*: the same DAG as basic, high and preemptive in a random mix on machines that are busy.
- *Two kinds of processors*: random applications with CPU and GPU forms under `fifo`, `hdas` and `hdas+`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from statistics import fmean
from typing import Any

from benchmarks.result import Report, Row, measured, observed
from yarn_accel.core.dags.model import Dag, DagEdge, DagId, DagTask, Machine, PriorityClass
from yarn_accel.core.dags.policies.registry import make_dag_policy
from yarn_accel.core.tasks.learning import FigureStore
from yarn_accel.core.tasks.outcome import RunOutcome
from yarn_accel.core.tasks.policies import registry
from yarn_accel.core.tasks.values import ResourceId
from yarn_accel.dags.generator import DagShape, random_dag
from yarn_accel.sim.dag_simulator import simulate_dags
from yarn_accel.sim.dag_world import DagArrival, DagWorld, MachineStay
from yarn_accel.sim.simulator import simulate
from yarn_accel.sim.world import world_of

_BANDWIDTH_BYTES_PER_S = 1e6
_EIGHT = (1.0, 1.0, 2.0, 0.5, 1.0, 1.0, 2.0, 0.5)
Say = Callable[[str], None]


def run(quick: bool, say: Say, report: Report) -> None:
    """All sections; the quick form has fewer worlds."""
    n_worlds = 40 if quick else 200
    say(f"a chain beside a bag, {n_worlds} worlds")
    report.add(deep_and_wide_rows(n_worlds))
    for n_dags in (25, 50) if quick else (25, 50, 100, 200):
        say(f"{n_dags} equal DAGs")
        report.add(equal_rows(n_dags))
    say(f"simple rules beside mps, {n_worlds} worlds each")
    report.add(baseline_rows(n_worlds))
    say(f"classes, {n_worlds} mixes")
    report.add(class_rows(n_worlds))
    n_worlds = 100 if quick else 500
    say(f"CPUs and GPUs, {n_worlds} worlds")
    report.add(processor_rows(n_worlds))


def _stays(*speeds: float) -> tuple[MachineStay, ...]:
    return tuple(MachineStay(Machine(ResourceId(f"m{n}"), speed)) for n, speed in enumerate(speeds))


def _run(world: DagWorld, policy: str = "mps") -> RunOutcome:
    return simulate_dags(world, make_dag_policy(policy, world.bandwidth_bytes_per_s))


def _slowdowns(outcome: RunOutcome) -> list[float]:
    return [each.slowdown for each in outcome.apps.values()]


# ---- deep beside wide


def deep_and_wide(seed: int) -> DagWorld:
    """A chain of 20 to 80 tasks, and a bag whose work alone takes all machines 1.3 to 3 times as long."""
    rng = random.Random(seed)
    n_machines, n_tasks = rng.randint(3, 8), rng.randint(20, 80)
    chain_s, bag_s = rng.uniform(5, 20), rng.uniform(5, 40)
    n_in_bag = round(rng.uniform(1.3, 3.0) * n_tasks * chain_s * n_machines / bag_s)
    chain = Dag(
        "chain",
        tuple(DagTask(f"c{n}", chain_s * rng.uniform(0.8, 1.2)) for n in range(n_tasks)),
        tuple(DagEdge(f"c{n}", f"c{n + 1}") for n in range(n_tasks - 1)),
    )
    bag = Dag("bag", tuple(DagTask(f"b{n}", bag_s * rng.uniform(0.8, 1.2)) for n in range(n_in_bag)))
    arrivals = (DagArrival(DagId("chain"), chain), DagArrival(DagId("bag"), bag))
    return DagWorld(_BANDWIDTH_BYTES_PER_S, _stays(*[1.0] * n_machines), arrivals)


def deep_and_wide_rows(n_worlds: int) -> list[Row]:
    """How far apart the two DAGs end, and what that costs beside HEFT on both as one DAG."""
    found = []
    for seed in range(n_worlds):
        world = deep_and_wide(seed)
        outcome = _run(world)
        found.append(
            (outcome.fairness.unfairness, outcome.makespan_s / _run(world, "merged_heft").makespan_s)
        )
    good = fmean(unfair <= 0.15 and makespan <= 1.02 for unfair, makespan in found)
    return [
        measured("a chain beside a bag: unfairness", [unfair for unfair, _ in found], "", goal="<= 0.15"),
        measured("a chain beside a bag: makespan / merged_heft", [each for _, each in found], "x"),
        observed("a chain beside a bag: worlds with both within .15 and 1.02", good, "share", goal=">= 0.95"),
    ]


# ---- equal DAGs at once


def layers(rng: random.Random) -> Dag:
    """Four layers of five tasks of 3 to 20 s; each takes up to 1 MB from three of the layer before."""
    tasks = tuple(DagTask(f"l{layer}_{n}", rng.uniform(3, 20)) for layer in range(4) for n in range(5))
    edges = tuple(
        DagEdge(f"l{layer - 1}_{parent}", f"l{layer}_{n}", rng.uniform(0, 1e6))
        for layer in range(1, 4)
        for n in range(5)
        for parent in rng.sample(range(5), 3)
    )
    return Dag("layers", tasks, edges)


def equal_rows(n_dags: int) -> list[Row]:
    """Against first come, first served."""
    dag = layers(random.Random(5))
    arrivals = tuple(DagArrival(DagId(f"d{n}"), dag) for n in range(n_dags))
    world = DagWorld(_BANDWIDTH_BYTES_PER_S, _stays(*_EIGHT), arrivals)
    outcome = _run(world)
    ours, others = _slowdowns(outcome), _slowdowns(_run(world, "fcfs"))
    what = f"{n_dags} equal DAGs: "
    return [
        observed(f"{what}smallest SD / that of fcfs", min(ours) / min(others), "x", goal=">= 0.98"),
        observed(f"{what}mean SD / that of fcfs", fmean(ours) / fmean(others), "x", goal=">= 1"),
        observed(f"{what}moves a task", outcome.moved / len(outcome.tasks), "moves", goal="<= 1"),
        observed(f"{what}unfairness as the paper sums it", outcome.fairness.unfairness, ""),
        observed(f"{what}mean deviation over mean SD", outcome.fairness.relative_deviation, "share"),
    ]


# ---- simple rules


def baseline_rows(n_worlds: int) -> list[Row]:
    """Fairness and makespans of rules that plan nothing, in worlds of one class."""
    rows = []
    for what, world_of_seed in (
        ("a chain beside a bag", deep_and_wide),
        ("random mixes", lambda seed: mix(seed, None)),
    ):
        worlds = [world_of_seed(seed) for seed in range(n_worlds)]
        best_s = [_run(world, "merged_heft").makespan_s for world in worlds]
        for policy in ("mps", "round_robin_at_dispatch", "least_progress"):
            outcomes = [_run(world, policy) for world in worlds]
            makespans = [
                each.makespan_s / of_heft_s for each, of_heft_s in zip(outcomes, best_s, strict=True)
            ]
            means = [fmean(_slowdowns(each)) for each in outcomes]
            deviations = [each.fairness.relative_deviation for each in outcomes]
            rows += [
                measured(f"{what}, {policy}: mean deviation over mean SD", deviations, "share"),
                measured(f"{what}, {policy}: mean SD", means, ""),
                measured(f"{what}, {policy}: makespan / merged_heft", makespans, "x"),
            ]
    return rows


# ---- classes


def mix(seed: int, priority_class: PriorityClass | None) -> DagWorld:
    """6 to 16 random DAGs that arrive over time, one in five of them high, the first of the given class.

    Without a class all are basic.
    """
    rng = random.Random(seed)
    stays = _stays(*(rng.choice((0.5, 1, 1, 1, 2)) for _ in range(rng.randint(3, 8))))
    dags = []
    for n in range(rng.randint(6, 16)):
        shape = DagShape(rng.randint(8, 40), fat=rng.choice((0.3, 0.5, 0.8)), density=rng.uniform(0.2, 0.8))
        dags.append(random_dag(f"d{n}", shape, rng, rng.uniform(4, 20), 1e8))
    speed = sum(stay.machine.speed for stay in stays)
    work_s = sum(task.runtime_s or 0.0 for dag in dags for task in dag.tasks) / speed
    span_s = work_s * rng.uniform(0, 0.7)
    classes = [rng.choice([PriorityClass.BASIC] * 4 + [PriorityClass.HIGH]) for _ in dags]
    if priority_class is None:
        classes = [PriorityClass.BASIC] * len(dags)
    else:
        classes[0] = priority_class
    arrivals = tuple(
        DagArrival(DagId(dag.name), dag, rng.uniform(0, span_s), its)
        for dag, its in zip(dags, classes, strict=True)
    )
    return DagWorld(1e8, stays, arrivals)


def class_rows(n_mixes: int) -> list[Row]:
    """Makespans of the same DAG by class, in so many mixes that keep the machines busy .8 of the time."""
    slower: list[float] = []
    gains, preemptive = [], []
    n_drawn = 0
    while len(slower) < n_mixes:
        seed, n_drawn = n_drawn, n_drawn + 1
        outcome = _run(mix(seed, PriorityClass.BASIC))
        if outcome.utilisation < 0.8:
            continue
        basic = outcome.apps["d0"].slowdown
        high = _run(mix(seed, PriorityClass.HIGH)).apps["d0"].slowdown
        slower.append(basic / high)
        gains.append(high / basic - 1)
        preemptive.append(_run(mix(seed, PriorityClass.PREEMPTIVE)).apps["d0"].slowdown / high)
    n = f"the first {n_mixes} of {n_drawn} mixes in which the utilisation as basic is at least .8"
    return [
        observed("classes: high slower than basic by 2 %", fmean(each > 1.02 for each in slower), "share",
                 goal="<= 0.05", note=n),
        observed("classes: high over basic, worst makespan", max(slower), "x", goal="<= 1.1", note=n),
        observed("classes: mean gain in SD by high", fmean(gains), "share", goal=">= 0.333", note=n),
        observed("classes: preemptive over high, worst SD", min(preemptive), "x", note=n),
    ]  # fmt: skip


# ---- two kinds of processors


def processors(seed: int) -> Mapping[str, Any]:
    """Two to four applications on two to four nodes, as a document of ``yarn-accel tasks simulate``."""
    rng = random.Random(seed)
    disk_mb_s = rng.choice((128.0, 256.0, 512.0))
    apps = []
    for n in range(rng.randint(2, 4)):
        split_mb, compute_s = rng.choice((4.0, 64.0, 256.0, 1024.0)), 10 ** rng.uniform(0, 1.6)
        read_s = max(
            rng.choice((0.01, 0.1, 0.3, 1.0)) * compute_s * rng.uniform(0.2, 1.5), 1.01 * split_mb / disk_mb_s
        )
        cpu_s = max((compute_s + read_s) * 10 ** rng.uniform(0.5, 1.8), 5.1 * split_mb / disk_mb_s)
        reads_all_along = rng.random() < 0.5
        app: dict[str, Any] = {"name": f"a{n}", "split_mb": split_mb, "tasks": rng.randint(8, 60)}
        app["start_s"] = rng.choice((0.0, 0.0, rng.uniform(0, 150)))
        forms = rng.random()
        if forms < 0.9:
            app["gpu"] = {"compute_s": compute_s, "read_s": read_s}
        if forms > 0.05:
            app["cpu"] = (
                {"read_s": cpu_s} if reads_all_along else {"read_s": cpu_s * 0.2, "compute_s": cpu_s * 0.8}
            )
        apps.append(app)
    nodes = {"count": rng.randint(2, 4), "cores": rng.choice((2, 4, 6)), "gpus": rng.choice((1, 1, 2, 4))}
    return {
        "apps": apps,
        "disks": {"d": {"bandwidth_mb_s": disk_mb_s, "gamma": rng.choice((0, 0.05, 0.112))}},
        "nodes": [{"name": "n", "disk": "d", **nodes}],
    }


def processor_rows(n_worlds: int) -> list[Row]:
    """Makespans of `hdas+` over those of the other two."""
    over_best, over_fifo, over_hdas = [], [], []
    for seed in range(n_worlds):
        fifo, hdas, ours = (_makespan_s(seed, policy) for policy in ("fifo", "hdas", "hdas+"))
        over_best.append(ours / min(fifo, hdas))
        over_fifo.append(ours / fifo)
        over_hdas.append(ours / hdas)
    slower = fmean(each > 1.05 for each in over_best)
    return [
        observed("hdas+: above 1.05 of the better of fifo and hdas", slower, "share", goal="<= 0.02"),
        observed("hdas+: over the better of fifo and hdas, worst", max(over_best), "x", goal="<= 1.15"),
        observed("hdas+: mean makespan over fifo", fmean(over_fifo), "x", goal="<= 0.749"),
        observed("hdas+: mean makespan over hdas", fmean(over_hdas), "x", goal="<= 1"),
    ]


def _makespan_s(seed: int, policy: str) -> float:
    world = world_of(processors(seed), f"world {seed}")
    return simulate(world, registry.make(policy), (), FigureStore()).makespan_s
