"""Live runs beside simulated ones as rows: each figure, the error of the simulator, the order of policies."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

from benchmarks.hdas_live.runs import LiveRun, RunTable
from benchmarks.hdas_live.setting import POLICIES
from benchmarks.hdas_live.simulated import SimulatedRun
from benchmarks.result import Row, measured, not_measured, observed

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
    for one, other in combinations(runs.policies(mix), 2):
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
