"""Live runs beside simulated ones and beside Dask's, as rows; each claim holds or does not."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from benchmarks.papers.mps_live.runs import DASK, LIVE, DagRun, OverheadKey, OverheadRun, RunKey, percentile
from benchmarks.papers.mps_live.setting import FILES, FUNCTIONS, URGENT, Costs, EmulatedDag
from benchmarks.result import Row, measured, observed, ratio
from yarn_accel.core.dags.model import PriorityClass

#: A live run (ours or Dask's), the simulated one with its arrivals, and what was run.
Pair = tuple[DagRun, DagRun, Sequence[EmulatedDag]]
_MOST_ERROR = 0.10
_MOST_DIFFERENCE = 0.1
_LEAST_SLOWDOWN = 0.8
_MOST_LENGTH = 0.1
_MOST_FIRST_S = 0.3
_MOST_GAP_MS = 20.0
_LEAST_RATE = 200.0
_N_FOR_P99 = 100


def cost_rows(costs: Costs) -> list[Row]:
    """What was measured first."""
    note = "all machines busy; given to the simulator, and declared to the service"
    return [
        observed("a task beside its wait", costs.task_s, "s", note=note),
        observed("files of a task to and from HDFS", costs.bytes_per_s / 1e6, "MB/s", note=note),
    ]


def mix_rows(pairs: Sequence[Pair]) -> list[Row]:
    """The mixes of two classes, live against simulated."""
    if not pairs:
        return []
    errors = [abs(simulated.makespan_s / live.makespan_s - 1) for live, simulated, _ in pairs]
    rows = [
        measured("mix: makespan, live", [live.makespan_s for live, _, _ in pairs], "s"),
        measured("mix: makespan, simulated", [simulated.makespan_s for _, simulated, _ in pairs], "s"),
        measured(
            "mix: error of the simulated makespan",
            errors,
            "share",
            goal=f"<= {_MOST_ERROR}",
            note=f"worst {max(errors):.0%}",
        ),
        measured("mix: unfairness, live", [live.unfairness for live, _, _ in pairs], ""),
        measured("mix: unfairness, simulated", [simulated.unfairness for _, simulated, _ in pairs], ""),
    ]
    for of_class in (PriorityClass.HIGH, PriorityClass.BASIC):
        live = [run.mean_slowdown(dags, of_class) for run, _, dags in pairs]
        expected = [run.mean_slowdown(dags, of_class) for _, run, dags in pairs]
        rows += [
            measured(f"mix: mean SD of {of_class.word} DAGs, live", live, ""),
            measured(f"mix: mean SD of {of_class.word} DAGs, simulated", expected, ""),
        ]
    return list(_judged(rows))


def preemption_rows(pairs: Sequence[Pair]) -> list[Row]:
    """A preemptive DAG that is submitted into a full cluster, live against simulated."""
    if not pairs:
        return []
    slowdowns = [live.dags[URGENT].slowdown for live, _, _ in pairs]
    expected = [simulated.dags[URGENT].slowdown for _, simulated, _ in pairs]
    differences = [abs(ours - theirs) for ours, theirs in zip(slowdowns, expected, strict=True)]
    lengths = [_longest_basic(live) for live, _, _ in pairs]
    meanwhile = [_meanwhile(live) for live, _, _ in pairs]
    what = "preemption"
    rows = [
        measured(f"{what}: SD of the preemptive DAG, live", slowdowns, "", goal=f">= {_LEAST_SLOWDOWN}"),
        measured(f"{what}: SD of the preemptive DAG, simulated", expected, ""),
        measured(
            f"{what}: SD, live less simulated",
            differences,
            "",
            goal=f"<= {_MOST_DIFFERENCE}",
            note=f"worst {max(differences):.3f}",
        ),
        measured(
            f"{what}: longest basic task / makespan of the preemptive DAG",
            lengths,
            "share",
            goal=f"<= {_MOST_LENGTH}",
            note="so much the issue's claim assumes",
        ),
        measured(
            f"{what}: basic tasks that began while the preemptive DAG ran",
            meanwhile,
            "",
            goal=">= 1",
            note="basic DAGs go on",
        ),
    ]
    return list(_judged(rows))


def _longest_basic(run: DagRun) -> float:
    urgent = run.dags[URGENT]
    basic_s = max(each.end_s - each.start_s for each in run.tasks if each.dag != URGENT)
    return basic_s / (urgent.end_s - urgent.arrival_s)


def _meanwhile(run: DagRun) -> int:
    urgent = run.dags[URGENT]
    return sum(each.dag != URGENT and urgent.arrival_s <= each.start_s < urgent.end_s for each in run.tasks)


def peer_rows(runs: Mapping[RunKey, Pair]) -> list[Row]:
    """Dask beside ours, on the same DAGs; each of its runs with ours of the same repeat."""
    rows: list[Row] = []
    for world, of_high in (("mix", _slowdown_of_high), ("preemption", _slowdown_of_urgent)):
        both = [
            (runs[RunKey(world, LIVE, key.repeat)], pair)
            for key, pair in runs.items()
            if (key.world, key.system) == (world, DASK) and RunKey(world, LIVE, key.repeat) in runs
        ]
        if not both:
            continue
        ours, theirs = [mine[0].makespan_s for mine, _ in both], [other[0].makespan_s for _, other in both]
        which = "the preemptive DAG" if world == "preemption" else "high DAGs"
        rows += [
            measured(f"{world}: makespan, Dask", theirs, "s"),
            ratio(f"{world}: makespan, ours / Dask", ours, theirs, note="the same DAGs, one after the other"),
            measured(
                f"{world}: SD of {which}, Dask",
                [of_high(other) for _, other in both],
                "",
                note=f"ours {statistics.median(of_high(mine) for mine, _ in both):.3f}; the same M_own",
            ),
        ]
    return rows


def _slowdown_of_high(pair: Pair) -> float:
    return pair[0].mean_slowdown(pair[2], PriorityClass.HIGH)


def _slowdown_of_urgent(pair: Pair) -> float:
    return pair[0].dags[URGENT].slowdown


def overhead_rows(runs: Mapping[OverheadKey, OverheadRun]) -> list[Row]:
    """What a task costs: ours with goals for functions, Dask beside it."""
    rows: list[Row] = []
    for kind in (FUNCTIONS, FILES):
        for system in (LIVE, DASK):
            run = runs.get(OverheadKey(kind, system))
            if run is not None:
                rows += _of_run(run, is_judged=(kind, system) == (FUNCTIONS, LIVE))
        ours, theirs = runs.get(OverheadKey(kind, LIVE)), runs.get(OverheadKey(kind, DASK))
        if ours is not None and theirs is not None:
            gaps = statistics.median(ours.gaps_s) / statistics.median(theirs.gaps_s)
            rows.append(observed(f"{kind}: gap between tasks, ours / Dask", gaps, "x"))
            share = ours.rate_per_s / theirs.rate_per_s
            rows.append(observed(f"{kind}: tasks per second, ours / Dask", share, "x"))
    return list(_judged(rows))


def _of_run(run: OverheadRun, *, is_judged: bool) -> Iterator[Row]:
    who = "ours" if run.key.system == LIVE else "Dask"
    gaps_ms = [1e3 * each for each in run.gaps_s]
    first, gap, rate = (
        (f"<= {_MOST_FIRST_S}", f"<= {_MOST_GAP_MS:g}", f">= {_LEAST_RATE:g}") if is_judged else ("", "", "")
    )
    yield measured(f"{run.key.kind}: submit to first start, {who}", run.first_s, "s", goal=first)
    yield measured(f"{run.key.kind}: end to successor's start, {who}", gaps_ms, "ms", goal=gap)
    note = f"of {len(gaps_ms)} gaps" + ("" if len(gaps_ms) >= _N_FOR_P99 else ": too few for a 99th")
    p99 = percentile(gaps_ms, 0.99)
    yield replace(
        observed(f"{run.key.kind}: end to successor's start, p99, {who}", p99, "ms", goal=gap, note=note),
        n=len(gaps_ms),
    )
    if run.stamped_gaps_s:
        yield from _of_stamps(run)
    together = f"{run.n_together} that need nothing of one another"
    yield observed(
        f"{run.key.kind}: tasks per second, {who}", run.rate_per_s, "1/s", goal=rate, note=together
    )


def _of_stamps(run: OverheadRun) -> Iterator[Row]:
    """The same by what the service recorded, which knows nothing of how a submission came to it."""
    kind, note = run.key.kind, "by the stamps of the service"
    gaps_ms = [1e3 * each for each in run.stamped_gaps_s]
    yield measured(f"{kind}: taken to first start, ours, stamped", run.stamped_first_s, "s", note=note)
    yield measured(f"{kind}: end to successor's start, ours, stamped", gaps_ms, "ms", note=note)
    yield observed(f"{kind}: tasks per second, ours, stamped", run.stamped_rate_per_s, "1/s", note=note)


def _judged(rows: Iterable[Row]) -> Iterator[Row]:
    """The verdict in words, too, for whoever reads the JSON."""
    for row in rows:
        verdict = {None: "", True: "holds", False: "does not hold"}[row.ok]
        yield replace(row, note="; ".join(filter(None, (verdict, row.note))))
