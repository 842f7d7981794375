"""How long a decision of `mps` takes with many DAGs.

``python -m benchmarks.papers.mps_paper.scale`` simulates the first events of a large world; a run that was
stopped goes on where it was.
"""

from __future__ import annotations

import time
from pathlib import Path
from random import Random

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn, TimeRemainingColumn

from benchmarks.result import Row, observed
from yarn_accel.core.dags.model import DagId, Machine, PriorityClass
from yarn_accel.core.dags.policies.registry import make_dag_policy
from yarn_accel.core.tasks.values import ResourceId
from yarn_accel.dags.generator import DagShape, random_dag
from yarn_accel.sim.dag_checkpoints import resumed, run_on
from yarn_accel.sim.dag_simulator import DagSimulation
from yarn_accel.sim.dag_world import DagArrival, DagWorld, MachineStay

_N_TASKS = 100
_N_MACHINES = 100


def large_world(n_dags: int, classes: int, seed: int = 1) -> DagWorld:
    """DAGs of 100 tasks that all arrive at 0 s, on 100 machines of different speeds."""
    rng = Random(seed)
    stays = tuple(MachineStay(Machine(ResourceId(f"m{n}"), rng.uniform(0.5, 2))) for n in range(_N_MACHINES))
    arrivals = []
    for n in range(n_dags):
        shape = DagShape(
            _N_TASKS,
            fat=rng.uniform(0.1, 0.8),
            density=rng.uniform(0.2, 0.8),
            regularity=rng.uniform(0.2, 0.8),
            ratio=rng.uniform(0, 1),
        )
        dag = random_dag(f"d{n}", shape, rng, 10.0, 1.0)
        arrivals.append(DagArrival(DagId(dag.name), dag, 0.0, PriorityClass(2 - rng.randrange(classes))))
    return DagWorld(1.0, stays, tuple(arrivals))


def scale_rows(quick: bool) -> list[Row]:
    """CPU time per decision; of the large world's first events, and of 100 DAGs to their end."""
    rows = []
    for what, classes in (("one class", 1), ("three classes", 3)):
        cpu_s, _ = _decisions(large_world(200 if quick else 1_000, classes), 20 if quick else 300)
        ordered = sorted(each * 1e3 for each in cpu_s)
        note = f"{len(ordered)} decisions of the beginning, when most tasks wait; CPU time of one core"
        for share, goal in ((0.5, "<= 50"), (0.99, "<= 250")):
            value = ordered[min(len(ordered) - 1, int(share * len(ordered)))]
            rows.append(
                observed(
                    f"1,000 DAGs, {what}: decision, quantile {share:g}", value, "ms", goal=goal, note=note
                )
            )
    n_dags = 10 if quick else 100
    started_s = time.process_time()
    _decisions(large_world(n_dags, 3), 10**9)
    took_s = time.process_time() - started_s
    rows.append(
        observed(f"{n_dags} DAGs of 100 tasks, end to end", took_s, "s", goal="<= 120", note="CPU time")
    )
    return rows


def _decisions(world: DagWorld, most: int) -> tuple[list[float], DagSimulation]:
    policy = make_dag_policy("mps", world.bandwidth_bytes_per_s)
    simulation = DagSimulation(world, policy)
    simulation.step()
    cpu_s = []
    while simulation.n_decisions < most:
        n_before, started_s = simulation.n_decisions, time.process_time()
        if not simulation.step():
            break
        if simulation.n_decisions > n_before:
            cpu_s.append(time.process_time() - started_s)
    return cpu_s, simulation


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
