"""What a run of applications amounts to; the same JSON for a simulated and a live one.

Seconds that nobody knows are NaN here, and null in the JSON: the delay of a task of which it is not known how
long it takes alone, the end of an application that has not ended.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from yarn_accel.core.tasks.values import AppId, Form, TaskId


@dataclass(frozen=True, slots=True)
class TaskOutcome:
    """One task that ended well.

    Attributes:
        alone_s: T_base, what it takes in this form on this node when nobody disturbs it.
        reason: why it came to this place in this form, as the policy said.
        predicted_s: what the policy expected it to take when it placed it there.
    """

    app: AppId
    task: TaskId
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


@dataclass(frozen=True, slots=True)
class AppOutcome:
    """One application: from its submission to the end of its last task.

    Attributes:
        delay: mean of its tasks' delays, of those that are known.
    """

    start_s: float
    end_s: float
    delay: float


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
    """A whole run.

    Attributes:
        makespan_s: from the first submission to the last end.
        mean_delay: over all tasks whose delay is known (HDAS eq 5).
        use: node -> what it did over time, of those nodes for which it was asked.
    """

    policy: str
    makespan_s: float
    mean_delay: float
    apps: Mapping[AppId, AppOutcome]
    tasks: tuple[TaskOutcome, ...]
    use: Mapping[str, tuple[NodeUse, ...]] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Fit for `json.dumps`."""
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


def outcome_of(
    policy: str,
    started_s: Mapping[AppId, float],
    tasks: Iterable[TaskOutcome],
    use: Mapping[str, tuple[NodeUse, ...]] | None = None,
    ended_s: Mapping[AppId, float] | None = None,
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
    of_app: dict[AppId, list[TaskOutcome]] = defaultdict(list)
    for task in ordered:
        of_app[task.app].append(task)
    apps = {
        app: AppOutcome(
            start_s,
            _last_end(of_app[app]) if ended_s is None else ended_s[app],
            _mean_delay(of_app[app]),
        )
        for app, start_s in started_s.items()
    }
    ends_s = [each.end_s for each in apps.values()]
    is_over = bool(ends_s) and not any(math.isnan(end_s) for end_s in ends_s)
    makespan_s = max(ends_s) - min(started_s.values()) if is_over else math.nan
    return RunOutcome(policy, makespan_s, _mean_delay(ordered), apps, ordered, use or {})


class FormSummary(NamedTuple):
    """The tasks of an application in one form: means of what is known."""

    app: AppId
    form: Form
    n_tasks: int
    mean_s: float
    alone_s: float
    delay: float
    predicted_delay: float


def form_summaries(outcome: RunOutcome) -> list[FormSummary]:
    """By application and form, in the order of the applications."""
    groups: dict[tuple[AppId, str], list[TaskOutcome]] = defaultdict(list)
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
