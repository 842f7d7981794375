"""``torque-sched status``: is the scheduler well, and how is the cluster?"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from torque_sched.commands._answering import HUNG_S, answered
from torque_sched.commands._console import notes, options_of, out
from torque_sched.commands.serve import with_options
from torque_sched.errors import ConfigError, TorqueSchedError


@click.command()
@with_options
@click.option("--shadow", is_flag=True, help="Of the shadow, not of the scheduler itself.")
@click.option("--json", "as_json", is_flag=True, help="Print figures as JSON.")
def status(home: Path | None, config_file: Path | None, shadow: bool, as_json: bool) -> None:
    """Show the scheduler's last cycle, the cluster, and why jobs wait. Exit code 1: the scheduler is gone."""
    options = options_of(home, config_file, shadow=shadow)
    try:
        is_its = config_file is None and not shadow
        if is_its and answered("status", options.home, {"as_json": as_json}, HUNG_S):
            return
        from torque_sched.report.picture import read_state, take_picture

        try:
            picture = take_picture(options, notes("status"))
        except TorqueSchedError as error:
            state = read_state(options)
            click.echo(f"torque-sched status: the cluster cannot be seen: {error}", err=True)
            click.echo(_daemon(state))
            if isinstance(error, ConfigError) and state.is_alive:
                click.echo("it goes on with the settings that it read before; see torque-sched check-config")
            sys.exit(error.exit_code)
        tell(picture, {"as_json": as_json})
        if not picture.state.is_alive:
            sys.exit(1)
    except TorqueSchedError as error:
        click.echo(f"torque-sched status: {error}", err=True)
        sys.exit(error.exit_code)


def tell(picture: Any, asked: Mapping[str, Any]) -> None:
    """Print it."""
    if asked["as_json"]:
        click.echo(json.dumps(_document(picture), indent=1))
    else:
        _show(picture)


def _daemon(state: Any) -> str:
    from torque_sched.report.tables import daemon_line

    return daemon_line(state, time.time())


def _show(picture: Any) -> None:
    from torque_sched.report.outlook import error_words
    from torque_sched.report.promised import promises_line, reservation_line
    from torque_sched.report.tables import daemon_line, jobs_line, nodes_line, nodes_table, reasons_table

    console = out()
    console.print(daemon_line(picture.state, picture.snapshot.now_s), markup=False)
    if transport := picture.state.values.get("transport"):
        console.print(f"transport: {transport}", markup=False)
    for trouble in picture.troubles:
        console.print(f"trouble: {trouble}", markup=False, style="red")
    console.print(nodes_line(picture.snapshot), markup=False)
    console.print(jobs_line(picture.snapshot), markup=False)
    for figure, error in picture.context.predictions.errors.items():
        drift = "; it grows, jobs have changed" if error.has_drifted else ""
        console.print(
            f"predictions of {figure.value}: mean error {error.mean:.3f} over {error.n} jobs{drift}"
        )
    for kept in picture.context.reservations:
        console.print(reservation_line(kept), markup=False)
    if picture.history.expectations.error is not None:
        console.print(f"expected starts: {error_words(picture.history.expectations.error)}", markup=False)
    if picture.history.promises.rows:
        console.print(promises_line(picture), markup=False)
    reasons = reasons_table(picture.state)
    if reasons.row_count:
        console.print(reasons)
    console.print(nodes_table(picture))


def _document(picture: Any) -> dict[str, Any]:
    from torque_sched.learn.samples import unused_gpus

    snapshot, state = picture.snapshot, picture.state
    return {
        "daemon": {
            "alive": state.is_alive,
            **{key: state.values.get(key) for key in ("pid", "mode", "transport", "now_s", "last_cycle")},
        },
        "trouble": list(picture.troubles),
        "nodes": {"all": len(snapshot.nodes), "up": sum(node.is_up for node in snapshot.nodes)},
        "slots": {
            "all": sum(node.slots for node in snapshot.nodes if node.is_up),
            "used": sum(node.slots_used for node in snapshot.nodes if node.is_up),
        },
        "gpus": {
            "all": sum(node.gpus for node in snapshot.nodes if node.is_up),
            "held": sum(len(job.allocated_gpus) for job in snapshot.running),
            "held_not_used": [list(each) for each in unused_gpus(snapshot)],
        },
        "jobs": {"running": len(snapshot.running), "queued": len(snapshot.queued)},
        "guaranteed_starts": len(picture.context.promises),
        "reservations": [each.name for each in picture.context.reservations],
        "prediction_errors": {
            figure.value: {"n": error.n, "mean": error.mean, "recent": error.recent}
            for figure, error in picture.context.predictions.errors.items()
        },
    }
