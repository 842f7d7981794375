"""``yarn-accel pipeline``: run a server, check its configuration, look at its counters."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from yarn_accel.adapters.settings_file import described
from yarn_accel.pipeline.config import load_config
from yarn_accel.pipeline.serve import serve
from yarn_accel.pipeline.top import command as top
from yarn_accel.pipeline.top import operator_client

_config_option = click.option(
    "--config", "config_file", required=True, type=click.Path(path_type=Path), help="YAML configuration file."
)


@click.group("pipeline")
def group() -> None:
    """The pipeline server of an accelerator node."""


@group.command("serve")
@_config_option
@click.option("--trace", "trace_file", default="", help="Write a Chrome trace of every stage to this file.")
def _serve(config_file: Path, trace_file: str) -> None:
    """Serve until SIGTERM: the first drains, the second stops at once."""
    config = load_config(config_file)
    if trace_file:
        config = config.model_copy(update={"trace_file": trace_file})
    sys.exit(serve(config))


@group.command("check-config")
@_config_option
def _check_config(config_file: Path) -> None:
    """Print the settings in effect, each with what it means."""
    config = load_config(config_file)
    config.master_secret()
    for line in described(config):
        click.echo(line)


@group.command("stats")
@_config_option
def _stats(config_file: Path) -> None:
    """Print the counters of the running server as JSON."""
    with operator_client(load_config(config_file)) as client:
        click.echo(json.dumps(dict(client.stats()), indent=1, sort_keys=True))


group.add_command(top)
