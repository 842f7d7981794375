"""``torque-sched whatif``: where a job would run if it were submitted now, or why it would wait."""

from __future__ import annotations

import getpass
import sys
from pathlib import Path

import click

from torque_sched.commands.explain import show_explanation
from torque_sched.commands.serve import with_options
from torque_sched.commands.status import notes, options_of
from torque_sched.errors import TorqueSchedError

__all__ = ["whatif"]


@click.command()
@with_options
@click.option("--submit", required=True, metavar="RESOURCES", help='As for qsub -l: "nodes=2:ppn=4:gpus=1".')
@click.option("--user", default="", help="Who would submit it. [you]")
@click.option("--name", default="whatif", help="Its name: jobs of the same name predict what it would use.")
@click.option("--queue", default="", help="[the server's default]")
def whatif(
    home: Path | None, config_file: Path | None, submit: str, user: str, name: str, queue: str
) -> None:
    """Say what would become of a job; nothing is submitted."""
    from torque_sched.report.asked import asked_job, note_on
    from torque_sched.report.picture import take_picture

    try:
        picture = take_picture(options_of(home, config_file), notes("whatif"))
        job = asked_job(picture.snapshot, submit, user=user or getpass.getuser(), name=name, queue=queue)
        if note := note_on(submit):
            click.echo(note, err=True)
        show_explanation(picture, job)
    except TorqueSchedError as error:
        click.echo(f"torque-sched whatif: {error}", err=True)
        sys.exit(error.exit_code)
