"""What came of one run, live or simulated, in the same terms. Pure; the JSON keeps runs as mappings."""

from __future__ import annotations

import itertools
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from benchmarks.hdas_live.setting import GPUS, LINK, N_COMPUTE, POLICIES, ScaledApp
from yarn_accel.core.tasks.outcome import RunOutcome
from yarn_accel.testbed.plan import rate_bits_per_s


class RunKey(NamedTuple):
    """Which run."""

    mix: str
    policy: str
    repeat: int

    def __str__(self) -> str:
        return f"mix {self.mix}, {self.policy}, run {self.repeat + 1}"


class LiveTask(NamedTuple):
    """One task as its own program noted it; seconds since the first application was submitted."""

    app: str
    task: int
    node: str
    form: str
    started_s: float
    has_read_s: float
    ended_s: float


class LinkSample(NamedTuple):
    """What the kernel counted on the links of all compute nodes together, towards them."""

    at_s: float
    n_bytes: int


@dataclass(frozen=True)
class LiveRun:
    """One run on the real cluster.

    Attributes:
        makespan_s: from the first application's submission to the end of the last task.
        mean_delay: of all tasks (HDAS eq. 5), the overhead of a task alone in both its parts.
        starts_s: application -> when it was submitted.
        delays: application -> form -> [tasks, mean delay].
        gpu_computing: share of all GPUs' time in which their tasks compute.
        link_used: share of what the links could carry.
        use: (seconds, GPUs that compute, bytes per second of all links); of the first repeat alone.
        load_average: of the machine when it began.
    """

    key: RunKey
    makespan_s: float
    mean_delay: float
    starts_s: Mapping[str, float]
    delays: Mapping[str, Mapping[str, Sequence[float]]]
    gpu_computing: float
    link_used: float
    load_average: float
    commit: str = ""
    at: str = ""
    use: Sequence[Sequence[float]] = field(default=())

    def to_mapping(self) -> dict[str, Any]:
        """Fit for JSON."""
        return {**asdict(self), "key": list(self.key), "use": columns_of(self.use)}

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> LiveRun:
        """What `to_mapping` gave."""
        return cls(**{**values, "key": RunKey(*values["key"]), "use": rows_of(values["use"])})


def columns_of(use: Sequence[Sequence[float]]) -> list[str]:
    """Each column as a line of text: JSON would give every number a line of its own."""
    return [" ".join(f"{value:g}" for value in column) for column in zip(*use, strict=True)]


def rows_of(columns: Sequence[str]) -> list[tuple[float, ...]]:
    """What `columns_of` was given."""
    return list(zip(*(map(float, column.split()) for column in columns), strict=True))


def live_run(
    key: RunKey,
    apps: Sequence[ScaledApp],
    outcome: RunOutcome,
    attempt_overhead_s: float,
    tasks: Iterable[LiveTask],
    links: Sequence[LinkSample],
    load_average: float,
) -> LiveRun:
    """Put a run together.

    Args:
        outcome: what the task service reports.
        attempt_overhead_s: of an attempt alone, beside reading and computing.
        tasks: what the tasks' own output says.

    Raises:
        ValueError: a task is missing, or is there twice.
    """
    listed = list(tasks)
    expected = sorted((app.name, number) for app in apps for number in range(app.n_tasks))
    if sorted((task.app, task.task) for task in listed) != expected or len(outcome.tasks) != len(expected):
        raise ValueError(
            f"{key}: {len(expected)} tasks are expected, each once; {len(listed)} have an output, "
            f"{len(outcome.tasks)} are reported"
        )
    alone_s = {(app.name, form): sum(getattr(app, form)) for app in apps for form in ("cpu", "gpu")}
    delays: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for task in outcome.tasks:
        undisturbed_s = alone_s[task.app, task.form.value] + attempt_overhead_s
        delays[task.app][task.form.value].append((task.end_s - task.start_s) / undisturbed_s)
    computing_s = sum(task.ended_s - task.has_read_s for task in listed if task.form == "gpu")
    carried = rate_bits_per_s(LINK) / 8 * N_COMPUTE * outcome.makespan_s
    return LiveRun(
        key,
        outcome.makespan_s,
        statistics.fmean(each for forms in delays.values() for some in forms.values() for each in some),
        {app: each.start_s for app, each in outcome.apps.items()},
        {
            app: {form: [len(each), statistics.fmean(each)] for form, each in forms.items()}
            for app, forms in delays.items()
        },
        computing_s / (N_COMPUTE * GPUS * outcome.makespan_s),
        (links[-1].n_bytes - links[0].n_bytes) / carried if links else 0.0,
        load_average,
        use=() if key.repeat else _use_over_time(listed, links),
    )


def _use_over_time(tasks: Sequence[LiveTask], links: Sequence[LinkSample]) -> list[list[float]]:
    found = []
    for before, after in itertools.pairwise(links):
        middle_s = (before.at_s + after.at_s) / 2
        n_gpus = sum(task.form == "gpu" and task.has_read_s <= middle_s < task.ended_s for task in tasks)
        rate = (after.n_bytes - before.n_bytes) / (after.at_s - before.at_s)
        found.append([round(middle_s, 2), n_gpus, round(rate, -4)])
    return found


class RunTable:
    """All runs there are, by key."""

    def __init__(self, runs: Iterable[LiveRun] = ()) -> None:
        self._runs = {run.key: run for run in runs}

    def __contains__(self, key: RunKey) -> bool:
        return key in self._runs

    def all(self) -> list[LiveRun]:
        """In the order in which they were run."""
        return list(self._runs.values())

    def add(self, run: LiveRun) -> None:
        """Take one more."""
        self._runs[run.key] = run

    def of(self, mix: str, policy: str) -> list[LiveRun]:
        """All repeats."""
        return [run for key, run in self._runs.items() if (key.mix, key.policy) == (mix, policy)]

    def policies(self, mix: str) -> list[str]:
        """Those of which there is a run of this mix."""
        return [policy for policy in POLICIES if self.of(mix, policy)]

    def mixes(self) -> list[str]:
        """Mixes of which there are runs of two policies at least, so that these can be compared."""
        letters = dict.fromkeys(key.mix for key in self._runs)
        return [letter for letter in letters if len(self.policies(letter)) > 1]
