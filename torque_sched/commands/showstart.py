"""``torque-sched showstart``: when will my job start?"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import click

from torque_sched.commands._answering import respond
from torque_sched.commands.serve import with_options
from torque_sched.errors import ConfigError


@click.command()
@with_options
@click.argument("job", required=False)
@click.option(
    "--submit",
    "-l",
    "submit",
    multiple=True,
    metavar="RESOURCES",
    help='A job not submitted yet, as for qsub -l, also several times: "nodes=2:ppn=4,mem=8gb".',
)
@click.option("--walltime", metavar="HH:MM:SS", help="With --submit: its time limit.")
@click.option("--user", default="", help="With --submit: whose. [you]")
@click.option("--queue", default="", help="With --submit. [the server's default]")
@click.option(
    "--name", default="showstart", help="With --submit: jobs of the same name predict how long it runs."
)
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def showstart(home: Path | None, config_file: Path | None, **asked: Any) -> None:
    """Say when JOB will start, whether that is guaranteed, and why.

    A guaranteed start only gets sooner, unless a node fails, an administrator reserves nodes, or a job
    runs over its limit. One that is only estimated may also get later.
    """
    if (asked["job"] is None) == (not asked["submit"]):
        _refuse("name a JOB, or --submit a request", "for example --submit nodes=2:ppn=4")
    if asked["job"] is not None and asked["walltime"]:
        _refuse("--walltime goes with --submit", "a job that is queued has its own")
    from torque_sched.batch.torque.asked import joined

    try:
        submit = joined(asked["submit"], asked["walltime"]) if asked["submit"] else ""
    except ConfigError as error:
        click.echo(f"torque-sched showstart: {error}", err=True)
        sys.exit(error.exit_code)
    words = {key: value for key, value in asked.items() if key not in {"submit", "walltime"}}
    respond("showstart", home, config_file, {**words, "submit": submit}, tell)


def _refuse(why: str, cure: str) -> NoReturn:
    error = ConfigError(why, cure=cure)
    click.echo(f"torque-sched showstart: {error}", err=True)
    sys.exit(error.exit_code)


def tell(picture: Any, asked: Mapping[str, Any]) -> None:
    """Print when the job starts.

    Raises:
        ConfigError: there is no such job, or no such request.
    """
    from torque_sched.report.outlook import outlook_of

    outlook = outlook_of(picture, _meant(picture, asked["job"], asked))
    if asked["as_json"]:
        click.echo(json.dumps(outlook.document(), indent=1))
        return
    for line in outlook.lines():
        click.echo(line)


def _meant(picture: Any, job: str | None, asked: Mapping[str, Any]) -> Any:
    from torque_sched.batch.torque.asked import asked_job, note_on
    from torque_sched.model.cluster import Job
    from torque_sched.report.picture import find

    if job is not None:
        found = find(picture.snapshot, job, picture.viewer)
        if not isinstance(found, Job):
            raise ConfigError(f"{job} is a node", cure="name a job; for nodes see showbf")
        return found
    if note := note_on(asked["submit"]):
        click.echo(note, err=True)
    user = picture.viewer.user(asked["user"])
    return asked_job(picture.snapshot, asked["submit"], user=user, name=asked["name"], queue=asked["queue"])
