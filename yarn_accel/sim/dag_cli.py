"""``yarn-accel dag simulate``."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from itertools import count
from pathlib import Path

import click
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

from yarn_accel.core.dags.model import Dag, DagId
from yarn_accel.core.dags.outcome import DagRunOutcome
from yarn_accel.core.dags.policies.registry import make_dag_policy
from yarn_accel.dags.load import load_dag, load_machines, machine_of, parse_argument
from yarn_accel.errors import ConfigError
from yarn_accel.local_filesystem import write_atomic
from yarn_accel.report.runs import write_dag_report
from yarn_accel.sim.dag_checkpoints import run_with_checkpoints
from yarn_accel.sim.dag_world import DagArrival, DagWorld, MachineStay


def world_of_files(arguments: Sequence[str], machines_file: Path) -> DagWorld:
    """The world that a command line describes; DAGs of one name get numbers.

    Raises:
        ConfigError: names the file and what is wrong there.
    """
    cluster = load_machines(machines_file)
    arrivals: list[DagArrival] = []
    known: dict[Path, Dag] = {}
    taken: set[str] = set()
    for text in arguments:
        path, arrival_s, priority_class = parse_argument(text)
        if path not in known:
            known[path] = load_dag(path)
        name = known[path].name.replace("/", "_")
        unique = next(each for n in count(1) if (each := name if n == 1 else f"{name}-{n}") not in taken)
        taken.add(unique)
        arrivals.append(DagArrival(DagId(unique), known[path], arrival_s, priority_class))
    stays = tuple(
        MachineStay(machine_of(each), each.joins_s, math.inf if each.leaves_s is None else each.leaves_s)
        for each in cluster.machines
    )
    try:
        return DagWorld(cluster.bandwidth_bytes_per_s, stays, tuple(arrivals))
    except ConfigError as error:
        raise ConfigError(f"{machines_file}: {error.message}", cure=error.cure) from None


def dag_table(outcome: DagRunOutcome) -> Table:
    """An outcome, DAG by DAG."""
    shown = Table(title=f"policy {escape(outcome.policy)}", show_footer=True)
    columns = (
        ("DAG", "all"),
        ("arrival, s", ""),
        ("end, s", f"{max(each.end_s for each in outcome.dags.values()):.1f}"),
        ("makespan, s", f"{outcome.makespan_s:.1f}"),
        ("alone, s", ""),
        ("SD", ""),
    )
    for number, (heading, footer) in enumerate(columns):
        shown.add_column(heading, footer, justify="right" if number else "left")
    for name, each in outcome.dags.items():
        times = (each.arrival_s, each.end_s, each.makespan_s, each.own_makespan_s)
        shown.add_row(escape(name), *(f"{time_s:.1f}" for time_s in times), f"{each.slowdown:.3f}")
    return shown


@click.command()
@click.argument("dags", metavar="FILE[@ARRIVAL_S[:CLASS]]...", nargs=-1, required=True)
@click.option(
    "--machines", "machines_file", metavar="M.yaml", required=True, type=click.Path(path_type=Path),
    help="The machines and the bandwidth between them.",
)  # fmt: skip
@click.option("--policy", metavar="NAME", default="mps", show_default=True, help="Who decides.")
@click.option("--json", "json_file", metavar="OUT", type=click.Path(path_type=Path), help="Write all here.")
@click.option(
    "--report", "folder", metavar="FOLDER", type=click.Path(path_type=Path, file_okay=False),
    help="Write JSON, a page and pictures here.",
)  # fmt: skip
@click.option(
    "--checkpoint", "checkpoint_file", metavar="FILE", type=click.Path(path_type=Path),
    help="Note here every minute how far it is, and go on from there.",
)  # fmt: skip
def dag_simulate(
    dags: tuple[str, ...],
    machines_file: Path,
    policy: str,
    json_file: Path | None,
    folder: Path | None,
    checkpoint_file: Path | None,
) -> None:
    """Run DAGs on machines in virtual time.

    CLASS is preemptive, high or basic. A FILE is DAG.yaml, WfFormat (.json) or DAX (.xml, .dax).
    """
    world = world_of_files(dags, machines_file)
    try:
        decider = make_dag_policy(policy, world.bandwidth_bytes_per_s)
    except ConfigError as error:
        raise ConfigError(f"--policy: {error.message.removeprefix('policy: ')}", cure=error.cure) from None
    with Progress(console=Console(stderr=True), transient=True) as progress:
        line = progress.add_task("simulating", total=sum(len(each.dag.tasks) for each in world.dags))
        outcome = run_with_checkpoints(
            world, decider, checkpoint_file, lambda n_ended: progress.update(line, completed=n_ended)
        )
    if json_file is not None:
        write_atomic(json_file, json.dumps(outcome.as_json(), indent=1) + "\n")
    if folder is not None:
        for note in write_dag_report(outcome, folder):
            click.echo(f"note: {note}", err=True)
    console = Console()
    console.print(dag_table(outcome))
    console.print(
        f"makespan {outcome.makespan_s:.1f} s, unfairness {outcome.unfairness:.3f}, "
        f"utilisation {outcome.utilisation:.3f}, {outcome.moved} moved",
        highlight=False,
    )
