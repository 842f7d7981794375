"""``yarn-accel tasks simulate`` and ``yarn-accel dag simulate``."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from itertools import count, islice
from pathlib import Path

import click
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

from yarn_accel.core.dags.model import Dag, DagId
from yarn_accel.core.dags.policies.registry import make_dag_policy
from yarn_accel.core.tasks.learning import FigureStore
from yarn_accel.core.tasks.outcome import RunOutcome
from yarn_accel.core.tasks.policies import registry
from yarn_accel.core.tasks.service.views import belief_documents
from yarn_accel.core.tasks.use_over_time import NodePlace
from yarn_accel.dags.load import load_dag, load_machines, machine_of, parse_argument
from yarn_accel.errors import ConfigError
from yarn_accel.local_filesystem import write_atomic
from yarn_accel.report.runs import MAX_DRAWN_NODES, RunReport, summary, summary_line, write_report
from yarn_accel.sim.dag_checkpoints import run_with_checkpoints
from yarn_accel.sim.dag_world import DagArrival, DagWorld, MachineStay
from yarn_accel.sim.simulator import simulate as run
from yarn_accel.sim.world import World, load_world

_json_option = click.option(
    "--json", "json_file", metavar="OUT", type=click.Path(path_type=Path), help="Write all here."
)
_report_option = click.option(
    "--report",
    "folder",
    metavar="FOLDER",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write JSON, a page and pictures here.",
)


def summary_table(outcome: RunOutcome) -> Table:
    """An outcome: a row for each application or DAG, and the whole below."""
    columns, (*rows, whole) = summary(outcome)
    shown = Table(title=f"policy {escape(outcome.policy)}", show_footer=True)
    shown.add_column("DAG" if outcome.is_of_dags else "application", "all")
    for each in columns:
        heading = f"{each.heading}, s" if each.unit == "s" else each.heading
        footer = f"{each.value(whole):.{each.digits}f}" if each.is_summed else ""
        shown.add_column(heading, footer, justify="right")
    for row in rows:
        shown.add_row(escape(row.name), *(f"{each.value(row):.{each.digits}f}" for each in columns))
    return shown


def _show(report: RunReport, json_file: Path | None, folder: Path | None) -> None:
    """Write what is asked for, and print the summary."""
    outcome = report.outcome
    if json_file is not None:
        write_atomic(json_file, json.dumps(outcome.as_json(), indent=1) + "\n")
    if folder is not None:
        for note in write_report(report, folder):
            click.echo(f"note: {note}", err=True)
    console = Console()
    console.print(summary_table(outcome))
    console.print(summary_line(outcome), highlight=False, soft_wrap=True)


@click.command()
@click.argument("world_file", metavar="WORLD.yaml", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--policy", metavar="NAME", help="Instead of the file's; it keeps the settings that it knows.")
@_json_option
@_report_option
def simulate(world_file: Path, policy: str | None, json_file: Path | None, folder: Path | None) -> None:
    """Run the world of a file in virtual time."""
    world = load_world(world_file)
    place = str(world_file)
    if policy is not None:
        known = registry.SETTINGS.get(policy, ())
        kept = {key: value for key, value in world.settings.items() if key in known}
        world, place = world.model_copy(update={"policy": policy, "settings": kept}), "--policy"
    try:
        decider = registry.make(world.policy, world.settings)
    except ConfigError as error:
        raise ConfigError(f"{place}: {error.message.removeprefix('policy: ')}", cure=error.cure) from None
    with Console(stderr=True).status("simulating"):
        figures = FigureStore()
        outcome = run(world, decider, () if folder is None else _drawn_nodes(world), figures)
    places = {
        spec.node: NodePlace(spec.cores, spec.gpus, disk.bandwidth_mb_s * 1e6)
        for spec, disk in world.resources()
    }
    report = RunReport(outcome, places, belief_documents(figures.beliefs()))
    _show(report, json_file, folder)


def _drawn_nodes(world: World) -> list[str]:
    return [spec.node for spec, _ in islice(world.resources(), MAX_DRAWN_NODES)]


# DAGs.


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
        moves_when_placed = cluster.transfers == "when_placed"
        return DagWorld(cluster.bandwidth_bytes_per_s, stays, tuple(arrivals), moves_when_placed)
    except ConfigError as error:
        raise ConfigError(f"{machines_file}: {error.message}", cure=error.cure) from None


@click.command()
@click.argument("dags", metavar="FILE[@ARRIVAL_S[:CLASS]]...", nargs=-1, required=True)
@click.option(
    "--machines", "machines_file", metavar="M.yaml", required=True, type=click.Path(path_type=Path),
    help="The machines and the bandwidth between them.",
)  # fmt: skip
@click.option("--policy", metavar="NAME", default="mps", show_default=True, help="Who decides.")
@_json_option
@_report_option
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
    _show(RunReport(outcome), json_file, folder)
