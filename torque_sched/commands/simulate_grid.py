"""``torque-sched simulate-grid``: the jobs of a log at several sites that have no scheduler in common."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from torque_sched.errors import TorqueSchedError

if TYPE_CHECKING:
    from torque_sched.grid.simulate.figures import GridFigures
    from torque_sched.grid.simulate.simulator import GridRun, Layout

_MODES = ("home", "search", "coallocate")
_NUMBER = click.FloatRange(min=0)


@click.command("simulate-grid")
@click.option("--trace", type=click.Path(path_type=Path), required=True, metavar="FILE.swf[.gz]",
              help="A log in the Standard Workload Format; every site gets all of its jobs.")  # fmt: skip
@click.option("--sites", default="338", show_default=True, metavar="NAME|CxP,...",
              help="equal, 338, hetero, or clusters x processors: 1x432,2x216,1x300+2x50.")  # fmt: skip
@click.option("--mode", "modes", type=click.Choice(_MODES), multiple=True,
              help="Jobs stay, go to any one site, or are split over sites. [all three]")  # fmt: skip
@click.option("--formula", default="power", show_default=True, metavar="NAME",
              help="T' of a split: power, linear, harmonic or constant.")  # fmt: skip
@click.option("--overhead", "p", type=_NUMBER, default=0.1, show_default=True, help="p of that formula.")
@click.option("--gain", type=_NUMBER, default=1.0, show_default=True,
              help="lambda: split only if the job ends earlier by lambda * (T' - T).")  # fmt: skip
@click.option("--max-blocks", type=click.IntRange(1, 64), default=4, show_default=True, help="Cap on f.")
@click.option("--delay-s", type=_NUMBER, default=0.0, show_default=True,
              help="How long a message takes; above 0 sites agree by the confirm handshake.")  # fmt: skip
@click.option("--max-jobs", type=click.IntRange(min=1), metavar="N", help="Only the first N jobs that count.")
@click.option("--cap-width", is_flag=True, help="Run jobs wider than the smallest site on all of it.")
@click.option("--check", is_flag=True, help="Check every schedule; exit code 1 if it is not possible.")
@click.option(
    "--json", "json_file", type=click.Path(path_type=Path, dir_okay=False), help="Write all figures."
)
def simulate_grid(**given: Any) -> None:
    """Simulate the grid paper's four ways to run a job, with exact run times.

    AWRT is the response time weighed by processors x run time, per site of submission.
    """
    try:
        faults = _simulated(given)
    except TorqueSchedError as error:
        click.echo(f"torque-sched simulate-grid: {error}", err=True)
        sys.exit(error.exit_code)
    except OSError as error:
        click.echo(f"torque-sched simulate-grid: {error.filename}: {error.strerror}", err=True)
        sys.exit(1)
    for fault in faults:
        click.echo(f"torque-sched simulate-grid: not possible: {fault}", err=True)
    if faults:
        sys.exit(1)


def _simulated(given: dict[str, Any]) -> list[str]:
    from torque_sched.grid.search import Mode, SplitCost
    from torque_sched.grid.simulate.figures import figures_of, problems
    from torque_sched.grid.simulate.simulator import GridSettings, parse_layout
    from torque_sched.simulate.workload import LogSelection, Overrun, read_trace, workload_of

    layout = parse_layout(given["sites"])
    cost = SplitCost(given["formula"], given["p"], given["max_blocks"], given["gain"])
    choice = LogSelection(min(map(sum, layout)), Overrun.EXTEND, given["max_jobs"], given["cap_width"])
    jobs = workload_of(read_trace(given["trace"]), choice).jobs
    faults: list[str] = []
    found: dict[str, tuple[GridFigures, GridRun]] = {}
    for mode in given["modes"] or _MODES:
        settings = GridSettings(layout, Mode(mode), cost)
        with _progress(mode, len(jobs) * len(layout)) as progress:
            run = _run(settings, [jobs] * len(layout), given["delay_s"], progress)
        found[mode] = figures_of(run, layout), run
        if given["check"]:
            faults += problems(run, settings)
    _show(layout, found)
    if given["json_file"]:
        _write(given["json_file"], found)
    return faults


def _run(settings: Any, streams: Any, delay_s: float, progress: Callable[[int], None]) -> GridRun:
    if not delay_s:
        from torque_sched.grid.simulate.simulator import simulate_grid as simulate

        return simulate(settings, streams, progress=progress)
    from torque_sched.grid.simulate.messages import LinkSettings, simulate_messages

    return simulate_messages(settings, streams, LinkSettings(delay_s))


@contextmanager
def _progress(mode: str, n_jobs: int) -> Iterator[Callable[[int], None]]:
    """A bar of decided jobs on a terminal; nothing elsewhere."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task(mode, total=n_jobs)
        yield lambda done: bar.update(task, completed=done)


def _show(layout: Layout, found: dict[str, tuple[GridFigures, GridRun]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table()
    table.add_column("")
    for mode in found:
        table.add_column(mode, justify="right")
    for index, sizes in enumerate(layout):
        name = f"AWRT of site {index + 1} ({_sizes(sizes)}), s"
        table.add_row(name, *(f"{figures.sites[index].awrt_s:,.0f}" for figures, _ in found.values()))
    lines: dict[str, Callable[[GridFigures, GridRun], str]] = {
        "AWRT, mean of sites, s": lambda figures, _: f"{figures.mean_awrt_s:,.0f}",
        "largest over smallest": lambda figures, _: f"{figures.spread:.2f}",
        "jobs split": lambda figures, _: f"{figures.n_split:,}",
        "ways 1 / 2 / 3 / 4": lambda figures, _: " / ".join(f"{n:,}" for n in figures.ways.values()),
        "mean extension of a split": lambda figures, _: f"{figures.mean_extension:.2f}",
        "utilisation": lambda figures, _: f"{figures.utilisation:.3f}",
        "messages per job": lambda _, run: f"{sum(run.messages.values()) / max(1, len(run.jobs)):.2f}",
        "refused confirms": lambda _, run: f"{sum(run.refusals.values()):,}",
        "schedule": lambda _, run: run.schedule_hash(),
    }
    for what, text in lines.items():
        table.add_row(what, *(text(*each) for each in found.values()))
    Console(width=None if sys.stdout.isatty() else 160).print(table)


def _sizes(sizes: tuple[int, ...]) -> str:
    return "+".join(f"{sizes.count(size)}x{size}" for size in dict.fromkeys(sizes))


def _write(file: Path, found: dict[str, tuple[GridFigures, GridRun]]) -> None:
    document = {
        mode: {
            **asdict(figures),
            "mean_awrt_s": figures.mean_awrt_s,
            "spread": figures.spread,
            "n_split": figures.n_split,
            "messages": dict(run.messages),
            "refusals": dict(run.refusals),
            "schedule": run.schedule_hash(),
        }
        for mode, (figures, run) in found.items()
    }
    file.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
