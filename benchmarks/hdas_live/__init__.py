"""The HDAS paper's policies on a real cluster, beside the simulator with the same parameters.

Real: YARN, HDFS on two storage nodes, four compute nodes whose links the kernel limits, the task service, its
workers, every byte that a task reads. Emulated: kernels, which wait as long as the paper's applications
compute, divided by one factor for all; GPUs, two names per node. Sections are the paper's mixes A to Y, and
late binding; C, K, P and late binding unless others are asked for.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.hdas_live import setting
from benchmarks.hdas_live.late import MODES, N_MAPPERS, LateKey
from benchmarks.hdas_live.pictures import draw_mix
from benchmarks.hdas_live.recording import Recording
from benchmarks.hdas_live.runs import LiveRun, RunKey, RunTable
from benchmarks.hdas_live.setting import POLICIES
from benchmarks.hdas_paper.paper import MIXES
from benchmarks.result import Report
from yarn_accel.errors import JobError

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
    share = _QUICK_SHARE if quick else setting.SHARE_OF_TASKS
    recording = Recording(report, share, is_resumed=resume)
    say(f"times of the paper / {setting.SLOWNESS}, splits / {setting.SPLIT_DIVISOR:.1f}; kernels emulated")
    keys = [key for key in plan(only, is_quick=quick) if not recording.has(key)]
    recording.note()
    try:
        if keys:
            n_mappers = _QUICK_MAPPERS if quick else N_MAPPERS
            _run_all(keys, recording, say, time.monotonic() + 60 * minutes, mode, n_mappers)
    finally:
        recording.conclude()


def plan(only: Sequence[str], *, is_quick: bool) -> list[RunKey | LateKey]:
    """All runs, in order: a repeat of all before the next one, then the streaming jobs.

    In a repeat all mixes run under one policy before the next policy, so each needs one service.
    """
    sections = only or (_DEFAULT[:1] if is_quick else _DEFAULT)
    policies = _QUICK_POLICIES if is_quick else POLICIES
    repeats = range(1 if is_quick else _N_REPEATS)
    mixes = [section for section in sections if section != _LATE]
    keys: list[RunKey | LateKey] = [
        RunKey(mix, policy, repeat) for repeat in repeats for policy in policies for mix in mixes
    ]
    if _LATE in sections:
        keys += [LateKey(mode, repeat) for repeat in repeats for mode in MODES]
    return keys


def _run_all(
    keys: Sequence[RunKey | LateKey],
    recording: Recording,
    say: Callable[[str], None],
    until_s: float,
    mode: str,
    n_mappers: int,
) -> None:
    from benchmarks.hdas_live.cluster import cluster_up

    with (
        tempfile.TemporaryDirectory(prefix="hdas-live-") as folder,
        cluster_up(Path(folder), say, mode) as cluster,
    ):
        overheads = recording.overheads or cluster.measure_overheads()
        recording.overheads = overheads
        recording.note()
        say(f"a task alone: {overheads.task_s:.3f} s; a link: {overheads.link_bytes_per_s / 1e6:.2f} MB/s")
        is_prepared = False
        for number, key in enumerate(keys):
            if time.monotonic() > until_s:
                n_left = len(keys) - number
                raise JobError(f"the time is over, and {n_left} runs are left; --resume runs them")
            left_s = sum(
                _LATE_RUN_S if isinstance(k, LateKey) else recording.expected_s(k) for k in keys[number:]
            )
            say(f"{key}: {number + 1} of {len(keys)}, {left_s / 60:.0f} minutes left")
            if isinstance(key, LateKey):
                if not is_prepared:
                    cluster.prepare_late_binding(overheads.link_bytes_per_s, n_mappers)
                    is_prepared = True
                late = cluster.run_late(key)
                recording.add_late(late)
                say(f"{key}: {late.makespan_s:.1f} s, mean delay {late.mean_delay:.2f}")
            else:
                done = cluster.run(key, recording.apps(key.mix), overheads)
                recording.add(done)
                say(f"{key}: {done.makespan_s:.1f} s, mean delay {done.mean_delay:.2f}")


def draw(report: Report, stem: str) -> list[str]:
    """Draw GPUs and links over time of each mix, live and simulated; returns the files."""
    runs = RunTable(LiveRun.from_mapping(each) for each in report.series.get("runs", ()))
    simulated = report.series.get("simulated", {})
    mixes = dict.fromkeys(each.key.mix for each in runs.all())
    return [draw_mix(mix, runs, simulated, f"{stem}-{mix}.png") for mix in mixes if simulated]
