"""The MPS paper's experiments, simulated: Figures 4 to 10 with random DAGs, and each claim beside ours.

Sections: `example` (Figure 3), `same` (Figures 4, 5: one class, 5 machines), `mixed` (6 to 8: three classes,
3 machines), `preemptive` (9, 10: one preemptive DAG that arrives later and later), `scale` (milliseconds per
decision).
DAGs are those of `yarn_accel.dags.generator` within the paper's Table 3; every policy sees the same worlds,
and differences are taken world by world. Worlds of one seed share their DAGs, so each seed counts once in the
95 % intervals (Student's t).

Policies that never take back place a task when it enters the pool. As tasks of several DAGs seldom enter in
one moment, the order of DAGs changes little: `fairness`, `round_robin_at_entry` and `fcfs` coincide, as in
Figure 3(a), with one class `mmhs`, too; and so do the policies that plan at arrival where no two DAGs arrive
together. `round_robin_at_dispatch` and `least_progress` give out machines that are free: there DAGs compete.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from rich.console import Console
from rich.progress import Progress

from benchmarks.papers.mps_paper.scale import scale_rows
from benchmarks.result import Report, Row
from yarn_accel.core.dags.heft import heft
from yarn_accel.core.dags.model import Dag, DagEdge, DagId, Machine, PriorityClass
from yarn_accel.core.dags.policies.registry import make_dag_policy
from yarn_accel.core.tasks.values import ResourceId
from yarn_accel.dags.generator import DagShape, random_dag
from yarn_accel.dags.load import load_dag
from yarn_accel.sim.dag_simulator import simulate_dags
from yarn_accel.sim.dag_world import DagArrival, DagWorld, MachineStay

# ---- The worlds of the paper's three experiments, and their runs in processes.

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
        yield from zip(cells, pool.map(run_cell, cells, chunksize=4), strict=True)


def run_cell(cell: Cell) -> CellResult:
    world = world_of_cell(cell)
    outcome = simulate_dags(world, make_dag_policy(cell.policy, world.bandwidth_bytes_per_s))
    first = outcome.apps[world.dags[0].dag_id]
    makespans = [each.makespan_s for each in outcome.apps.values()]
    return CellResult(
        sum(makespans) / len(makespans),
        outcome.fairness.unfairness,
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


__all__ = ["SECTIONS", "draw", "interval", "run"]

SECTIONS = ("example", "same", "mixed", "preemptive", "scale")
POLICIES = (
    *("mps", "mmhs", "round_robin_at_entry", "fairness"),
    *("fairness-fpft", "fairness-fpct", "fcfs", "merged_heft"),
    *("round_robin_at_dispatch", "least_progress"),
)
_N_SEEDS = 20
_ARRIVALS_S = tuple(range(0, 65, 5))
#: Quantiles of Student's t for a two-sided 95 %, by degrees of freedom.
_T95 = {2: 4.303, 4: 2.776, 9: 2.262, 19: 2.093}

_FIGURES = {
    "same": (("mean_makespan_s", "figure 4: mean makespan, s"), ("unfairness", "figure 5: unfairness")),
    "mixed": (
        ("mean_makespan_s", "figure 6: mean makespan, s"),
        ("unfairness", "figure 7: unfairness"),
        ("utilisation", "figure 8: utilisation"),
    ),
    "preemptive": (
        ("first_makespan_s", "figure 9: makespan of the preemptive DAG, s"),
        ("first_slowdown", "figure 10: its slowdown"),
    ),
}
_X = {"same": "DAGs", "mixed": "DAGs", "preemptive": "arrival, s"}

Results = Mapping[tuple[str, int], Sequence[CellResult]]
ByPoint = Sequence[Sequence[float]]
"""By x of a figure; each has a figure of every seed, in one order."""


def run(quick: bool, say: Callable[[str], None], report: Report, only: Sequence[str] = SECTIONS) -> None:
    """Measure the sections; `quick` takes 3 seeds and fewer points."""
    report.setting["load_average_before"] = round(os.getloadavg()[0], 1)
    seeds = range(3 if quick else _N_SEEDS)
    if "example" in only:
        report.add(example_rows())
    of_all = ("mean_makespan_s", "unfairness", "utilisation")
    for kind, points, figures, claims in (
        ("same", (2, 6) if quick else (2, 4, 6, 8, 10), of_all, _same_claims),
        ("mixed", (3, 8) if quick else (3, 5, 8, 10), of_all, _mixed_claims),
        (
            *("preemptive", _ARRIVALS_S[:: 6 if quick else 1]),
            *(("first_makespan_s", "first_slowdown"), _preemptive_claims),
        ),
    ):
        if kind in only:
            found = _run(kind, points, seeds)
            _report(report, kind, found, figures)
            report.add(claims(found))
    if "scale" in only:
        say("scale: decisions with 1,000 DAGs of 100 tasks on 100 machines")
        report.add(scale_rows(quick))


def draw(report: Report, stem: str) -> list[str]:
    """Draw the paper's figures from the series, means with their 95 % intervals; returns the files."""
    from yarn_accel.report.figures import drawing

    files = []
    for kind, panels in _FIGURES.items():
        if kind not in report.series:
            continue
        files.append(f"{stem}-{kind}.png")
        with drawing(files[-1], (5.5 * len(panels), 4.5), columns=len(panels)) as (_, table):
            for axes, (name, title) in zip(table[0], panels, strict=True):
                for policy, points in report.series[kind][name].items():
                    x, mean, low, high = zip(*points, strict=True)
                    axes.plot(x, mean, marker="o", markersize=3, label=policy)
                    axes.fill_between(x, low, high, alpha=0.12)
                axes.set_title(title, fontsize=10)
                axes.set_xlabel(_X[kind])
            axes.legend(fontsize=7)
    return files


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean, and its 95 % interval."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return mean, mean, mean
    half = _T95.get(len(values) - 1, 2.0) * statistics.stdev(values) / len(values) ** 0.5
    return mean, mean - half, mean + half


def _run(kind: str, points: Sequence[int], seeds: Iterable[int]) -> Results:
    cells = [Cell(kind, policy, point, seed) for point in points for seed in seeds for policy in POLICIES]
    found: dict[tuple[str, int], list[CellResult]] = defaultdict(list)
    with Progress(console=Console(stderr=True)) as progress:
        line = progress.add_task(kind, total=len(cells))
        for cell, result in run_cells(cells):
            found[cell.policy, cell.point].append(result)
            progress.advance(line)
    return found


def _report(report: Report, kind: str, found: Results, figures: Sequence[str]) -> None:
    series: dict[str, dict[str, list[list[float]]]] = {}
    for figure in figures:
        by_policy: dict[str, list[list[float]]] = defaultdict(list)
        for (policy, point), results in sorted(found.items()):
            values = [getattr(each, figure) for each in results]
            by_policy[policy].append([point, *(round(value, 4) for value in interval(values))])
        series[figure] = dict(by_policy)
    report.series[kind] = series
    report.save()


def _relative(found: Results, figure: str, other: str) -> ByPoint:
    """mps over another policy, less 1, world by world."""
    return [
        [
            getattr(mine, figure) / getattr(theirs, figure) - 1
            for mine, theirs in zip(found["mps", point], found[other, point], strict=True)
        ]
        for point in _points(found)
    ]


def _points(found: Results) -> list[int]:
    return sorted({point for _, point in found})


def _values(found: Results, policy: str, figure: str, points: Iterable[int]) -> ByPoint:
    return [[getattr(each, figure) for each in found[policy, point]] for point in points]


def by_seed_row(what: str, by_point: ByPoint, paper: str, unit: str = "share", why: str = "") -> Row:
    """The mean over seeds with its 95 % interval.

    Worlds of one seed have the same DAGs, so they are not independent: each seed counts once, by the mean of
    its worlds.
    """
    of_seeds = [statistics.fmean(each) for each in zip(*by_point, strict=True)]
    mean, low, high = interval(of_seeds)
    n_worlds = sum(map(len, by_point))
    note = f"{n_worlds} worlds of {len(of_seeds)} seeds; paper: {paper}" + (f"; {why}" if why else "")
    spread = min(of_seeds), max(of_seeds)
    return Row(what, mean, unit, len(of_seeds), spread, f"paper: {paper}", None, note, (low, high))


_RANGE = "-0.07 to 0.105"


def _same_claims(found: Results) -> list[Row]:
    points, rows = _points(found), []
    mine = _values(found, "mps", "unfairness", points)
    for other in POLICIES[1:]:
        what = f"one class: mean makespan, mps against {other}"
        rows.append(by_seed_row(what, _relative(found, "mean_makespan_s", other), _RANGE))
        theirs = _values(found, other, "unfairness", points)
        whole = statistics.fmean(value for values in theirs for value in values)
        differences = [
            [(a - b) / whole for a, b in zip(*pair, strict=True)] for pair in zip(mine, theirs, strict=True)
        ]
        rows.append(by_seed_row(f"one class: unfairness, mps against {other}", differences, "-0.155"))
    return rows


def _mixed_claims(found: Results) -> list[Row]:
    points, rows = _points(found), []
    for other in POLICIES[1:]:
        what = f"three classes: utilisation, mps against {other}"
        rows.append(by_seed_row(what, _relative(found, "utilisation", other), "+0.079"))
        what = f"three classes: mean makespan, mps against {other}"
        rows.append(by_seed_row(what, _relative(found, "mean_makespan_s", other), _RANGE))
    for point, paper in ((points[0], "about 1"), (points[-1], "above 1")):
        what = f"three classes: unfairness with {point} DAGs"
        rows.append(by_seed_row(what, _values(found, "mps", "unfairness", [point]), paper, ""))
    return rows


def _preemptive_claims(found: Results) -> list[Row]:
    points, rows = _points(found), []
    for policy in POLICIES:
        what = f"preemptive DAG, own makespan 36, {policy}"
        makespans = _values(found, policy, "first_makespan_s", points)
        slowdowns = _values(found, policy, "first_slowdown", points)
        inside = _share(makespans, lambda each: 36 <= each <= 44)
        rows.append(
            by_seed_row(
                f"{what}: makespan", makespans, "36 to 44", "s", f"{inside:.0%} of the worlds are inside"
            )
        )
        near = _share(slowdowns, lambda each: each >= 0.82)
        why = f"{near:.0%} of the worlds are at 0.82 or more"
        rows.append(by_seed_row(f"{what}: SD", slowdowns, "0.82 to 1", "", why))
    return rows


def _share(by_point: ByPoint, is_counted: Callable[[float], bool]) -> float:
    return statistics.fmean(is_counted(value) for values in by_point for value in values)


# ---- Figure 3: two DAGs on three machines, whose every start is printed.

_WORLDS = Path(__file__).with_name("worlds")
_EXAMPLE: Mapping[str, Mapping[str, float]] = {
    "fairness": {"AvgSlowdown": 0.840, "Unfairness": 0.180},
    "mps": {"AvgSlowdown": 0.904, "Unfairness": 0.087},
}


def example_rows() -> list[Row]:
    """AvgSlowdown and Unfairness of Figures 3(a) and 3(b)."""
    machines = tuple(MachineStay(Machine(ResourceId(name))) for name in ("M1", "M2", "M3"))
    dags = [load_dag(_WORLDS / f"{name}.yaml") for name in "AB"]
    world = DagWorld(1.0, machines, tuple(DagArrival(DagId(dag.name), dag) for dag in dags))
    rows = []
    for policy, printed in _EXAMPLE.items():
        outcome = simulate_dags(world, make_dag_policy(policy, world.bandwidth_bytes_per_s))
        ours = {
            "AvgSlowdown": statistics.fmean(each.slowdown for each in outcome.apps.values()),
            "Unfairness": outcome.fairness.unfairness,
        }
        rows += [
            Row(f"Figure 3, {policy}: {name}", ours[name], "", 1, None, f"paper: {paper}")
            for name, paper in printed.items()
        ]
    return rows
