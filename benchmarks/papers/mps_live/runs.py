"""Live runs beside simulated ones and beside Dask's, as rows; each claim holds or does not."""

from __future__ import annotations

import itertools
import json
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

from benchmarks.papers.mps_live.setting import (
    BANDWIDTH_BYTES_PER_S,
    FILES,
    FUNCTIONS,
    LEAST_S,
    N_MACHINES,
    POLICY,
    URGENT,
    Costs,
    EmulatedDag,
    declared,
)
from benchmarks.result import Row, measured, observed, ratio
from yarn_accel.core.dags.heft import heft
from yarn_accel.core.dags.model import DagId, Machine, PriorityClass
from yarn_accel.core.dags.policies.registry import make_dag_policy
from yarn_accel.core.fairness import fairness
from yarn_accel.core.tasks.history import EndedTask
from yarn_accel.core.tasks.outcome import slowdown_at_end
from yarn_accel.core.tasks.values import ResourceId
from yarn_accel.sim.dag_simulator import simulate_dags
from yarn_accel.sim.dag_world import DagArrival, DagWorld, MachineStay

# ---- What came of runs of DAGs, on each system and simulated, and what a task costs beside its work. Pure.

LIVE, SIMULATED, DASK = "live", "simulated", "dask"
#: Times of the service are rounded, and those of several processes.
_CLOCK_S = 0.01
_MACHINES = tuple(Machine(ResourceId(f"w{n + 1}")) for n in range(N_MACHINES))
_LISTS = ("first_s", "gaps_s", "stamped_first_s", "stamped_gaps_s")


class RunKey(NamedTuple):
    """Which run.

    Attributes:
        world: ``mix`` or ``preemption``.
        system: `LIVE`, `SIMULATED` or `DASK`.
        repeat: from 0; each has DAGs or arrivals of its own.
    """

    world: str
    system: str
    repeat: int

    def __str__(self) -> str:
        return f"{self.world} {self.repeat + 1}, {self.system}"


class DagTimes(NamedTuple):
    """Of one DAG, seconds since the first one was submitted; `own_s` is its makespan alone."""

    arrival_s: float
    end_s: float
    own_s: float

    @property
    def slowdown(self) -> float:
        """SD by equation (2)."""
        return slowdown_at_end(self.own_s, self.end_s - self.arrival_s)


class TaskSpan(NamedTuple):
    """When a task ran, and where."""

    dag: str
    task: str
    machine: str
    start_s: float
    end_s: float


@dataclass(frozen=True)
class DagRun:
    """One run.

    Attributes:
        dags: by name.
        tasks: by their start.
        load_average: of the machine when it began.
    """

    key: RunKey
    dags: Mapping[str, DagTimes]
    tasks: Sequence[TaskSpan]
    load_average: float = 0.0
    commit: str = ""
    at: str = ""

    @property
    def makespan_s(self) -> float:
        """From the first arrival to the last end."""
        ends_s = [each.end_s for each in self.dags.values()]
        return max(ends_s) - min(each.arrival_s for each in self.dags.values())

    @property
    def unfairness(self) -> float:
        """Equation (1)."""
        return fairness([each.slowdown for each in self.dags.values()]).unfairness

    @property
    def arrivals_s(self) -> dict[str, float]:
        """DAG -> when it was submitted."""
        return {name: each.arrival_s for name, each in self.dags.items()}

    def mean_slowdown(self, dags: Iterable[EmulatedDag], priority_class: PriorityClass) -> float:
        """Of the DAGs of a class."""
        of_class = [each.name for each in dags if each.priority_class is priority_class]
        return statistics.fmean(self.dags[name].slowdown for name in of_class)

    def to_mapping(self) -> dict[str, Any]:
        """Fit for JSON: a line of text for each task, as JSON gives every number a line of its own."""
        tasks = [
            f"{each.dag} {each.task} {each.machine.replace(' ', '-')} {each.start_s:.3f} {each.end_s:.3f}"
            for each in self.tasks
        ]
        dags = {name: " ".join(f"{value:.3f}" for value in each) for name, each in self.dags.items()}
        return {**asdict(self), "key": list(self.key), "dags": dags, "tasks": tasks}

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> DagRun:
        """What `to_mapping` gave."""
        dags = {name: DagTimes(*map(float, line.split())) for name, line in values["dags"].items()}
        words = [line.split() for line in values["tasks"]]
        tasks = [TaskSpan(*each[:3], *map(float, each[3:])) for each in words]
        return cls(**{**values, "key": RunKey(*values["key"]), "dags": dags, "tasks": tasks})


def run_of_outcome(
    key: RunKey, dags: Sequence[EmulatedDag], outcome: Mapping[str, Any], load_average: float = 0.0
) -> DagRun:
    """Of an outcome as `yarn-accel dag` has it, live or simulated; the first arrival becomes second 0.

    Raises:
        ValueError: a task is missing, or is there twice.
    """
    first_s = min(each["arrival"] for each in outcome["dags"].values())
    times = {
        name: DagTimes(each["arrival"] - first_s, each["end"] - first_s, each["own_makespan"])
        for name, each in outcome["dags"].items()
    }
    spans = [
        TaskSpan(each["dag"], each["task"], each["machine"], each["start"] - first_s, each["end"] - first_s)
        for each in outcome["tasks"]
    ]
    return _checked(DagRun(key, times, sorted(spans, key=_start), load_average), dags)


def run_of_answers(
    key: RunKey,
    dags: Sequence[EmulatedDag],
    answers: Mapping[str, Mapping[str, Any]],
    load_average: float,
) -> DagRun:
    """Of what the task service says of each DAG when all have ended: ``tasks-outcome``, with all rows.

    Raises:
        ValueError: a task is missing, or is there twice.
    """
    own_s = {name: answer["dag"]["own_makespan_s"] for name, answer in answers.items()}
    spans = stamped_spans(answers)
    times = {
        name: (answer["begun_at"], max(each.end_s for each in spans if each.dag == name))
        for name, answer in answers.items()
    }
    return run_of_spans(key, dags, spans, times, own_s, load_average)


def run_of_spans(
    key: RunKey,
    dags: Sequence[EmulatedDag],
    spans: Iterable[TaskSpan],
    times: Mapping[str, tuple[float, float]],
    own_s: Mapping[str, float],
    load_average: float,
) -> DagRun:
    """Of what tasks noted themselves; all seconds by one clock.

    Args:
        times: DAG -> when it was submitted, and when its owner knew that it had ended.
        own_s: DAG -> its makespan alone.

    Raises:
        ValueError: a task is missing, or is there twice.
    """
    first_s = min(arrival_s for arrival_s, _ in times.values())
    listed = [each._replace(start_s=each.start_s - first_s, end_s=each.end_s - first_s) for each in spans]
    found = {
        name: DagTimes(arrival_s - first_s, end_s - first_s, own_s[name])
        for name, (arrival_s, end_s) in times.items()
    }
    return _checked(DagRun(key, found, sorted(listed, key=_start), load_average), dags)


def _start(span: TaskSpan) -> float:
    return span.start_s


def _checked(run: DagRun, dags: Sequence[EmulatedDag]) -> DagRun:
    expected = sorted((dag.name, task.task) for dag in dags for task in dag.tasks)
    found = sorted((each.dag, each.task) for each in run.tasks)
    if found != expected or run.dags.keys() != {dag.name for dag in dags}:
        odd = sorted(set(expected) ^ set(found))[:5]
        raise ValueError(f"{run.key}: {len(expected)} tasks are expected, each once; {len(found)} ran; {odd}")
    ends_s: dict[tuple[str, str], float] = {(each.dag, each.task): each.end_s for each in run.tasks}
    starts_s = {(each.dag, each.task): each.start_s for each in run.tasks}
    early = [
        f"{dag.name}/{task.task}"
        for dag in dags
        for task in dag.tasks
        for parent in task.after
        if starts_s[dag.name, task.task] < ends_s[dag.name, parent] - _CLOCK_S
    ]
    if early:
        raise ValueError(f"{run.key}: began before their parents had ended: {', '.join(early[:5])}")
    return run


def spans_by_machine(spans: Iterable[TaskSpan]) -> dict[str, list[TaskSpan]]:
    """In the order of their starts."""
    found: dict[str, list[TaskSpan]] = defaultdict(list)
    for span in sorted(spans, key=_start):
        found[span.machine].append(span)
    return dict(found)


# ---- the same DAGs in the simulator


def simulated_run(
    world: str,
    repeat: int,
    dags: Sequence[EmulatedDag],
    costs: Costs,
    arrivals_s: Mapping[str, float] | None = None,
) -> DagRun:
    """Simulate.

    Args:
        arrivals_s: DAG -> when it was submitted live; None: when it was to be.
    """
    arrivals = tuple(
        DagArrival(
            DagId(dag.name),
            declared(dag, costs),
            dag.arrival_s if arrivals_s is None else arrivals_s[dag.name],
            dag.priority_class,
        )
        for dag in dags
    )
    stays = tuple(MachineStay(machine) for machine in _MACHINES)
    outcome = simulate_dags(
        DagWorld(BANDWIDTH_BYTES_PER_S, stays, arrivals), make_dag_policy(POLICY, BANDWIDTH_BYTES_PER_S)
    )
    return run_of_outcome(RunKey(world, SIMULATED, repeat), dags, outcome.as_json())


def own_makespans(dags: Sequence[EmulatedDag], costs: Costs) -> dict[str, float]:
    """DAG -> M_own, by HEFT on the idle machines."""
    return {dag.name: heft(declared(dag, costs), _MACHINES, BANDWIDTH_BYTES_PER_S).makespan_s for dag in dags}


# ---- what a task costs: from submission to start, from end to start, tasks per second


class OverheadKey(NamedTuple):
    """Which measurement: of functions in warm workers, or of tasks that leave files in HDFS; by whom."""

    kind: str
    system: str

    def __str__(self) -> str:
        return f"overhead of {self.kind}, {self.system}"


@dataclass(frozen=True)
class OverheadRun:
    """What was measured.

    Attributes:
        first_s: from a submission to the start of its first task, each time anew.
        gaps_s: from a task's end to its successor's start on the same worker, of a chain.
        rate_per_s: of tasks that need nothing of one another, on all workers.
        n_together: how many these were.
        stamped_first_s: from when the service had a submission to the start of its first task, and all the
            others: the same by what the service itself recorded, to the millisecond; Dask has none.
    """

    key: OverheadKey
    first_s: Sequence[float]
    gaps_s: Sequence[float]
    rate_per_s: float
    n_together: int
    load_average: float
    commit: str = ""
    at: str = ""
    stamped_first_s: Sequence[float] = field(default_factory=list)
    stamped_gaps_s: Sequence[float] = field(default_factory=list)
    stamped_rate_per_s: float = 0.0

    def to_mapping(self) -> dict[str, Any]:
        """Fit for JSON."""
        shown = {name: " ".join(f"{each:.5f}" for each in getattr(self, name)) for name in _LISTS}
        return {**asdict(self), "key": list(self.key), **shown}

    @classmethod
    def from_mapping(cls, values: dict[str, Any]) -> OverheadRun:
        """What `to_mapping` gave."""
        lists = {name: [float(each) for each in values[name].split()] for name in _LISTS}
        return cls(**{**values, "key": OverheadKey(*values["key"]), **lists})


def read_notes(text: str) -> list[TaskSpan]:
    """What tasks noted, see `steps`."""
    rows = [json.loads(line) for line in text.splitlines()]
    names = ("dag", "task", "machine", "started_s", "ended_s")
    return [TaskSpan(*(row[name] for name in names)) for row in rows]


def stamped_spans(answers: Mapping[str, Mapping[str, Any]]) -> list[TaskSpan]:
    """What the service recorded of the tasks of DAGs: ``tasks-outcome``, with all rows."""
    return [
        TaskSpan(name, each.name, each.node, each.started_at, each.ended_at)
        for name, answer in answers.items()
        for each in (EndedTask(*row) for row in answer["rows"])
    ]


def gaps_s(spans: Iterable[TaskSpan]) -> list[float]:
    """From each task's end to the next start on its machine."""
    return [
        after.start_s - before.end_s
        for each in spans_by_machine(spans).values()
        for before, after in itertools.pairwise(each)
    ]


def tasks_per_s(spans: Sequence[TaskSpan]) -> float:
    """From the first start to the last end."""
    return len(spans) / (max(each.end_s for each in spans) - min(each.start_s for each in spans))


def percentile(values: Sequence[float], share: float) -> float:
    """The least value that so large a share of all do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def costs_of(small: Iterable[TaskSpan], large: Iterable[TaskSpan], n_more_bytes: float) -> Costs:
    """What tasks cost, from chains that hardly move bytes and the same with large files.

    Each chain has a machine to itself, so what lies between two ends on it is a task.

    Args:
        n_more_bytes: that a task of the latter reads and writes.
    """
    task_s = max(_beside_wait_s(small), 0.0)
    moved_s = max(_beside_wait_s(large) - task_s, 1e-3)
    return Costs(round(task_s, 4), round(n_more_bytes / moved_s))


def _beside_wait_s(spans: Iterable[TaskSpan]) -> float:
    """Of a task; the first of a chain also waits for its DAG to be planned, and is left out."""
    periods = [
        after.end_s - before.end_s
        for each in spans_by_machine(spans).values()
        for before, after in itertools.pairwise(each)
    ]
    return statistics.median(periods) - LEAST_S


#: A live run (ours or Dask's), the simulated one with its arrivals, and what was run.
Pair = tuple[DagRun, DagRun, Sequence[EmulatedDag]]
_MOST_ERROR = 0.10
_MOST_DIFFERENCE = 0.1
_LEAST_SLOWDOWN = 0.8
_MOST_LENGTH = 0.1
#: From a submission to its first task in seconds, between two tasks in milliseconds, tasks per second.
_OVERHEAD_GOALS = ("<= 0.3", "<= 20", ">= 200")
_N_FOR_P99 = 100


def cost_rows(costs: Costs) -> list[Row]:
    """What was measured first."""
    note = "all machines busy; given to the simulator, and declared to the service"
    return [
        observed("a task beside its wait", costs.task_s, "s", note=note),
        observed("files of a task to and from HDFS", costs.bytes_per_s / 1e6, "MB/s", note=note),
    ]


def mix_rows(pairs: Sequence[Pair]) -> list[Row]:
    """The mixes of two classes, live against simulated."""
    if not pairs:
        return []
    errors = [abs(simulated.makespan_s / live.makespan_s - 1) for live, simulated, _ in pairs]
    goal, worst = f"<= {_MOST_ERROR}", f"worst {max(errors):.0%}"

    def both(what: str, unit: str, figure: Callable[[DagRun, Sequence[EmulatedDag]], float]) -> list[Row]:
        return [
            measured(f"mix: {what}, live", [figure(live, dags) for live, _, dags in pairs], unit),
            measured(f"mix: {what}, simulated", [figure(run, dags) for _, run, dags in pairs], unit),
        ]

    rows = [
        *both("makespan", "s", lambda run, _: run.makespan_s),
        measured("mix: error of the simulated makespan", errors, "share", goal=goal, note=worst),
        *both("unfairness", "", lambda run, _: run.unfairness),
    ]
    for each in (PriorityClass.HIGH, PriorityClass.BASIC):
        rows += both(f"mean SD of {each.word} DAGs", "", partial(DagRun.mean_slowdown, priority_class=each))
    return list(_judged(rows))


def preemption_rows(pairs: Sequence[Pair]) -> list[Row]:
    """A preemptive DAG that is submitted into a full cluster, live against simulated."""
    if not pairs:
        return []
    slowdowns = [live.dags[URGENT].slowdown for live, _, _ in pairs]
    expected = [simulated.dags[URGENT].slowdown for _, simulated, _ in pairs]
    differences = [abs(ours - theirs) for ours, theirs in zip(slowdowns, expected, strict=True)]
    lengths = [_longest_basic(live) for live, _, _ in pairs]
    meanwhile = [_meanwhile(live) for live, _, _ in pairs]
    figures: list[tuple[str, Sequence[float], str, str, str]] = [
        ("SD of the preemptive DAG, live", slowdowns, "", f">= {_LEAST_SLOWDOWN}", ""),
        ("SD of the preemptive DAG, simulated", expected, "", "", ""),
        (
            *("SD, live less simulated", differences, ""),
            *(f"<= {_MOST_DIFFERENCE}", f"worst {max(differences):.3f}"),
        ),
        (
            *("longest basic task / makespan of the preemptive DAG", lengths, "share"),
            *(f"<= {_MOST_LENGTH}", "so much the issue's claim assumes"),
        ),
        (
            *("basic tasks that began while the preemptive DAG ran", meanwhile, ""),
            *(">= 1", "basic DAGs go on"),
        ),
    ]
    return list(
        _judged(
            measured(f"preemption: {what}", values, unit, goal=goal, note=note)
            for what, values, unit, goal, note in figures
        )
    )


def _longest_basic(run: DagRun) -> float:
    urgent = run.dags[URGENT]
    basic_s = max(each.end_s - each.start_s for each in run.tasks if each.dag != URGENT)
    return basic_s / (urgent.end_s - urgent.arrival_s)


def _meanwhile(run: DagRun) -> int:
    urgent = run.dags[URGENT]
    return sum(each.dag != URGENT and urgent.arrival_s <= each.start_s < urgent.end_s for each in run.tasks)


def peer_rows(runs: Mapping[RunKey, Pair]) -> list[Row]:
    """Dask beside ours, on the same DAGs; each of its runs with ours of the same repeat."""
    rows: list[Row] = []
    for world, which in (("mix", "high DAGs"), ("preemption", "the preemptive DAG")):
        both = [
            (runs[mine], pair)
            for key, pair in runs.items()
            if (key.world, key.system) == (world, DASK) and (mine := RunKey(world, LIVE, key.repeat)) in runs
        ]
        if not both:
            continue
        ours, theirs = [mine[0].makespan_s for mine, _ in both], [other[0].makespan_s for _, other in both]
        own = statistics.median(_slowdown_of(mine, world) for mine, _ in both)
        slowdowns, note = [_slowdown_of(other, world) for _, other in both], f"ours {own:.3f}; the same M_own"
        rows += [
            measured(f"{world}: makespan, Dask", theirs, "s"),
            ratio(f"{world}: makespan, ours / Dask", ours, theirs, note="the same DAGs, one after the other"),
            measured(f"{world}: SD of {which}, Dask", slowdowns, "", note=note),
        ]
    return rows


def _slowdown_of(pair: Pair, world: str) -> float:
    """Of the DAGs that priorities are for."""
    run, _, dags = pair
    if world == "preemption":
        return run.dags[URGENT].slowdown
    return run.mean_slowdown(dags, PriorityClass.HIGH)


def overhead_rows(runs: Mapping[OverheadKey, OverheadRun]) -> list[Row]:
    """What a task costs: ours with goals for functions, Dask beside it."""
    rows: list[Row] = []
    for kind in (FUNCTIONS, FILES):
        for system in (LIVE, DASK):
            run = runs.get(OverheadKey(kind, system))
            if run is not None:
                rows += _of_run(run, is_judged=(kind, system) == (FUNCTIONS, LIVE))
        ours, theirs = runs.get(OverheadKey(kind, LIVE)), runs.get(OverheadKey(kind, DASK))
        if ours is not None and theirs is not None:
            gaps = statistics.median(ours.gaps_s) / statistics.median(theirs.gaps_s)
            rows.append(observed(f"{kind}: gap between tasks, ours / Dask", gaps, "x"))
            share = ours.rate_per_s / theirs.rate_per_s
            rows.append(observed(f"{kind}: tasks per second, ours / Dask", share, "x"))
    return list(_judged(rows))


def _of_run(run: OverheadRun, *, is_judged: bool) -> Iterator[Row]:
    kind, who = run.key.kind, "ours" if run.key.system == LIVE else "Dask"
    gaps_ms = [1e3 * each for each in run.gaps_s]
    first, gap, rate = _OVERHEAD_GOALS if is_judged else ("", "", "")
    yield measured(f"{kind}: submit to first start, {who}", run.first_s, "s", goal=first)
    what = f"{kind}: end to successor's start"
    yield measured(f"{what}, {who}", gaps_ms, "ms", goal=gap)
    note = f"of {len(gaps_ms)} gaps" + ("" if len(gaps_ms) >= _N_FOR_P99 else ": too few for a 99th")
    p99 = observed(f"{what}, p99, {who}", percentile(gaps_ms, 0.99), "ms", goal=gap, note=note)
    yield replace(p99, n=len(gaps_ms))
    if run.stamped_gaps_s:
        # By what the service recorded, which knows nothing of how a submission came to it.
        note, stamped_ms = "by the stamps of the service", [1e3 * each for each in run.stamped_gaps_s]
        yield measured(f"{kind}: taken to first start, ours, stamped", run.stamped_first_s, "s", note=note)
        yield measured(f"{what}, ours, stamped", stamped_ms, "ms", note=note)
        yield observed(f"{kind}: tasks per second, ours, stamped", run.stamped_rate_per_s, "1/s", note=note)
    note = f"{run.n_together} that need nothing of one another"
    yield observed(f"{kind}: tasks per second, {who}", run.rate_per_s, "1/s", goal=rate, note=note)


def _judged(rows: Iterable[Row]) -> Iterator[Row]:
    """The verdict in words, too, for whoever reads the JSON."""
    for row in rows:
        verdict = {None: "", True: "holds", False: "does not hold"}[row.ok]
        yield replace(row, note="; ".join(filter(None, (verdict, row.note))))
