"""``yarn-accel credential``: what an administrator needs to let a user's jobs reach the pipeline servers."""

from __future__ import annotations

from pathlib import Path

import click

from yarn_accel.adapters.credentials import create_master_secret, issue_token_file, read_master_secret

__all__ = ["group"]

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.group("credential")
def group() -> None:
    """The site's secret, and the credentials of users' jobs."""


@group.command("new-secret")
@click.argument("file", type=_FILE)
def _new_secret(file: Path) -> None:
    """Write a fresh master secret to FILE (0600); every pipeline server of the site needs the same one."""
    create_master_secret(file)


@group.command("issue")
@click.option("--secret", "secret_file", type=_FILE, required=True, help="The site's master secret.")
@click.option("--tenant", required=True, help="Whose requests these will be, such as a user name.")
@click.option(
    "--hours", type=click.FloatRange(min=0, min_open=True), default=24.0, show_default=True, help="Life."
)
@click.argument("file", type=_FILE)
def _issue(secret_file: Path, tenant: str, hours: float, file: Path) -> None:
    """Write a job credential to FILE (0600) in Hadoop's token format.

    Hand it to the user, who submits with -D mapreduce.job.credentials.binary=FILE (or --credential FILE).
    """
    issue_token_file(file, read_master_secret(secret_file), hours * 3600, tenant)
