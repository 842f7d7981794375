"""The HDAS paper's policies on a real cluster, beside the simulator with the same parameters.

Real: YARN, HDFS on two storage nodes, four compute nodes whose links the kernel limits, the task service, its
workers, every byte that a task reads. Emulated: kernels, which wait as long as the paper's applications
compute, divided by one factor for all; GPUs, two names per node. Sections are the paper's mixes A to Y, and
late binding; C, K, P and late binding unless others are asked for.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.papers.hdas_live import setting
from benchmarks.papers.hdas_live.runs import (
    LATE_SLOWNESS,
    MODES,
    N_MAPPERS,
    LateKey,
    LateRun,
    LiveRun,
    RunKey,
    RunTable,
    columns_of,
    late_rows,
    mix_rows,
    rows_of,
    verdict_rows,
)
from benchmarks.papers.hdas_live.setting import (
    GPUS,
    LINK,
    N_COMPUTE,
    POLICIES,
    Overheads,
    ScaledApp,
    SimulatedRun,
    mix_apps,
    simulated_run,
)
from benchmarks.papers.hdas_paper.paper import MIXES
from benchmarks.papers.live import Recording, in_time, stamped
from benchmarks.result import Report, Row, observed
from yarn_accel.testbed.plan import rate_bits_per_s

__all__ = ["SECTIONS", "draw", "plan", "run"]

_LATE = "late-binding"
SECTIONS = (*MIXES, _LATE)
_DEFAULT = ("C", "K", "P", _LATE)
_N_REPEATS = 3
#: No run is begun when the whole has taken so long; the issue allows an hour.
_LIMIT_MINUTES = 56.0
_QUICK_SHARE = 0.03
_QUICK_POLICIES = ("fifo", "hdas+")
#: So that each node has some of both jobs.
_QUICK_MAPPERS = 4
#: A run of the two streaming jobs.
_LATE_RUN_S = 100.0
#: Beside the run itself: the service ends, another one starts, four workers report.
_BETWEEN_RUNS_S = 8.0

Key = RunKey | LateKey


def run(
    quick: bool,
    say: Callable[[str], None],
    report: Report,
    only: Sequence[str] = (),
    resume: bool = False,
    minutes: float = _LIMIT_MINUTES,
    mode: str = "",
) -> None:
    """Run the mixes under every policy, repeats interleaved, and compare with the simulator.

    Args:
        only: letters of mixes, and ``late-binding``.
        resume: keep the runs that the report's file has already.
        minutes: no run is begun later; --resume goes on.
        mode: of the cluster, such as ``netns`` or ``docker``; empty: netns as root.
    """
    recording = _Recording(report, _QUICK_SHARE if quick else setting.SHARE_OF_TASKS, is_resumed=resume)
    say(f"times of the paper / {setting.SLOWNESS}, splits / {setting.SPLIT_DIVISOR:.1f}; kernels emulated")
    keys = [key for key in plan(only, is_quick=quick) if not recording.has(key)]
    recording.note()
    try:
        if keys:
            n_mappers = _QUICK_MAPPERS if quick else N_MAPPERS
            _run_all(keys, recording, say, time.monotonic() + 60 * minutes, mode, n_mappers)
    finally:
        recording.conclude()


def plan(only: Sequence[str], *, is_quick: bool) -> list[Key]:
    """All runs, in order: a repeat of all before the next one, then the streaming jobs.

    In a repeat all mixes run under one policy before the next policy, so each needs one service.
    """
    sections = only or (_DEFAULT[:1] if is_quick else _DEFAULT)
    policies = _QUICK_POLICIES if is_quick else POLICIES
    repeats = range(1 if is_quick else _N_REPEATS)
    mixes = [section for section in sections if section != _LATE]
    keys: list[Key] = [
        RunKey(mix, policy, repeat) for repeat in repeats for policy in policies for mix in mixes
    ]
    if _LATE in sections:
        keys += [LateKey(mode, repeat) for repeat in repeats for mode in MODES]
    return keys


def _run_all(
    keys: Sequence[Key],
    recording: _Recording,
    say: Callable[[str], None],
    until_s: float,
    mode: str,
    n_mappers: int,
) -> None:
    from benchmarks.papers.hdas_live.cluster import cluster_up

    with (
        tempfile.TemporaryDirectory(prefix="hdas-live-") as folder,
        cluster_up(Path(folder), say, mode) as cluster,
    ):
        overheads = recording.measured = recording.measured or cluster.measure_overheads()
        recording.note()
        say(f"a task alone: {overheads.task_s:.3f} s; a link: {overheads.link_bytes_per_s / 1e6:.2f} MB/s")
        is_prepared = False
        for key in in_time(keys, until_s, say, lambda left: sum(map(recording.expected_s, left))):
            if isinstance(key, LateKey):
                if not is_prepared:
                    cluster.prepare_late_binding(overheads.link_bytes_per_s, n_mappers)
                    is_prepared = True
                done: LateRun | LiveRun = cluster.run_late(key)
                recording.add("late_runs", done)
            else:
                done = stamped(cluster.run(key, recording.apps(key.mix), overheads))
                recording.add("runs", done)
            say(f"{key}: {done.makespan_s:.1f} s, mean delay {done.mean_delay:.2f}")


class _Recording(Recording[Overheads]):
    """All runs of a report, and the rows at the end.

    Args:
        share_of_tasks: of the paper's numbers.
    """

    def __init__(self, report: Report, share_of_tasks: float, *, is_resumed: bool) -> None:
        kinds = {"runs": LiveRun, "late_runs": LateRun}
        overheads = ("overheads", Overheads)
        super().__init__(report, _setting(share_of_tasks), kinds, overheads, is_resumed=is_resumed)
        self._share = share_of_tasks

    def apps(self, mix: str) -> list[ScaledApp]:
        """The applications of a mix."""
        return mix_apps(mix, self._share)

    def expected_s(self, key: Key) -> float:
        """How long a run will take, restart of the service included."""
        if isinstance(key, LateKey):
            return _LATE_RUN_S
        assert self.measured is not None
        apps = self.apps(key.mix)
        starts_s = {app.name: number * setting.APP_INTERVAL_S for number, app in enumerate(apps)}
        return _BETWEEN_RUNS_S + simulated_run(apps, key.policy, self.measured, starts_s).makespan_s

    def conclude(self) -> None:
        """The rows, and what the pictures are drawn from."""
        if self.measured is None:
            return
        runs = RunTable(self.runs["runs"].values())
        simulated = self._simulated(runs, self.measured)
        self.report.series["simulated"] = {
            f"{mix} {policy}": {**asdict(each), "use": columns_of(each.use)}
            for (mix, policy), each in simulated.items()
        }
        self.note_load()
        rows = _overhead_rows(self.measured)
        for (mix, policy), each in simulated.items():
            rows += mix_rows(mix, policy, runs.of(mix, policy), each)
        late = late_rows(list(self.runs["late_runs"].values()))
        self.report.add([*rows, *verdict_rows(runs, simulated), *late])

    def _simulated(self, runs: RunTable, overheads: Overheads) -> dict[tuple[str, str], SimulatedRun]:
        found = {}
        for mix, policy in dict.fromkeys((each.key.mix, each.key.policy) for each in runs.all()):
            live = runs.of(mix, policy)
            starts_s = {
                app: statistics.median(each.starts_s[app] for each in live) for app in live[0].starts_s
            }
            found[mix, policy] = simulated_run(self.apps(mix), policy, overheads, starts_s)
        return found


def _setting(share_of_tasks: float) -> dict[str, Any]:
    return {
        "time_divided_by": setting.SLOWNESS,
        "splits_divided_by": round(setting.SPLIT_DIVISOR, 1),
        "time_divided_by_late_binding": LATE_SLOWNESS,
        "link": setting.LINK,
        "share_of_tasks": share_of_tasks,
        "nodes": f"{setting.N_STORAGE} storage, {setting.N_COMPUTE} compute",
        "compute_node": f"{setting.CORES} cores, {setting.GPUS} emulated GPUs",
    }


def _overhead_rows(overheads: Overheads) -> list[Row]:
    link = f"{setting.LINK}; given to the simulator and the policies"
    return [
        observed("overhead of one task alone", overheads.task_s, "s", note="given to the simulator"),
        observed("of that, of its attempt", overheads.attempt_s, "s"),
        observed("one reader on an idle link", overheads.link_bytes_per_s / 1e6, "MB/s", note=link),
    ]


# ---- pictures


def draw(report: Report, stem: str) -> list[str]:
    """Draw GPUs and links over time of each mix, live and simulated; returns the files."""
    runs = RunTable(LiveRun.from_mapping(each) for each in report.series.get("runs", ()))
    simulated = report.series.get("simulated", {})
    mixes = dict.fromkeys(each.key.mix for each in runs.all())
    return [_draw_mix(mix, runs, simulated, f"{stem}-{mix}.png") for mix in mixes if simulated]


def _draw_mix(mix: str, runs: RunTable, simulated: Mapping[str, Any], file: str) -> str:
    """Draw one mix: a row for each policy, its first run live on the left, simulated on the right."""
    from yarn_accel.report.figures import drawing

    policies = [policy for policy in POLICIES if runs.of(mix, policy)]
    with drawing(file, (12, 2.6 * len(policies)), len(policies), 2, dpi=70) as (figure, table):
        for (left, right), policy in zip(table, policies, strict=True):
            live = runs.of(mix, policy)[0]
            expected = simulated[f"{mix} {policy}"]
            end_s = 1.02 * max(live.makespan_s, expected["makespan_s"])
            _draw_use(left, live.use, f"{policy}, live: {live.makespan_s:.0f} s", end_s)
            title = f"{policy}, simulated: {expected['makespan_s']:.0f} s"
            _draw_use(right, rows_of(expected["use"]), title, end_s)
        figure.suptitle(
            f"mix {mix}: GPUs that compute (black), MB/s of all links (red); kernels are emulated"
        )
    return file


def _draw_use(axes: Any, use: Any, title: str, end_s: float) -> None:
    from yarn_accel.report.figures import draw_rate

    at_s, gpus, rates = zip(*use, strict=True)
    axes.step(at_s, gpus, where="mid", color="#222222", linewidth=0.9)
    axes.set_ylim(0, N_COMPUTE * GPUS + 0.3)
    axes.set_xlim(0, end_s)
    other = draw_rate(axes, at_s, [rate / 1e6 for rate in rates])
    other.set_ylim(0, 1.05 * N_COMPUTE * rate_bits_per_s(LINK) / 8e6)
    axes.set_title(title, fontsize="medium")
    axes.set_xlabel("s", fontsize="small")
