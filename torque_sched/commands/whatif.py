"""``torque-sched whatif``: where a job would run if it were submitted now, or why it would wait."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from torque_sched.commands._answering import respond
from torque_sched.commands.explain import show_explanation
from torque_sched.commands.serve import with_options
from torque_sched.errors import ConfigError


@click.command()
@with_options
@click.option(
    "--submit",
    "-l",
    "submit",
    required=True,
    multiple=True,
    metavar="RESOURCES",
    help='As for qsub -l, also several times: "nodes=2:ppn=4:gpus=1,mem=8gb".',
)
@click.option("--walltime", metavar="HH:MM:SS", help="Its time limit. [as in -l, else the queue's default]")
@click.option("--user", default="", help="Who would submit it. [you]")
@click.option("--name", default="whatif", help="Its name: jobs of the same name predict what it would use.")
@click.option("--queue", default="", help="[the server's default]")
def whatif(home: Path | None, config_file: Path | None, **asked: Any) -> None:
    """Say what would become of a job; nothing is submitted."""
    from torque_sched.batch.torque.asked import joined

    try:
        submit = joined(asked["submit"], asked.pop("walltime"))
    except ConfigError as error:
        click.echo(f"torque-sched whatif: {error}", err=True)
        sys.exit(error.exit_code)
    respond("whatif", home, config_file, {**asked, "submit": submit}, tell)


def tell(picture: Any, asked: Mapping[str, Any]) -> None:
    """Print the decision on the job, and every node's.

    Raises:
        ConfigError: the request cannot be read.
    """
    from torque_sched.batch.torque.asked import asked_job, note_on

    user = picture.viewer.user(asked["user"])
    job = asked_job(picture.snapshot, asked["submit"], user=user, name=asked["name"], queue=asked["queue"])
    if note := note_on(asked["submit"]):
        click.echo(note, err=True)
    show_explanation(picture, job)
