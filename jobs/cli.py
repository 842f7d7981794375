"""``python -m jobs``: the example jobs and the demo as commands."""

from __future__ import annotations

import click

from jobs.demo.cli import demo
from jobs.embed.cli import embed
from jobs.factorize.cli import factorize
from jobs.images.cli import images
from jobs.lu_blocks.cli import lu_blocks


@click.group(invoke_without_command=True)
@click.pass_context
def root(context: click.Context) -> None:
    """Example jobs of cluster-accel: Hadoop Streaming, with the heavy work done by pipeline servers.

    Every job has three runners: ``inline`` (this process, no server), ``local`` (a server and processes on
    this machine) and ``hadoop`` (the cluster that HADOOP_CONF_DIR names; nothing is started). factorize also
    has ``spark``: the same cluster, by spark-submit. lu_blocks is a DAG for the task service (``inline``,
    ``hadoop``).

    Exit codes: 0 fine, 1 failed, 2 wrong usage or configuration, 3 could not start.
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


root.add_command(factorize)
root.add_command(images)
root.add_command(embed)
root.add_command(lu_blocks)
root.add_command(demo)
