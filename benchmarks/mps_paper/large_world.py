"""``python -m benchmarks.mps_paper.large_world``: the first events of many DAGs; a stopped run is resumed."""

from __future__ import annotations

import time
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn, TimeRemainingColumn

from benchmarks.mps_paper.scale import large_world
from yarn_accel.core.dags.policies.registry import make_dag_policy
from yarn_accel.sim.dag_checkpoints import resumed, run_on

_COLUMNS = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())


@click.command()
@click.option("--dags", "n_dags", default=1_000, show_default=True, help="DAGs of 100 tasks.")
@click.option("--classes", default=3, show_default=True, type=click.IntRange(1, 3), help="Priority classes.")
@click.option("--events", "n_events", default=10_000, show_default=True, help="Stop after so many.")
@click.option(
    "--checkpoint", "file", metavar="FILE", type=click.Path(path_type=Path), default="large_world.checkpoint",
    show_default=True, help="Note here every minute how far it is, and go on from there.",
)  # fmt: skip
def main(n_dags: int, classes: int, n_events: int, file: Path) -> None:
    """Simulate `mps` on 100 machines; says what this start of it took."""
    started_s = time.process_time()
    world = large_world(n_dags, classes)
    simulation = resumed(world, make_dag_policy("mps", world.bandwidth_bytes_per_s), file)
    n_before, resumed_s = simulation.n_decisions, time.process_time()
    most = min(n_events, simulation.n_tasks)
    with Progress(*_COLUMNS, console=Console(stderr=True)) as progress:
        line = progress.add_task("", total=most, completed=n_before)
        run_on(
            simulation,
            file,
            lambda _: progress.update(line, completed=simulation.n_decisions),
            most_decisions=n_events,
        )
    took_s, n_new = time.process_time() - resumed_s, simulation.n_decisions - n_before
    click.echo(
        f"events {n_before} to {simulation.n_decisions}, {simulation.n_ended} of {simulation.n_tasks} tasks "
        f"ended; CPU time: {resumed_s - started_s:.1f} s to make or resume it, {took_s:.1f} s to go on"
        + (f", {took_s / n_new * 1e3:.1f} ms per event" if n_new else "")
    )


if __name__ == "__main__":
    main()
