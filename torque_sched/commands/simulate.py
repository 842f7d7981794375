"""``torque-sched simulate``: what a policy makes of the log of a real machine."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from torque_sched.errors import ConfigError, TorqueSchedError

if TYPE_CHECKING:
    from torque_sched.sim.results import Experiment

_FILE = click.Path(path_type=Path, dir_okay=False)
_POSITIVE = click.IntRange(min=1)


@click.command()
@click.option("--trace", type=click.Path(path_type=Path), required=True, metavar="FILE.swf[.gz]",
              help="A log in the Standard Workload Format.")  # fmt: skip
@click.option("--procs", type=_POSITIVE, metavar="N", help="Processors of the machine. [the log's MaxProcs]")
@click.option("--policy", metavar="NAME", help="fcfs, easy, conservative or selective. [easy]")
@click.option("--compare", metavar="A,B,...", default="", help="Several policies, one column each.")
@click.option("--estimates", default="user", show_default=True, metavar="NAME",
              help="Run times to plan with: user, exact, learned or upper (9 of 10 keep it).")  # fmt: skip
@click.option("--overrun", type=click.Choice(["kill", "extend"]), default="kill", show_default=True,
              help="A job past its limit ends there, or runs on.")  # fmt: skip
@click.option("--order", default="fcfs", show_default=True, metavar="NAME",
              help="Who is considered first: fcfs, priority, fair_share or sjf.")  # fmt: skip
@click.option("--priority", default="", metavar="QUEUE=N,...", help="Of the log's queues, for that order.")
@click.option("--half-life-h", type=click.FloatRange(min=0, min_open=True), default=24.0, show_default=True,
              help="After which usage counts half, for fair_share.")  # fmt: skip
@click.option("--compress/--no-compress", default=True, show_default=True,
              help="Conservative: move reservations forward when a job ends early.")  # fmt: skip
@click.option("--threshold", type=click.FloatRange(min=1), default=2.0, show_default=True,
              help="Selective: reserve a start from this expansion factor on.")  # fmt: skip
@click.option("--depth", type=_POSITIVE, metavar="K", help="Reserve a start for the first K only.")
@click.option("--max-tested", type=_POSITIVE, metavar="N",
              help="Jobs without a reservation that one pass tests. [all]")  # fmt: skip
@click.option(
    "--window-h", type=click.FloatRange(min=0, min_open=True), help="Reserve nothing further ahead."
)
@click.option("--resolution-s", type=click.FloatRange(min=0), default=0.0, help="Round planned ends up.")
@click.option("--max-jobs", type=_POSITIVE, metavar="N", help="Only the first N jobs that count.")
@click.option("--cap-width", is_flag=True, help="Run jobs wider than the machine on all of it.")
@click.option("--allocated", is_flag=True, help="Width is what jobs got, not what they asked for.")
@click.option("--check", is_flag=True, help="Check the invariants; exit code 1 if one is broken.")
@click.option("--json", "json_file", type=_FILE, help="Write all figures.")
@click.option("--starts", type=_FILE, metavar="FILE.csv", help="Write job,start_s.")
@click.option("--html", type=_FILE, help="Write a report with pictures.")
def simulate(**given: Any) -> None:
    """Simulate the log of a machine under a policy, and show its figures.

    Deterministic: the same log and options give the same number of events and the same schedule hash.
    """
    try:
        experiment = _simulated(given)
        _show(experiment)
        _write(experiment, given)
    except TorqueSchedError as error:
        click.echo(f"torque-sched simulate: {error}", err=True)
        sys.exit(error.exit_code)
    except OSError as error:
        click.echo(f"torque-sched simulate: {error.filename}: {error.strerror}", err=True)
        sys.exit(1)
    broken = [text for each in experiment.results for text in each.problems or ()]
    for text in broken:
        click.echo(f"torque-sched simulate: invariant broken: {text}", err=True)
    if broken:
        sys.exit(1)


def _simulated(given: dict[str, Any]) -> Experiment:
    from torque_sched.policies.backfilling.settings import Bounds
    from torque_sched.sim.experiment import Plan, run
    from torque_sched.sim.workload import Choice, Overrun, read_trace

    plan = Plan(
        policies=_names(given["policy"], given["compare"]),
        estimates=given["estimates"],
        order=given["order"],
        priorities=_priorities(given["priority"]),
        half_life_s=given["half_life_h"] * 3600.0,
        compress=given["compress"],
        threshold=given["threshold"],
        depth=given["depth"],
        bounds=Bounds(
            window_s=(given["window_h"] or math.inf) * 3600.0,
            resolution_s=given["resolution_s"],
            max_jobs=given["max_tested"] or math.inf,
        ),
        choice=Choice(
            given["procs"], Overrun(given["overrun"]), given["max_jobs"], given["cap_width"],
            given["allocated"],
        ),
        check=given["check"],
    )  # fmt: skip
    path: Path = given["trace"]
    with _progress() as progress:
        return run(path.name, read_trace(path), plan, progress)


def _names(policy: str | None, compare: str) -> tuple[str, ...]:
    """The policy asked for, then those to compare with, each once."""
    several = [name.strip() for name in compare.split(",") if name.strip()]
    first = [policy] if policy else []
    return tuple(dict.fromkeys(first + several)) or ("easy",)


def _priorities(text: str) -> dict[int, float]:
    """``3=10,1=5`` as queue -> priority."""
    found: dict[int, float] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        queue, _, priority = part.partition("=")
        try:
            found[int(queue)] = float(priority)
        except ValueError:
            raise ConfigError(f"--priority {part!r}", cure="write QUEUE=NUMBER, such as 3=10,1=5") from None
    return found


@contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None]]:
    """A bar on a terminal for each policy: (policy, jobs that ended, jobs)."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    bars: dict[str, TaskID] = {}
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:

        def say(policy: str, n_done: int, n_jobs: int) -> None:
            if policy not in bars:
                bars[policy] = progress.add_task(policy, total=n_jobs)
            progress.update(bars[policy], completed=n_done)

        yield say


def _show(experiment: Experiment) -> None:
    from rich.console import Console

    from torque_sched.sim.results import class_rows, rows, summary

    console = Console(width=None if sys.stdout.isatty() else 160)
    click.echo(summary(experiment.workload))
    for lines in (rows(experiment.results), class_rows(experiment.results)):
        console.print(_table(lines))


def _table(lines: Sequence[Sequence[str]]) -> Any:
    from rich.table import Table

    table = Table()
    for at, head in enumerate(lines[0]):
        table.add_column(head, justify="left" if at == 0 else "right")
    for line in lines[1:]:
        table.add_row(*line)
    return table


def _write(experiment: Experiment, given: dict[str, Any]) -> None:
    from torque_sched.sim.results import document, starts_text

    json_file, starts, html = given["json_file"], given["starts"], given["html"]
    if json_file is not None:
        json_file.write_text(json.dumps(document(experiment), indent=1) + "\n", encoding="utf-8")
    if starts is not None:
        for at, result in enumerate(experiment.results):
            # The policy asked for has the name as given, those it is compared with have their own.
            path = starts if at == 0 else starts.with_stem(f"{starts.stem}-{result.schedule.name}")
            path.write_text(starts_text(result.schedule), encoding="utf-8")
    if html is not None:
        from torque_sched.sim.page import page

        html.write_text(page(experiment), encoding="utf-8")
