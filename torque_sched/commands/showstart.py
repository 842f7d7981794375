"""``torque-sched showstart``: when will my job start?"""

from __future__ import annotations

import getpass
import json
import sys
from pathlib import Path
from typing import Any

import click

from torque_sched.commands.serve import with_options
from torque_sched.errors import ConfigError, TorqueSchedError

__all__ = ["showstart"]


@click.command()
@with_options
@click.argument("job", required=False)
@click.option(
    "--submit", metavar="RESOURCES", help='A job not submitted yet, as for qsub -l: "nodes=2:ppn=4".'
)
@click.option("--walltime", metavar="HH:MM:SS", help="With --submit: its time limit.")
@click.option("--user", default="", help="With --submit: whose. [you]")
@click.option("--queue", default="", help="With --submit. [the server's default]")
@click.option(
    "--name", default="showstart", help="With --submit: jobs of the same name predict how long it runs."
)
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def showstart(home: Path | None, config_file: Path | None, job: str | None, **asked: Any) -> None:
    """Say when JOB will start, whether that is guaranteed, and why.

    A guaranteed start only gets sooner, unless a node fails, an administrator reserves nodes, or a job
    runs over its limit. One that is only estimated may also get later.
    """
    from torque_sched.commands.status import notes, options_of
    from torque_sched.report.outlook import outlook_of
    from torque_sched.report.picture import take_picture

    try:
        if (job is None) == (asked["submit"] is None):
            raise ConfigError("name a JOB, or --submit a request", cure="for example --submit nodes=2:ppn=4")
        if job is not None and asked["walltime"]:
            raise ConfigError("--walltime goes with --submit", cure="a job that is queued has its own")
        picture = take_picture(options_of(home, config_file), notes("showstart"))
        outlook = outlook_of(picture, _meant(picture, job, asked))
    except TorqueSchedError as error:
        click.echo(f"torque-sched showstart: {error}", err=True)
        sys.exit(error.exit_code)
    if asked["as_json"]:
        click.echo(json.dumps(outlook.document(), indent=1))
        return
    for line in outlook.lines():
        click.echo(line)


def _meant(picture: Any, job: str | None, asked: dict[str, Any]) -> Any:
    from torque_sched.core.model import Job
    from torque_sched.report.asked import asked_job, note_on
    from torque_sched.report.picture import find

    if job is not None:
        found = find(picture.snapshot, job)
        if not isinstance(found, Job):
            raise ConfigError(f"{job} is a node", cure="name a job; for nodes see showbf")
        return found
    submit = asked["submit"] + (f",walltime={asked['walltime']}" if asked["walltime"] else "")
    if note := note_on(submit):
        click.echo(note, err=True)
    user = asked["user"] or getpass.getuser()
    return asked_job(picture.snapshot, submit, user=user, name=asked["name"], queue=asked["queue"])
