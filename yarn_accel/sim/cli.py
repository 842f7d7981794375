"""``yarn-accel tasks simulate``."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from yarn_accel.core.tasks.outcome import RunOutcome
from yarn_accel.core.tasks.policies import registry
from yarn_accel.core.tasks.policies.base import FillingPolicy
from yarn_accel.core.tasks.service.views import belief_documents
from yarn_accel.core.tasks.use_over_time import NodePlace
from yarn_accel.core.tasks.values import Form
from yarn_accel.errors import ConfigError
from yarn_accel.local_filesystem import write_atomic
from yarn_accel.sim.simulator import simulate as run
from yarn_accel.sim.world import World, load_world


def table(outcome: RunOutcome) -> Table:
    """An outcome, application by application."""
    shown = Table(title=f"policy {escape(outcome.policy)}", show_footer=True)
    of_app = {app: [task for task in outcome.tasks if task.app == app] for app in outcome.apps}
    on_gpu = {app: sum(task.form is Form.GPU for task in tasks) for app, tasks in of_app.items()}
    columns = (
        ("application", "all"),
        ("tasks", str(len(outcome.tasks))),
        ("on GPUs", str(sum(on_gpu.values()))),
        ("start, s", f"{min(each.start_s for each in outcome.apps.values()):.1f}"),
        ("end, s", f"{max(each.end_s for each in outcome.apps.values()):.1f}"),
        ("mean delay", f"{outcome.mean_delay:.3f}"),
    )
    for number, (heading, footer) in enumerate(columns):
        shown.add_column(heading, footer, justify="right" if number else "left")
    for app, each in outcome.apps.items():
        cells = (str(len(of_app[app])), str(on_gpu[app]), f"{each.start_s:.1f}", f"{each.end_s:.1f}")
        shown.add_row(escape(app), *cells, f"{each.delay:.3f}")
    return shown


@click.command()
@click.argument("world_file", metavar="WORLD.yaml", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--policy", metavar="NAME", help="Instead of the file's; it keeps the settings that it knows.")
@click.option("--json", "json_file", metavar="OUT", type=click.Path(path_type=Path), help="Write all here.")
@click.option(
    "--report",
    "folder",
    metavar="FOLDER",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write JSON, a page and pictures here.",
)
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
        outcome = run(world, decider, () if folder is None else _drawn_nodes(world))
    if json_file is not None:
        write_atomic(json_file, json.dumps(outcome.as_json(), indent=1) + "\n")
    if folder is not None:
        for note in _write_report(world, outcome, decider, folder):
            click.echo(f"note: {note}", err=True)
    console = Console()
    console.print(table(outcome))
    console.print(
        f"makespan {outcome.makespan_s:.1f} s, mean delay {outcome.mean_delay:.3f}", highlight=False
    )


def _drawn_nodes(world: World) -> list[str]:
    from yarn_accel.report.runs import MAX_DRAWN_NODES

    return [spec.node for spec, _ in islice(world.resources(), MAX_DRAWN_NODES)]


def _write_report(world: World, outcome: RunOutcome, decider: FillingPolicy, folder: Path) -> list[str]:
    from yarn_accel.report.runs import RunReport, write_report

    places = {
        spec.node: NodePlace(spec.cores, spec.gpus, disk.bandwidth_mb_s * 1e6)
        for spec, disk in world.resources()
    }
    return write_report(RunReport(outcome, places, belief_documents(decider.figures.beliefs())), folder)
