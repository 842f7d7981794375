"""``yarn-accel pipeline``: run a server, check its configuration, look at its counters."""

from __future__ import annotations

import json
from pathlib import Path

import click

from yarn_accel.adapters.settings_file import described
from yarn_accel.pipeline.config import load_config
from yarn_accel.pipeline.serve import command as serve
from yarn_accel.pipeline.serve import config_option
from yarn_accel.pipeline.top import command as top
from yarn_accel.pipeline.top import operator_client

__all__ = ["group"]


@click.group("pipeline")
def group() -> None:
    """The pipeline server of an accelerator node."""


@group.command("check-config")
@config_option
def _check_config(config_file: Path) -> None:
    """Print the settings in effect, each with what it means."""
    config = load_config(config_file)
    config.master_secret()
    for line in described(config):
        click.echo(line)


@group.command("stats")
@config_option
def _stats(config_file: Path) -> None:
    """Print the counters of the running server as JSON."""
    with operator_client(load_config(config_file)) as client:
        click.echo(json.dumps(dict(client.stats()), indent=1, sort_keys=True))


group.add_command(serve)
group.add_command(top)
