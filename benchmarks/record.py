"""``python -m benchmarks record-stale``: record what is stale in one quiet run that goes on where it stopped.

First comes what judges a claim of the report or a goal, then the rest, each shortest first, as far as the
minutes reach. A result is put into benchmarks/results when it is complete; what was killed is begun again, or
resumed where its benchmark can, when the same line is given again.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from benchmarks import RESULTS
from benchmarks.papers.report.claims import PAPERS
from benchmarks.papers.report.running import (
    Experiment,
    Result,
    Runner,
    State,
    check_logs,
    left_of,
    locked,
    names,
    plan_of,
    recorded_results,
)
from benchmarks.registry import RECORDINGS
from yarn_accel.extras import errors_as_lines

_WAIT_S = 200.0
_NEXT = (
    "then: python -m benchmarks report --no-run, copy out/report/report.html to docs, and "
    "python -m benchmarks.tables --write"
)


@dataclass(frozen=True, slots=True)
class RecordingPlan:
    """What is recorded in this run.

    Attributes:
        chosen: in this order.
        later: what the minutes do not reach; the same line takes it up next time.
        lacks: what cannot be recorded here, and why not.
    """

    chosen: tuple[Experiment, ...]
    later: tuple[Experiment, ...]
    lacks: Mapping[str, str]


def recording_plan(recorded: Mapping[str, Result], logs: Sequence[Path], minutes: float) -> RecordingPlan:
    """Choose from all recordings that are stale or were never made.

    Args:
        recorded: the files of ``benchmarks/results``; what one took last time is its estimate.
        logs: of the Parallel Workloads Archive.
        minutes: for all together.
    """
    found = plan_of(list(RECORDINGS), recorded, logs, is_quick=False)
    of_report = set(names(PAPERS))

    def order(each: Experiment) -> tuple[int, float]:
        rank = each.recording.rank or (1 if each.stem in of_report else 2)
        return rank, each.estimate_s

    todo = sorted((_as_last_time(each, recorded) for each in found.todo), key=order)
    chosen: list[Experiment] = []
    later = []
    left_s = 60 * minutes
    for each in todo:
        if each.estimate_s <= left_s:
            chosen.append(each)
            left_s -= each.estimate_s
        else:
            later.append(each)
    return RecordingPlan(tuple(chosen), tuple(later), found.lacks)


def _as_last_time(each: Experiment, recorded: Mapping[str, Result]) -> Experiment:
    took_s = recorded[each.stem].document.get("wall_s") if each.stem in recorded else None
    return replace(each, estimate_s=float(took_s)) if took_s else each


def _shown(plan: RecordingPlan) -> Table:
    table = Table("", "result", "minutes", "from", "command")
    at_s = 0.0
    for number, each in enumerate(plan.chosen, 1):
        minutes = f"{each.estimate_s / 60:.1f}"
        table.add_row(str(number), each.stem, minutes, f"{at_s / 60:.0f}", each.recording.command(each.stem))
        at_s += each.estimate_s
    for each in plan.later:
        table.add_row("", each.stem, f"{each.estimate_s / 60:.1f}", "next run", "")
    for stem, why in plan.lacks.items():
        table.add_row("", stem, "", "not here", why)
    table.caption = f"{len(plan.chosen)} results, {at_s / 60:.0f} minutes"
    return table


@click.command()
@click.option("--minutes", default=170.0, show_default=True, help="None is begun that would not end in them.")
@click.option(
    "--log",
    "logs",
    multiple=True,
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="A log of the Parallel Workloads Archive, under its name there; may be repeated.",
)
@click.option("--dry-run", is_flag=True, help="Only show what would be recorded, in which order.")
@click.option(
    "--out", default="out/record", type=click.Path(path_type=Path, file_okay=False), show_default=True
)
def record_stale(minutes: float, logs: tuple[Path, ...], dry_run: bool, out: Path) -> None:
    """Record the results that are older than the code they measure, on a machine that does nothing else.

    Stopped (Ctrl-C) or killed, it goes on where it was when the same line is given again.
    """
    console = Console(stderr=True, width=None if sys.stderr.isatty() else 160)
    try:
        with errors_as_lines("benchmarks"):
            check_logs(logs)
            plan = recording_plan(recorded_results(RESULTS, RECORDINGS), logs, minutes)
            console.print(_shown(plan))
            if not dry_run:
                _record(plan, out.resolve(), minutes, console)
    except KeyboardInterrupt:
        click.echo("stopped: the same command goes on there", err=True)
        sys.exit(128 + signal.SIGINT)


def _record(plan: RecordingPlan, out: Path, minutes: float, console: Console) -> None:
    load = os.getloadavg()[0]
    if load > 1:
        console.print(f"the load average is {load:.1f}: figures of a busy machine are none to quote")
    until_s = time.monotonic() + 60 * minutes

    def command(each: Experiment, target: Path) -> list[str]:
        return [sys.executable, "-m", "benchmarks", *each.words(target, is_quick=False, mode="")]

    with locked(out / "lock", _WAIT_S) as lock:
        state = State.read(out / "state.json")
        runner = Runner(out, state, lock, command, 0.0)
        for each in plan.chosen:
            runner.limit_s = until_s - time.monotonic()
            if left_of([each], runner.result, is_quick=False, mode=""):
                runner.run([each], console)
            if not left_of([each], runner.result, is_quick=False, mode=""):
                shutil.copyfile(runner.result(each.stem), RESULTS / f"{each.stem}.json")
    failed = {each.stem: state.outcomes[each.stem].why for each in plan.chosen if each.stem in state.outcomes}
    for stem, why in failed.items():
        if why:
            console.print(f"{stem}: {why}", markup=False, highlight=False)
    console.print(_NEXT, markup=False, highlight=False)
