"""What came of runs of DAGs, on each system and simulated, and what a task costs beside its work. Pure."""

from __future__ import annotations

import itertools
import json
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from benchmarks.papers.mps_live.setting import (
    BANDWIDTH_BYTES_PER_S,
    LEAST_S,
    N_MACHINES,
    POLICY,
    Costs,
    EmulatedDag,
    declared,
)
from yarn_accel.core.dags.heft import heft
from yarn_accel.core.dags.model import DagId, Machine, PriorityClass
from yarn_accel.core.dags.policies.registry import make_dag_policy
from yarn_accel.core.dags.slowdown import slowdown_at_end, unfairness
from yarn_accel.core.tasks.service.history import EndedTask
from yarn_accel.core.tasks.values import ResourceId
from yarn_accel.sim.dag_simulator import simulate_dags
from yarn_accel.sim.dag_world import DagArrival, DagWorld, MachineStay

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
        return float(unfairness([each.slowdown for each in self.dags.values()]))

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
    times, spans = {}, []
    for name, answer in answers.items():
        tasks = [EndedTask(*row) for row in answer["rows"]]
        spans += [TaskSpan(name, each.name, each.node, each.started_at, each.ended_at) for each in tasks]
        times[name] = answer["begun_at"], max(each.ended_at for each in tasks)
    own_s = {name: answer["dag"]["own_makespan_s"] for name, answer in answers.items()}
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
