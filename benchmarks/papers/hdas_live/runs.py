"""What came of runs, live beside simulated: each figure, the simulator's error, the order of policies.

Pure; the JSON keeps runs as mappings.
"""

from __future__ import annotations

import itertools
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from benchmarks.papers.hdas_live.setting import (
    GPUS,
    LINK,
    LINK_MB_S,
    N_COMPUTE,
    POLICIES,
    SLOWNESS,
    SPLIT_DIVISOR,
    ScaledApp,
    SimulatedRun,
)
from benchmarks.papers.hdas_paper.paper import SETS
from benchmarks.result import Row, measured, not_measured, observed
from yarn_accel.core.tasks.outcome import RunOutcome
from yarn_accel.testbed.plan import rate_bits_per_s

# ---- Late binding: two streaming jobs of stock MapReduce at once, whose mappers ask their agents, or do not.
#
# Without late binding a mapper takes a GPU of its node where one is free, and computes on its core otherwise;
# YARN starts three on a node. With it YARN starts some more, and the node's agent decides by ``hdas+`` which
# of them computes where, three at once. It measures first how long mappers of a new name take; of names that
# ran before agents know it and tell each other. All read their splits from HDFS over the limited links.

#: Times of the paper are divided by so much; splits are the same share of a link's bytes per second.
LATE_SLOWNESS = 6.0
#: A mode -> how the rows call it. `learned` runs the names of the `agent` run of the same repeat once more.
MODES: Mapping[str, str] = {"first": "without", "agent": "with", "learned": "with, figures learned"}
_APPS = ("KNN", "NB")
N_MAPPERS = 12


@dataclass(frozen=True)
class LateApp:
    """One job: its mappers' bytes, and what each computes after it has read them."""

    name: str
    split_bytes: int
    read_s: float
    cpu_s: float
    gpu_s: float

    def alone_s(self, form: str) -> float:
        """T_base of a form."""
        return self.read_s + (self.gpu_s if form == "gpu" else self.cpu_s)


@dataclass(frozen=True)
class LateKey:
    """Which run: one of `MODES`, and its repeat."""

    mode: str
    repeat: int

    @property
    def choose(self) -> str:
        """``--choose`` of the mapper."""
        return "first" if self.mode == "first" else "agent"

    def job_name(self, app: str) -> str:
        """Of a repeat its own, so that nothing is known of it when it is first run."""
        return f"{app}-{self.repeat}"

    def __str__(self) -> str:
        return f"late binding, {MODES[self.mode]}, run {self.repeat + 1}"


@dataclass(frozen=True)
class LateRun:
    """One run of both jobs.

    Attributes:
        makespan_s: from the first mapper's start to the last one's end.
        mean_delay: of reading and computing against those alone.
        mean_wait_s: of a mapper for its answer.
        n_gpu, n_cpu: mappers by form.
        n_undecided: mappers that asked and chose by themselves.
    """

    key: LateKey
    makespan_s: float
    mean_delay: float
    mean_wait_s: float
    n_gpu: int
    n_cpu: int
    n_undecided: int
    load_average: float

    def to_mapping(self) -> dict[str, Any]:
        """Fit for JSON."""
        return asdict(self)

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> LateRun:
        """What `to_mapping` gave."""
        return cls(**{**values, "key": LateKey(**values["key"])})


def late_apps() -> list[LateApp]:
    """Both jobs, scaled."""
    found = []
    for name in _APPS:
        app = SETS["S2"].apps[name]
        read_s = max(app.gpu_read_s, app.split_mb / LINK_MB_S) / LATE_SLOWNESS
        split_bytes = round(app.split_mb * 1e6 / (SPLIT_DIVISOR / SLOWNESS * LATE_SLOWNESS))
        cpu_s, gpu_s = app.cpu_s / LATE_SLOWNESS - read_s, app.gpu_compute_s / LATE_SLOWNESS
        found.append(LateApp(name, split_bytes, read_s, cpu_s, gpu_s))
    return found


def late_run(
    key: LateKey,
    apps: Sequence[LateApp],
    mappers: Iterable[Mapping[str, Any]],
    load_average: float,
    n_mappers: int = N_MAPPERS,
) -> LateRun:
    """Put the lines of all mappers together.

    Args:
        n_mappers: of each job.

    Raises:
        ValueError: a mapper is missing.
    """
    listed = list(mappers)
    if len(listed) != len(apps) * n_mappers:
        raise ValueError(f"{key}: {len(listed)} mappers, {len(apps) * n_mappers} are expected")
    alone_s = {app.name: app.alone_s for app in apps}
    delays = [
        (each["end_s"] - each["start_s"] - each["waited_s"]) / alone_s[each["job"]](each["form"])
        for each in listed
    ]
    n_gpu = sum(each["form"] == "gpu" for each in listed)
    return LateRun(
        key,
        max(each["end_s"] for each in listed) - min(each["start_s"] for each in listed),
        statistics.fmean(delays),
        statistics.fmean(each["waited_s"] for each in listed),
        n_gpu,
        len(listed) - n_gpu,
        sum(key.choose == "agent" and not each["is_decided"] for each in listed),
        load_average,
    )


def late_rows(runs: Sequence[LateRun]) -> Iterator[Row]:
    """The figures of both modes."""
    for mode, name in MODES.items():
        these = [run for run in runs if run.key.mode == mode]
        if not these:
            continue
        forms = f"{sum(r.n_gpu for r in these)} mappers on GPUs, {sum(r.n_cpu for r in these)} on cores"
        undecided = sum(run.n_undecided for run in these)
        note = f"{forms}; {undecided} chose by themselves" if mode != "first" else forms
        yield measured(f"late binding, {name}: time", [run.makespan_s for run in these], "s", note=note)
        yield measured(f"late binding, {name}: mean delay", [run.mean_delay for run in these], "x")
        yield measured(f"late binding, {name}: mean wait", [run.mean_wait_s for run in these], "s")


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

    def all(self) -> list[LiveRun]:
        """In the order in which they were run."""
        return list(self._runs.values())

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


# ---- live beside simulated

#: (mix, policy) -> the simulated run.
Simulated = Mapping[tuple[str, str], SimulatedRun]
_FIGURES = (
    ("makespan", "s", "makespan_s"),
    ("mean delay", "x", "mean_delay"),
    ("GPUs computing", "share", "gpu_computing"),
    ("link used", "share", "link_used"),
)
_MOST_ERROR = 0.15
#: Policies whose simulated makespans differ by more have an order.
_DIFFERENCE = 0.10


def mix_rows(mix: str, policy: str, runs: Sequence[LiveRun], simulated: SimulatedRun) -> list[Row]:
    """Every figure of the runs of one mix under one policy."""
    rows = []
    for what, unit, name in _FIGURES:
        values = [getattr(run, name) for run in runs]
        expected = getattr(simulated, name)
        note = f"simulated {expected:.4g}"
        if name == "makespan_s":
            note += f" ({statistics.median(values) / expected - 1:+.0%} live)"
        rows.append(measured(f"{mix}, {policy}: {what}", values, unit, note=note))
    return rows


def verdict_rows(runs: RunTable, simulated: Simulated) -> list[Row]:
    """How well the simulator says what happens; over mixes with runs of several policies."""
    mixes = runs.mixes()
    if not mixes:
        return [not_measured("mean error of makespan", "no mix has runs of two policies")]
    errors = [_error(runs, simulated, mix, policy) for mix in mixes for policy in runs.policies(mix)]
    worst = max(errors, key=lambda each: each[0])
    delays = [
        abs(_median(runs, mix, policy, "mean_delay") / simulated[mix, policy].mean_delay - 1)
        for mix in mixes
        for policy in runs.policies(mix)
    ]
    rows = [
        observed(
            "mean error of makespan, simulated against live",
            statistics.fmean(error for error, _ in errors),
            "share",
            goal=f"<= {_MOST_ERROR}",
            note=f"mixes {', '.join(mixes)}; worst {worst[0]:.0%}: {worst[1]}",
        ),
        observed("mean error of mean delay", statistics.fmean(delays), "share"),
    ]
    pairs = [pair for mix in mixes for pair in _ordered_pairs(runs, simulated, mix)]
    if pairs:
        wrong = "; ".join(what for what, is_same in pairs if not is_same)
        share = statistics.fmean(is_same for _, is_same in pairs)
        note = f"{len(pairs)} pairs" + (f"; not: {wrong}" if wrong else "")
        what = f"pairs of policies that differ by > {_DIFFERENCE:.0%} simulated and have the same order live"
        rows.append(observed(what, share, "share", goal=">= 1", note=note))
    return rows + list(_saved_rows(runs, simulated, mixes))


def _median(runs: RunTable, mix: str, policy: str, name: str) -> float:
    return float(statistics.median(getattr(run, name) for run in runs.of(mix, policy)))


def _error(runs: RunTable, simulated: Simulated, mix: str, policy: str) -> tuple[float, str]:
    live_s, simulated_s = _median(runs, mix, policy, "makespan_s"), simulated[mix, policy].makespan_s
    return abs(simulated_s / live_s - 1), f"{mix}, {policy}"


def _ordered_pairs(runs: RunTable, simulated: Simulated, mix: str) -> Iterator[tuple[str, bool]]:
    """Each pair whose simulated makespans differ enough, and whether the same one is shorter live."""
    for one, other in itertools.combinations(runs.policies(mix), 2):
        ours, theirs = simulated[mix, one].makespan_s, simulated[mix, other].makespan_s
        if max(ours, theirs) > (1 + _DIFFERENCE) * min(ours, theirs):
            live = _median(runs, mix, one, "makespan_s") < _median(runs, mix, other, "makespan_s")
            yield f"{mix}, {one} and {other}", live == (ours < theirs)


def _saved_rows(runs: RunTable, simulated: Simulated, mixes: Sequence[str]) -> Iterator[Row]:
    for policy in POLICIES[1:]:
        both = [mix for mix in mixes if {"fifo", policy} <= set(runs.policies(mix))]
        if not both:
            continue
        live = statistics.fmean(
            1 - _median(runs, mix, policy, "makespan_s") / _median(runs, mix, "fifo", "makespan_s")
            for mix in both
        )
        expected = statistics.fmean(
            1 - simulated[mix, policy].makespan_s / simulated[mix, "fifo"].makespan_s for mix in both
        )
        note = f"mean of mixes {', '.join(both)}; simulated {expected:.2f}"
        yield observed(f"time saved against fifo, {policy}", live, "share", note=note)
