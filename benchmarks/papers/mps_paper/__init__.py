"""The MPS paper's experiments, simulated: Figures 4 to 10 with random DAGs, and each claim beside ours.

Sections: `same` (Figures 4, 5: one class, 5 machines), `mixed` (6 to 8: three classes, 3 machines),
`preemptive` (9, 10: one preemptive DAG that arrives later and later), `scale` (milliseconds per decision).
DAGs are those of `yarn_accel.dags.generator` within the paper's Table 3; every policy sees the same worlds,
and differences are taken world by world, with 95 % intervals (Student's t).

Policies that never take back place a task when it enters the pool. As tasks of several DAGs seldom enter in
one moment, the order of DAGs changes little: `fairness`, `round_robin` and `fcfs` coincide, as in Figure
3(a); and so do the policies that plan at arrival where no two DAGs arrive together.
"""

from __future__ import annotations

import os
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from rich.console import Console
from rich.progress import Progress

from benchmarks.papers.mps_paper.runs import Cell, CellResult, run_cells
from benchmarks.papers.mps_paper.scale import scale_rows
from benchmarks.result import Report, Row

__all__ = ["SECTIONS", "draw", "interval", "run"]

SECTIONS = ("same", "mixed", "preemptive", "scale")
POLICIES = (
    "mps",
    "mmhs",
    "round_robin",
    "fairness",
    "fairness-fpft",
    "fairness-fpct",
    "fcfs",
    "merged_heft",
)
_N_SEEDS = 20
_ARRIVALS_S = tuple(range(0, 65, 5))
#: Quantiles of Student's t for a two-sided 95 %, by degrees of freedom.
_T95 = {2: 4.303, 4: 2.776, 9: 2.262, 19: 2.093}

_FIGURES = {
    "same": (("mean_makespan_s", "figure 4: mean makespan, s"), ("unfairness", "figure 5: unfairness")),
    "mixed": (
        ("mean_makespan_s", "figure 6: mean makespan, s"),
        ("unfairness", "figure 7: unfairness"),
        ("utilisation", "figure 8: utilisation"),
    ),
    "preemptive": (
        ("first_makespan_s", "figure 9: makespan of the preemptive DAG, s"),
        ("first_slowdown", "figure 10: its slowdown"),
    ),
}
_X = {"same": "DAGs", "mixed": "DAGs", "preemptive": "arrival, s"}

Results = Mapping[tuple[str, int], Sequence[CellResult]]


def run(quick: bool, say: Callable[[str], None], report: Report, only: Sequence[str] = SECTIONS) -> None:
    """Measure the sections; `quick` takes 3 seeds and fewer points."""
    report.setting["load_average_before"] = round(os.getloadavg()[0], 1)
    seeds = range(3 if quick else _N_SEEDS)
    if "same" in only:
        found = _run("same", POLICIES, (2, 6) if quick else (2, 4, 6, 8, 10), seeds)
        _report(report, "same", found, ("mean_makespan_s", "unfairness", "utilisation"))
        report.add(_same_claims(found))
    if "mixed" in only:
        found = _run("mixed", POLICIES, (3, 8) if quick else (3, 5, 8, 10), seeds)
        _report(report, "mixed", found, ("mean_makespan_s", "unfairness", "utilisation"))
        report.add(_mixed_claims(found))
    if "preemptive" in only:
        found = _run("preemptive", POLICIES, _ARRIVALS_S[:: 6 if quick else 1], seeds)
        _report(report, "preemptive", found, ("first_makespan_s", "first_slowdown"))
        report.add(_preemptive_claims(found))
    if "scale" in only:
        say("scale: decisions with 1,000 DAGs of 100 tasks on 100 machines")
        report.add(scale_rows(quick))


def draw(report: Report, stem: str) -> list[str]:
    """Draw the paper's figures from the series, means with their 95 % intervals; returns the files."""
    from yarn_accel.report.figures import drawing

    files = []
    for kind, panels in _FIGURES.items():
        if kind not in report.series:
            continue
        files.append(f"{stem}-{kind}.png")
        with drawing(files[-1], (5.5 * len(panels), 4.5), columns=len(panels)) as (_, table):
            for axes, (name, title) in zip(table[0], panels, strict=True):
                for policy, points in report.series[kind][name].items():
                    x, mean, low, high = zip(*points, strict=True)
                    axes.plot(x, mean, marker="o", markersize=3, label=policy)
                    axes.fill_between(x, low, high, alpha=0.12)
                axes.set_title(title, fontsize=10)
                axes.set_xlabel(_X[kind])
            axes.legend(fontsize=7)
    return files


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean, and its 95 % interval."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return mean, mean, mean
    half = _T95.get(len(values) - 1, 2.0) * statistics.stdev(values) / len(values) ** 0.5
    return mean, mean - half, mean + half


def _run(kind: str, policies: Iterable[str], points: Sequence[int], seeds: Iterable[int]) -> Results:
    cells = [Cell(kind, policy, point, seed) for point in points for seed in seeds for policy in policies]
    found: dict[tuple[str, int], list[CellResult]] = defaultdict(list)
    with Progress(console=Console(stderr=True)) as progress:
        line = progress.add_task(kind, total=len(cells))
        for cell, result in run_cells(cells):
            found[cell.policy, cell.point].append(result)
            progress.advance(line)
    return found


def _report(report: Report, kind: str, found: Results, figures: Sequence[str]) -> None:
    series: dict[str, dict[str, list[list[float]]]] = {}
    for figure in figures:
        by_policy: dict[str, list[list[float]]] = defaultdict(list)
        for (policy, point), results in sorted(found.items()):
            values = [getattr(each, figure) for each in results]
            by_policy[policy].append([point, *(round(value, 4) for value in interval(values))])
        series[figure] = dict(by_policy)
    report.series[kind] = series
    report.save()


def _relative(found: Results, figure: str, other: str, points: Iterable[int]) -> list[float]:
    """mps over another policy, less 1, world by world."""
    pairs = (
        (getattr(mine, figure), getattr(theirs, figure))
        for point in points
        for mine, theirs in zip(found["mps", point], found[other, point], strict=True)
    )
    return [mine / theirs - 1 for mine, theirs in pairs if theirs > 0]


def _points(found: Results) -> list[int]:
    return sorted({point for _, point in found})


def _claim(what: str, values: Sequence[float], paper: str, holds: bool, why: str, unit: str = "share") -> Row:
    mean, low, high = interval(values)
    verdict = "holds" if holds else "does not hold"
    of_mean = f"95 % interval of the mean {low:.3g} to {high:.3g}"
    note = f"{of_mean}; paper: {paper}; {verdict}: {why}"
    return Row(what, mean, unit, len(values), (min(values), max(values)), "", holds, note)


def _beside_range(mean: float) -> str:
    if mean < -0.07:
        return "the mean is below the range: mps is faster than stated"
    return "the mean is in the range" if mean <= 0.105 else "the mean is above the range: mps is slower"


def _same_claims(found: Results) -> list[Row]:
    points, rows = _points(found), []
    for other in POLICIES[1:]:
        values = _relative(found, "mean_makespan_s", other, points)
        mean = statistics.fmean(values)
        what = f"one class: mean makespan, mps against {other}"
        paper, why = "-0.07 to 0.105 (mmhs, round_robin)", _beside_range(mean)
        rows.append(_claim(what, values, paper, -0.07 <= mean <= 0.105, why))
        mine = [each.unfairness for point in points for each in found["mps", point]]
        theirs = [each.unfairness for point in points for each in found[other, point]]
        whole = statistics.fmean(theirs)
        values = [(a - b) / whole for a, b in zip(mine, theirs, strict=True)]
        _, _, high = interval(values)
        why = "lower beyond the interval" if high < 0 else "the interval has 0 or more in it"
        rows.append(
            _claim(
                f"one class: unfairness, mps against {other}",
                values,
                "-0.155 (mmhs, round_robin)",
                high < 0,
                why,
            )
        )
    return rows


def _mixed_claims(found: Results) -> list[Row]:
    points, rows = _points(found), []
    for other in POLICIES[1:]:
        values = _relative(found, "utilisation", other, points)
        _, low, _ = interval(values)
        why = "higher beyond the interval" if low > 0 else "the interval has 0 or less in it"
        rows.append(
            _claim(f"three classes: utilisation, mps against {other}", values, "+0.079 (both)", low > 0, why)
        )
        values = _relative(found, "mean_makespan_s", other, points)
        mean = statistics.fmean(values)
        holds, why = -0.07 <= mean <= 0.105, _beside_range(mean)
        rows.append(
            _claim(f"three classes: mean makespan, mps against {other}", values, "-0.07 to 0.105", holds, why)
        )
    least = points[0]
    values = [each.unfairness for each in found["mps", least]]
    mean = statistics.fmean(values)
    why = "three distances from a mean sum to at most 4/3 of the largest difference"
    rows.append(
        _claim(f"three classes: unfairness with {least} DAGs", values, "about 1", mean >= 0.9, why, "")
    )
    values = [each.unfairness for each in found["mps", points[-1]]]
    holds = statistics.fmean(values) > 1
    what = f"three classes: unfairness with {points[-1]} DAGs"
    rows.append(_claim(what, values, "above 1", holds, "lower classes wait", ""))
    return rows


def _preemptive_claims(found: Results) -> list[Row]:
    rows = []
    for policy in POLICIES:
        results = [each for point in _points(found) for each in found[policy, point]]
        makespans = [each.first_makespan_s for each in results]
        slowdowns = [each.first_slowdown for each in results]
        inside = sum(36 <= each <= 44 for each in makespans) / len(makespans)
        low = sum(each >= 0.82 for each in slowdowns) / len(slowdowns)
        what = f"preemptive DAG, own makespan 36, {policy}"
        why = f"{inside:.0%} of the worlds are inside; above: what runs is not taken back"
        rows.append(
            _claim(
                f"{what}: makespan", makespans, "36 to 44", 36 <= statistics.fmean(makespans) <= 44, why, "s"
            )
        )
        why = f"{low:.0%} of the worlds are at 0.82 or more"
        rows.append(
            _claim(f"{what}: SD", slowdowns, "0.82 to 1", statistics.fmean(slowdowns) >= 0.82, why, "")
        )
    return rows
