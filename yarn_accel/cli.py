"""The ``yarn-accel`` command: a group per room, one place where errors become a line and an exit code."""

from __future__ import annotations

import sys

import click

from yarn_accel import __version__
from yarn_accel.cluster.cli import group as cluster_group
from yarn_accel.errors import AccelError
from yarn_accel.hadoop.cli import group as hadoop_group
from yarn_accel.pipeline.cli import group as pipeline_group
from yarn_accel.pipeline.credential_cli import group as credential_group

__all__ = ["main", "root"]


@click.group()
@click.version_option(__version__, prog_name="yarn-accel")
def root() -> None:
    """Accelerators on stock Hadoop YARN.

    Exit codes: 0 fine, 1 failed, 2 wrong usage or configuration, 3 could not start.
    """


root.add_command(cluster_group)
root.add_command(credential_group)
root.add_command(hadoop_group)
root.add_command(pipeline_group)


def main() -> None:
    """Run the command; an expected error becomes one line on stderr and its exit code."""
    try:
        root(standalone_mode=True)
    except AccelError as error:
        click.echo(f"yarn-accel: {error}", err=True)
        sys.exit(error.exit_code)
