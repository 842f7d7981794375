"""The HDAS paper's experiment, simulated: mixes A to Y under both parameter sets, and its figures 1 to 10.

The base is `hadoop`: CPU tasks alone, six a node, first come, first served. Sections: `mixes`, each statement
of the paper as a row "paper, ours, holds or not, why"; `pairs`, equation (3) against rates that others
measured; `readings`, which reading of the paper matters; `beyond`, other clusters; `scale`, microseconds per
decision.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.progress import Progress

from benchmarks.papers.hdas_paper.beyond import (
    beyond_jobs,
    beyond_rows,
    reading_jobs,
    reading_rows,
    scale_rows,
)
from benchmarks.papers.hdas_paper.claims import Mixes, claim_rows, colocation_rows, goal_rows
from benchmarks.papers.hdas_paper.paper import MIXES, POLICIES, SETS, Job, Run, mix_world, run_all
from benchmarks.papers.hdas_paper.pictures import draw_figures
from benchmarks.result import Report, Row, observed

__all__ = ["SECTIONS", "draw", "run", "series"]

SECTIONS = ("mixes", "pairs", "readings", "beyond", "scale")
_WATCHED = "node-1"
_GOALS: Mapping[str, Mapping[str, float]] = {"S2": {"hdas": 19.5, "hdas+": 22.5}}


def run(quick: bool, say: Callable[[str], None], report: Report, only: Sequence[str] = SECTIONS) -> None:
    """Measure the sections; `quick` takes S2 alone, one mix beyond, and a tenth of the large cluster."""
    report.setting["load_average_before"] = round(os.getloadavg()[0], 1)
    if "mixes" in only:
        _mixes(("S2",) if quick else tuple(SETS), report)
    if "pairs" in only:
        report.add(colocation_rows())
    if "readings" in only:
        report.add(reading_rows(_runs(reading_jobs("KPS") if quick else reading_jobs(), "readings")))
    if "beyond" in only:
        report.add(beyond_rows(_runs(beyond_jobs(("P",)) if quick else beyond_jobs(), "other clusters")))
    if "scale" in only:
        n_nodes = 100 if quick else 1_000
        say(f"scale: 100 applications on {n_nodes} nodes")
        report.add(scale_rows(100, n_nodes, 30 if quick else 200))


def _runs(jobs: Iterable[Job], what: str) -> dict[tuple[str, ...], Run]:
    listed = list(jobs)
    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task(what, total=sum(_n_tasks(job) for job in listed))
        runs = {}
        for job, done in run_all(listed):
            runs[job.key] = done
            progress.advance(task, done.n_tasks)
    return runs


def _n_tasks(job: Job) -> int:
    return sum(app["tasks"] for app in job.world["apps"])


def _mixes(names: Sequence[str], report: Report) -> None:
    jobs = [
        Job(
            (name, letter, policy),
            mix_world(mix, SETS[name], policy),
            _WATCHED if letter == "P" else "",
        )
        for name in names
        for letter, mix in MIXES.items()
        for policy in POLICIES
    ]
    started_s = time.monotonic()
    runs = _runs(jobs, "mixes A to Y")
    took_s = time.monotonic() - started_s
    report.add(_time_rows(runs, took_s))
    for name in names:
        mixes = Mixes({(letter, policy): each for (of, letter, policy), each in runs.items() if of == name})
        report.add(goal_rows(name, mixes, _GOALS.get(name, {})))
        report.add(claim_rows(name, mixes))
        report.series[name] = series(mixes)
    report.save()


def _time_rows(runs: Mapping[tuple[str, ...], Run], took_s: float) -> list[Row]:
    n_tasks = sum(each.n_tasks for each in runs.values())
    cpu_s = sum(each.cpu_s for each in runs.values())
    n_cores = len(os.sched_getaffinity(0))
    note = f"{len(runs)} runs, {n_tasks} tasks; {cpu_s / n_tasks * 1e6:.0f} us of CPU per task"
    return [
        observed(
            "time of all mixes and policies", took_s, "s", goal="<= 120", note=f"{n_cores} cores; {note}"
        ),
        observed("CPU time of all mixes and policies", cpu_s, "s", goal="<= 240", note=note),
    ]


def series(mixes: Mixes) -> dict[str, Any]:
    """What the figures are drawn from, small enough for a repository."""
    table = {
        letter: {
            policy: {
                "makespan_s": round(mixes.runs[letter, policy].makespan_s, 1),
                "mean_delay": round(mixes.delay(letter, policy), 4),
            }
            for policy in POLICIES
        }
        for letter in MIXES
    }
    of_p = {
        policy: {
            "forms": {
                app: {form: [n, round(delay, 4)] for form, (n, delay) in forms.items()}
                for app, forms in mixes.runs["P", policy].forms.items()
            },
            "use": _as_text(mixes.runs["P", policy].use),
        }
        for policy in POLICIES[1:]
    }
    return {"mixes": table, "P": of_p}


def _as_text(use: Sequence[tuple[float, float, float]]) -> dict[str, str]:
    """Three columns as three lines."""
    columns = zip(*use, strict=True)
    return {
        name: " ".join(f"{value:g}" for value in column)
        for name, column in zip(("at_s", "gpus_computing", "io_mb_s"), columns, strict=True)
    }


def draw(report: Report, stem: str) -> list[str]:
    """Draw the paper's figures from the report's series; returns the files."""
    files = []
    for name in SETS:
        if name in report.series:
            files += draw_figures(report.series[name], name, f"{stem}-{name}")
    return files
