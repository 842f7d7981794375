"""The MPS policy on a real cluster, beside the simulator with the same parameters and beside Dask.

Real: YARN, HDFS, a container on each of four nodes, the task service, every file of a task. Emulated: what
tasks compute; they wait, at least 2 s, as long as the random DAGs of `mps_paper` say, divided by one factor.
Sections: `mix` (six DAGs of two classes, live against simulated), `preemption` (a preemptive DAG that is
submitted into a full cluster), `overhead` (what a task costs beside its work), `peer` (Dask: all the same).
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from benchmarks.mps_live.dask_peer import dask_up, is_installed
from benchmarks.mps_live.overhead import OverheadKey, OverheadRun
from benchmarks.mps_live.recording import Recording
from benchmarks.mps_live.runs import DASK, LIVE, SIMULATED, DagRun, RunKey
from benchmarks.mps_live.setting import FILES, FUNCTIONS, Costs, EmulatedDag, OverheadPlan, overhead_plan
from benchmarks.result import Report, not_measured
from yarn_accel.errors import JobError

if TYPE_CHECKING:
    from benchmarks.mps_live.cluster import LiveCluster

__all__ = ["SECTIONS", "draw", "plan", "run"]

_MIX, _PREEMPTION, _OVERHEAD, _PEER = SECTIONS = ("mix", "preemption", "overhead", "peer")
_N_REPEATS, _N_PEER_REPEATS = 5, 3
#: No run is begun when the whole has taken so long; the issue allows 15 minutes.
_LIMIT_MINUTES = 13.5
_QUICK_SHARE = 0.5

Key = RunKey | OverheadKey


class _Runner(Protocol):
    """Runs DAGs: the task service, or Dask."""

    def run(self, key: RunKey, dags: Sequence[EmulatedDag], costs: Costs) -> DagRun: ...

    def measure(self, key: OverheadKey, plan: OverheadPlan) -> OverheadRun: ...


def run(
    quick: bool,
    say: Callable[[str], None],
    report: Report,
    only: Sequence[str] = (),
    resume: bool = False,
    minutes: float = _LIMIT_MINUTES,
) -> None:
    """Run both worlds and measure what tasks cost, ours and Dask's in turn; compare with the simulator.

    Args:
        only: of `SECTIONS`.
        resume: keep the runs that the report's file has already.
        minutes: no run is begun later; --resume goes on.

    Raises:
        JobError: runs are left.
    """
    recording = Recording(report, _QUICK_SHARE if quick else 1.0, is_resumed=resume)
    keys = [key for key in plan(only or SECTIONS, is_quick=quick) if not recording.has(key)]
    if any(key.system == DASK for key in keys) and not is_installed():
        recording.leave_out(not_measured("peer: Dask distributed", "install [peers]"))
        keys = [key for key in keys if key.system != DASK]
    recording.note()
    try:
        if keys:
            _run_all(keys, recording, say, time.monotonic() + 60 * minutes, is_quick=quick)
    finally:
        recording.conclude()


def plan(only: Sequence[str], *, is_quick: bool) -> list[Key]:
    """All that is run, in order: what tasks cost, then each repeat of both worlds, ours and Dask's."""
    n_ours, n_theirs = (1, 1) if is_quick else (_N_REPEATS, _N_PEER_REPEATS)
    kinds = (FUNCTIONS, FILES)
    keys: list[Key] = [OverheadKey(kind, LIVE) for kind in kinds if _OVERHEAD in only]
    keys += [OverheadKey(kind, DASK) for kind in kinds if _PEER in only]
    for repeat in range(n_ours):
        keys += [RunKey(world, LIVE, repeat) for world in (_MIX, _PREEMPTION) if world in only]
        # Of a quick run the preemption alone: its high DAG is what priorities are for.
        worlds = () if _PEER not in only or repeat >= n_theirs else (_MIX, _PREEMPTION)
        keys += [RunKey(world, DASK, repeat) for world in (worlds[1:] if is_quick else worlds)]
    return keys


def _run_all(
    keys: Sequence[Key],
    recording: Recording,
    say: Callable[[str], None],
    until_s: float,
    *,
    is_quick: bool,
) -> None:
    from benchmarks.mps_live.cluster import cluster_up

    with (
        tempfile.TemporaryDirectory(prefix="mps-live-") as name,
        cluster_up(Path(name), say) as cluster,
    ):
        if recording.costs is None and any(isinstance(key, RunKey) for key in keys):
            recording.costs = cluster.driver.measure_costs()
            recording.note()
        if recording.costs is not None:
            rate = recording.costs.bytes_per_s / 1e6
            say(f"a task beside its wait: {recording.costs.task_s:.3f} s; its files: {rate:.0f} MB/s")
        n_done = 0
        for system, group in itertools.groupby(keys, lambda key: key.system):
            with _runner(system, cluster, Path(name)) as runner:
                for key in group:
                    if time.monotonic() > until_s:
                        left = f"{len(keys) - n_done} runs are left"
                        raise JobError(f"the time is over, and {left}; --resume runs them")
                    n_done += 1
                    say(f"{key}: {n_done} of {len(keys)}")
                    _run_one(key, runner, recording, say, is_quick=is_quick)


@contextmanager
def _runner(system: str, cluster: LiveCluster, folder: Path) -> Iterator[_Runner]:
    if system == DASK:
        with dask_up(folder, cluster.conf_dir) as peer:
            yield peer
    else:
        yield cluster.driver


def _run_one(
    key: Key, runner: _Runner, recording: Recording, say: Callable[[str], None], *, is_quick: bool
) -> None:
    if isinstance(key, OverheadKey):
        measured = runner.measure(key, overhead_plan(key.kind, is_quick=is_quick))
        recording.add(measured)
        say(f"{key}: {measured.rate_per_s:.0f} tasks per second")
        return
    assert recording.costs is not None
    done = runner.run(key, recording.dags(key.world, key.repeat), recording.costs)
    recording.add(done)
    slowdowns = ", ".join(f"{name} {each.slowdown:.2f}" for name, each in done.dags.items())
    say(f"{key}: {done.makespan_s:.1f} s; SD {slowdowns}")


def draw(report: Report, stem: str) -> list[str]:
    """Draw the first live run of each world above the simulated one; returns the files."""
    from benchmarks.mps_live.pictures import draw_pair

    runs = [DagRun.from_mapping(each) for each in report.series.get("runs", ())]
    simulated = {run.key: run for run in map(DagRun.from_mapping, report.series.get("simulated", ()))}
    files = []
    for world in (_MIX, _PREEMPTION):
        live = next((run for run in runs if (run.key.world, run.key.system) == (world, LIVE)), None)
        if live is not None:
            expected = simulated[RunKey(world, SIMULATED, live.key.repeat)]
            files.append(draw_pair(live, expected, f"{stem}-{world}.png"))
    return files
