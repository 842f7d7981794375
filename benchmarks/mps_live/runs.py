"""What came of one run of DAGs, on whichever system, in the same terms. Pure."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from benchmarks.mps_live.setting import EmulatedDag
from yarn_accel.core.dags.model import PriorityClass
from yarn_accel.core.dags.slowdown import slowdown_at_end, unfairness
from yarn_accel.core.tasks.service.history import EndedTask

LIVE, SIMULATED, DASK = "live", "simulated", "dask"
#: Times of the service are rounded, and those of several processes.
_CLOCK_S = 0.01


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
