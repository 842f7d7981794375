"""``python -m jobs``: the example jobs and the demo as commands."""

from __future__ import annotations

import sys

import click

from jobs.demo.cli import demo
from jobs.factorize.cli import factorize
from jobs.images.cli import images
from jobs.lu_blocks.cli import lu_blocks
from yarn_accel.errors import AccelError

__all__ = ["main", "root"]


@click.group()
def root() -> None:
    """Example jobs of cluster-accel: Hadoop Streaming, with the heavy work done by pipeline servers.

    Every job has three runners: ``inline`` (this process, no server), ``local`` (a server and processes on
    this machine) and ``hadoop`` (the cluster that HADOOP_CONF_DIR names; nothing is started). factorize also
    has ``spark``: the same cluster, by spark-submit. lu_blocks is a DAG for the task service (``inline``,
    ``hadoop``).

    Exit codes: 0 fine, 1 failed, 2 wrong usage or configuration, 3 could not start.
    """


root.add_command(factorize)
root.add_command(images)
root.add_command(lu_blocks)
root.add_command(demo)


def main() -> None:
    """Run the command; an expected error becomes one line on stderr and its exit code."""
    try:
        root(prog_name="python -m jobs")
    except AccelError as error:
        click.echo(f"jobs: {error}", err=True)
        sys.exit(error.exit_code)
