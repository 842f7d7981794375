"""The outcome of a run of applications or DAGs, simulated or live, and its JSON.

Seconds that nobody knows are NaN here, and null in the JSON: the delay of a task of which it is not known how
long it takes alone, the end of an application that has not ended.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from yarn_accel.core.fairness import Fairness, fairness
from yarn_accel.core.tasks.checked_document import CheckedObject
from yarn_accel.core.tasks.values import Form

_MOST_ENTRIES = 10_000_000
_MOST_SECONDS = 1e15
_LONGEST_NAME = 4096
_LONGEST_REASON = 1 << 20
_Name = TypeVar("_Name", bound=str)


@dataclass(frozen=True, slots=True)
class TaskOutcome:
    """One task that ended well.

    Attributes:
        app: its application or DAG.
        task: its id; of a DAG's task its name in the DAG.
        node: where it ran; of a DAG's task the machine, which runs one task at a time.
        alone_s: T_base, what it takes in this form on this node when nobody disturbs it.
        reason: why it came to this place in this form, as the policy said.
        predicted_s: what the policy expected it to take when it placed it there.
    """

    app: str
    task: str
    node: str
    form: Form
    start_s: float
    end_s: float
    alone_s: float
    reason: str
    predicted_s: float = math.nan

    @property
    def delay(self) -> float:
        """How many times longer it took than alone; 1 is undisturbed."""
        return (self.end_s - self.start_s) / self.alone_s


def dag_task_outcome(
    dag: str, task: str, machine: str, start_s: float, end_s: float, reason: str
) -> TaskOutcome:
    """A task of a DAG: it runs in the CPU form, and nobody says how long it takes alone."""
    return TaskOutcome(dag, task, machine, Form.CPU, start_s, end_s, math.nan, reason)


def slowdown_at_end(own_s: float, multi_s: float) -> float:
    """Equation (2); 1 for a DAG that takes no time."""
    return own_s / multi_s if multi_s > 0 else 1.0


@dataclass(frozen=True, slots=True)
class AppOutcome:
    """One application or DAG: from its submission to the end of its last task.

    Attributes:
        delay: mean of its tasks' delays, of those that are known.
        own_makespan_s: M_own, what a DAG takes alone on these machines.
    """

    start_s: float
    end_s: float
    delay: float = math.nan
    own_makespan_s: float = math.nan

    @property
    def makespan_s(self) -> float:
        """M_multi: from its submission to its end."""
        return self.end_s - self.start_s

    @property
    def slowdown(self) -> float:
        """SD of a DAG by equation (2)."""
        return slowdown_at_end(self.own_makespan_s, self.makespan_s)


@dataclass(frozen=True, slots=True)
class NodeUse:
    """What a node does from `at_s` to the next entry.

    Attributes:
        io_bytes_per_s: what its disk gives.
        n_gpus_held: GPUs that a task has.
        n_gpus_computing: those of them that compute; the others wait for their task's bytes.
    """

    at_s: float
    io_bytes_per_s: float
    n_cores_held: int
    n_gpus_held: int
    n_gpus_computing: int


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """A whole run of applications, or of DAGs.

    Attributes:
        mean_delay: over all tasks whose delay is known (HDAS eq 5).
        use: node -> what it did over time, of those nodes for which it was asked.
        utilisation: of DAGs, share of the machines' time from the first arrival to the last end in which they
            worked on tasks that ended there; of a machine that joined later or left, of its time there.
        moved: of DAGs, how often a task went from the queue of one machine's worker to another's.
        interrupted: of DAGs, attempts that were lost with a machine.
        slowdowns: by DAG, from its arrival to its end: seconds, and SD by equation (3) at the decision then;
            in long runs at some of the decisions.
    """

    policy: str
    apps: Mapping[str, AppOutcome]
    tasks: tuple[TaskOutcome, ...]
    mean_delay: float = math.nan
    use: Mapping[str, tuple[NodeUse, ...]] = field(default_factory=dict)
    utilisation: float = math.nan
    moved: int = 0
    interrupted: int = 0
    slowdowns: Mapping[str, Sequence[tuple[float, float]]] = field(default_factory=dict)

    @property
    def is_of_dags(self) -> bool:
        """Whether the applications are DAGs."""
        return not math.isnan(self.utilisation)

    @property
    def makespan_s(self) -> float:
        """From the first submission to the last end; NaN while one of them runs."""
        ends_s = [each.end_s for each in self.apps.values()]
        is_over = bool(ends_s) and not any(math.isnan(end_s) for end_s in ends_s)
        return max(ends_s) - min(each.start_s for each in self.apps.values()) if is_over else math.nan

    @property
    def fairness(self) -> Fairness:
        """Of DAGs, over the slowdowns of equation (2)."""
        return fairness([each.slowdown for each in self.apps.values()])

    def as_json(self) -> dict[str, Any]:
        """Fit for `json.dumps`; docs/hdas-simulate.md and docs/mps.md describe the two forms."""
        return self._of_dags() if self.is_of_dags else self._of_tasks()

    def _of_tasks(self) -> dict[str, Any]:
        return {
            "policy": self.policy,
            "makespan_s": _known(self.makespan_s),
            "mean_delay": _known(self.mean_delay),
            "apps": {
                app: {"start_s": each.start_s, "end_s": _known(each.end_s), "delay": _known(each.delay)}
                for app, each in self.apps.items()
            },
            "tasks": [
                {
                    "app": task.app,
                    "task": task.task,
                    "node": task.node,
                    "form": task.form.value,
                    "start_s": task.start_s,
                    "end_s": task.end_s,
                    "reason": task.reason,
                }
                for task in self.tasks
            ],
        }

    def _of_dags(self) -> dict[str, Any]:
        return {
            "makespan": self.makespan_s,
            **self.fairness.as_json(),
            "utilisation": self.utilisation,
            "moved": self.moved,
            "dags": {
                name: {
                    "arrival": each.start_s,
                    "end": each.end_s,
                    "makespan": each.makespan_s,
                    "own_makespan": each.own_makespan_s,
                    "sd": each.slowdown,
                }
                for name, each in self.apps.items()
            },
            "tasks": [
                {
                    "dag": each.app,
                    "task": each.task,
                    "machine": each.node,
                    "start": each.start_s,
                    "end": each.end_s,
                    "reason": each.reason,
                }
                for each in self.tasks
            ],
        }


def parse_dag_run(document: Any) -> RunOutcome:
    """The outcome of DAGs from the JSON that `RunOutcome.as_json` made.

    Raises:
        RemoteProtocolError: it is none; names the place.
    """
    run = CheckedObject(document, "outcome")
    named = run.below("dags")
    dags = {}
    for name in named.names(_MOST_ENTRIES):
        dag = named.below(name)
        arrival_s, end_s, own_s = (
            dag.number(key, _MOST_SECONDS) for key in ("arrival", "end", "own_makespan")
        )
        dags[name] = AppOutcome(arrival_s, end_s, own_makespan_s=own_s)
    tasks = []
    for task in run.objects("tasks", _MOST_ENTRIES):
        dag_name = task.text("dag", _LONGEST_NAME)
        if dag_name not in dags:
            raise task.error("dag", f"is {dag_name!r}, which is not among its dags")
        name, machine = (task.text(key, _LONGEST_NAME) for key in ("task", "machine"))
        start_s, end_s = (task.number(key, _MOST_SECONDS) for key in ("start", "end"))
        reason = task.text("reason", _LONGEST_REASON)
        tasks.append(dag_task_outcome(dag_name, name, machine, start_s, end_s, reason))
    return RunOutcome("", dags, tuple(tasks), utilisation=run.number("utilisation", 1.0))


def outcome_of(
    policy: str,
    started_s: Mapping[_Name, float],
    tasks: Iterable[TaskOutcome],
    use: Mapping[str, tuple[NodeUse, ...]] | None = None,
    ended_s: Mapping[_Name, float] | None = None,
) -> RunOutcome:
    """Sum tasks up.

    Args:
        policy: its name.
        started_s: application -> when it was submitted.
        tasks: in any order.
        use: as in `RunOutcome`.
        ended_s: application -> when it ended; default: when its last task did.
    """
    ordered = tuple(sorted(tasks, key=lambda task: (task.start_s, task.app, task.task)))
    of_app: dict[str, list[TaskOutcome]] = defaultdict(list)
    for task in ordered:
        of_app[task.app].append(task)
    apps: dict[str, AppOutcome] = {
        app: AppOutcome(
            start_s,
            _last_end(of_app[app]) if ended_s is None else ended_s[app],
            _mean_delay(of_app[app]),
        )
        for app, start_s in started_s.items()
    }
    return RunOutcome(policy, apps, ordered, _mean_delay(ordered), use or {})


class FormSummary(NamedTuple):
    """The tasks of an application in one form: means of what is known."""

    app: str
    form: Form
    n_tasks: int
    mean_s: float
    alone_s: float
    delay: float
    predicted_delay: float


def form_summaries(outcome: RunOutcome) -> list[FormSummary]:
    """By application and form, in the order of the applications."""
    groups: dict[tuple[str, str], list[TaskOutcome]] = defaultdict(list)
    for task in outcome.tasks:
        groups[task.app, task.form.value].append(task)
    return [
        FormSummary(
            app,
            form,
            len(tasks),
            _mean(task.end_s - task.start_s for task in tasks),
            _mean(task.alone_s for task in tasks),
            _mean_delay(tasks),
            _mean(task.predicted_s / task.alone_s for task in tasks),
        )
        for app in outcome.apps
        for form in sorted(Form, key=lambda form: form.value)
        if (tasks := groups.get((app, form.value)))
    ]


def _last_end(tasks: Iterable[TaskOutcome]) -> float:
    return max((task.end_s for task in tasks), default=math.nan)


def _mean_delay(tasks: Iterable[TaskOutcome]) -> float:
    return _mean(task.delay for task in tasks)


def _mean(values: Iterable[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value
