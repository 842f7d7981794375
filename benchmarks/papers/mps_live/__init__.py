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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.papers.live import Recording, in_time, stamped
from benchmarks.papers.mps_live import setting
from benchmarks.papers.mps_live.dask_peer import dask_up, is_installed
from benchmarks.papers.mps_live.runs import (
    DASK,
    LIVE,
    SIMULATED,
    DagRun,
    OverheadKey,
    OverheadRun,
    Pair,
    RunKey,
    cost_rows,
    mix_rows,
    overhead_rows,
    peer_rows,
    preemption_rows,
    simulated_run,
    spans_by_machine,
)
from benchmarks.papers.mps_live.setting import (
    FILES,
    FUNCTIONS,
    Costs,
    EmulatedDag,
    mix_dags,
    overhead_plan,
    preemption_dags,
)
from benchmarks.result import Report, Row, not_measured

if TYPE_CHECKING:
    from benchmarks.papers.mps_live.cluster import LiveCluster
    from benchmarks.papers.mps_live.dask_peer import DaskPeer

__all__ = ["SECTIONS", "draw", "plan", "run"]

_MIX, _PREEMPTION, _OVERHEAD, _PEER = SECTIONS = ("mix", "preemption", "overhead", "peer")
_DAGS = {_MIX: mix_dags, _PREEMPTION: preemption_dags}
_N_REPEATS, _N_PEER_REPEATS = 5, 3
#: No run is begun when the whole has taken so long; the issue allows 15 minutes.
_LIMIT_MINUTES = 13.5
_QUICK_SHARE = 0.5

Key = RunKey | OverheadKey


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
    recording = _Recording(report, _QUICK_SHARE if quick else 1.0, is_resumed=resume)
    keys = [key for key in plan(only or SECTIONS, is_quick=quick) if not recording.has(key)]
    left_out: list[Row] = []
    if any(key.system == DASK for key in keys) and not is_installed():
        left_out = [not_measured("peer: Dask distributed", "install [peers]")]
        keys = [key for key in keys if key.system != DASK]
    recording.note()
    try:
        if keys:
            _run_all(keys, recording, say, time.monotonic() + 60 * minutes, is_quick=quick)
    finally:
        recording.conclude(left_out)


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
    recording: _Recording,
    say: Callable[[str], None],
    until_s: float,
    *,
    is_quick: bool,
) -> None:
    from benchmarks.papers.mps_live.cluster import cluster_up

    with (
        tempfile.TemporaryDirectory(prefix="mps-live-") as name,
        cluster_up(Path(name), say) as cluster,
    ):
        if recording.measured is None and any(isinstance(key, RunKey) for key in keys):
            recording.measured = cluster.measure_costs()
            recording.note()
        if recording.measured is not None:
            rate = recording.measured.bytes_per_s / 1e6
            say(f"a task beside its wait: {recording.measured.task_s:.3f} s; its files: {rate:.0f} MB/s")
        for system, group in itertools.groupby(in_time(keys, until_s, say), lambda key: key.system):
            with _runner(system, cluster, Path(name)) as runner:
                for key in group:
                    _run_one(key, runner, recording, say, is_quick=is_quick)


@contextmanager
def _runner(system: str, cluster: LiveCluster, folder: Path) -> Iterator[LiveCluster | DaskPeer]:
    """What runs DAGs: the task service, or Dask."""
    if system == DASK:
        with dask_up(folder, cluster.conf_dir) as peer:
            yield peer
    else:
        yield cluster


def _run_one(
    key: Key,
    runner: LiveCluster | DaskPeer,
    recording: _Recording,
    say: Callable[[str], None],
    *,
    is_quick: bool,
) -> None:
    if isinstance(key, OverheadKey):
        overhead = stamped(runner.measure(key, overhead_plan(key.kind, is_quick=is_quick)))
        recording.add("overheads", overhead)
        say(f"{key}: {overhead.rate_per_s:.0f} tasks per second")
        return
    assert recording.measured is not None
    done = stamped(runner.run(key, recording.dags(key), recording.measured))
    recording.add("runs", done)
    slowdowns = ", ".join(f"{name} {each.slowdown:.2f}" for name, each in done.dags.items())
    say(f"{key}: {done.makespan_s:.1f} s; SD {slowdowns}")


class _Recording(Recording[Costs]):
    """All runs of a report, and the rows at the end.

    Args:
        share: of the tasks of each world.
    """

    def __init__(self, report: Report, share: float, *, is_resumed: bool) -> None:
        recorded_with = {
            "computing": "emulated: every task waits",
            "time_divided_by": setting.SLOWNESS,
            "least_task_s": setting.LEAST_S,
            "file_bytes": setting.FILE_BYTES,
            "machines": f"{setting.N_MACHINES} nodes, a worker of one core on each",
            "share_of_tasks": share,
        }
        kinds = {"runs": DagRun, "overheads": OverheadRun}
        super().__init__(report, recorded_with, kinds, ("costs", Costs), is_resumed=is_resumed)
        self._share = share

    def dags(self, key: RunKey) -> list[EmulatedDag]:
        """The DAGs of a run."""
        return _DAGS[key.world](key.repeat, self._share)

    def conclude(self, left_out: Sequence[Row]) -> None:
        """The rows, and what the pictures are drawn from."""
        self.note_load()
        rows: list[Row] = []
        if self.measured is not None:
            pairs = self._pairs(self.measured)
            self.report.series["simulated"] = [
                simulated.to_mapping() for key, (_, simulated, _) in pairs.items() if key.system == LIVE
            ]
            rows += cost_rows(self.measured)
            rows += mix_rows(_of(pairs, _MIX))
            rows += preemption_rows(_of(pairs, _PREEMPTION))
            rows += peer_rows(pairs)
        self.report.add([*rows, *overhead_rows(self.runs["overheads"]), *left_out])

    def _pairs(self, costs: Costs) -> dict[RunKey, Pair]:
        """Each run with the simulated one that has its arrivals."""
        found: dict[RunKey, Pair] = {}
        for key, run in self.runs["runs"].items():
            dags = self.dags(key)
            found[key] = run, simulated_run(key.world, key.repeat, dags, costs, run.arrivals_s), dags
        return found


def _of(pairs: Mapping[RunKey, Pair], world: str) -> Sequence[Pair]:
    return [pair for key, pair in pairs.items() if (key.world, key.system) == (world, LIVE)]


# ---- pictures: when each task ran, by machine


def draw(report: Report, stem: str) -> list[str]:
    """Draw the first live run of each world above the simulated one; returns the files."""
    runs = [DagRun.from_mapping(each) for each in report.series.get("runs", ())]
    simulated = {run.key: run for run in map(DagRun.from_mapping, report.series.get("simulated", ()))}
    files = []
    for world in (_MIX, _PREEMPTION):
        live = next((run for run in runs if (run.key.world, run.key.system) == (world, LIVE)), None)
        if live is not None:
            expected = simulated[RunKey(world, SIMULATED, live.key.repeat)]
            files.append(_draw_pair(live, expected, f"{stem}-{world}.png"))
    return files


def _draw_pair(live: DagRun, simulated: DagRun, file: str) -> str:
    from yarn_accel.report.figures import colour_of, drawing

    with drawing(file, (12, 6), rows=2, dpi=80, sharex=True) as (figure, table):
        colours = {name: colour_of(number) for number, name in enumerate(live.dags)}
        panels = table[:, 0]
        for axes, run, name in ((panels[0], live, "live"), (panels[1], simulated, "simulated")):
            _draw_spans(axes, run, colours)
            axes.set_title(f"{name}: makespan {run.makespan_s:.1f} s, unfairness {run.unfairness:.2f}")
        panels[1].set_xlabel("s")
        handles = [panels[0].barh([0], [0], color=colour, label=name) for name, colour in colours.items()]
        figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), fontsize="small")
        figure.suptitle(f"{live.key.world}: tasks by machine; computing is emulated")
    return file


def _draw_spans(axes: Any, run: DagRun, colours: Any) -> None:
    by_machine = sorted(spans_by_machine(run.tasks).items())
    for number, (_, spans) in enumerate(by_machine):
        axes.broken_barh(
            [(each.start_s, each.end_s - each.start_s) for each in spans],
            (number - 0.4, 0.8),
            facecolors=[colours[each.dag] for each in spans],
            edgecolor="white",
            linewidth=0.5,
        )
        for each in spans:
            middle_s = (each.start_s + each.end_s) / 2
            axes.text(middle_s, number, each.task, ha="center", va="center", fontsize=5, clip_on=True)
    axes.set_yticks(range(len(by_machine)), [name for name, _ in by_machine])
    axes.set_ylim(len(by_machine) - 0.5, -0.5)
