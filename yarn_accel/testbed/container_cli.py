"""``yarn-accel cluster run-node``: one node in the foreground, for containers."""

from __future__ import annotations

from pathlib import Path

import click

from yarn_accel.testbed.container_node import run_node
from yarn_accel.testbed.plan import MASTER, UpOptions
from yarn_accel.testbed.state import ClusterPaths


def _say(line: str) -> None:
    click.echo(line, err=True)


@click.command("run-node")
@click.argument("node", default=MASTER)
@click.option(
    "--directory",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="The folder that all nodes share.",
)
@click.option("--name", default="hadoop", show_default=True, help="The cluster's name: a folder in there.")
@click.option(
    "--health-file", default="/tmp/node-is-healthy", show_default=True, type=click.Path(path_type=Path)
)
@click.option(
    "--subnet", default=200, show_default=True, type=click.IntRange(0, 255), help="K of 10.231.K.0/24."
)
@click.option("--nodes", default=UpOptions.nodes, show_default=True, help="Workers, besides the master.")
@click.option(
    "--racks", default=UpOptions.racks, show_default=True, help="Racks the workers are spread over."
)
@click.option(
    "--accel-nodes", default=UpOptions.accel_nodes, show_default=True, help="Workers with an accelerator."
)
@click.option("--slots", default=UpOptions.slots, show_default=True, help="acct/slot of each worker.")
def run_node_command(
    node: str, directory: Path, name: str, health_file: Path, subnet: int, nodes: int, racks: int,
    accel_nodes: int, slots: int,
) -> None:  # fmt: skip
    """Be NODE of a cluster whose nodes are containers: run its daemons here until SIGTERM.

    The options from --subnet on count at the master; workers read what it wrote into the folder.
    """
    options = UpOptions(name=name, nodes=nodes, racks=racks, accel_nodes=accel_nodes, slots=slots)
    run_node(ClusterPaths.of(name, directory), node, options, subnet, health_file, _say)
