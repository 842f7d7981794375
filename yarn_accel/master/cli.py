"""``yarn-accel master``: what YARN runs in the first container of the application."""

from __future__ import annotations

import json
import logging
import os
import sys
from pathlib import Path

import click

from yarn_accel.master.config import MasterConfig, load_config

__all__ = ["group"]

_config_option = click.option(
    "--config", "config_file", required=True, type=click.Path(path_type=Path), help="JSON or YAML file."
)


@click.group("master")
def group() -> None:
    """The ApplicationMaster, as YARN starts it."""


@group.command("run")
@_config_option
def _run(config_file: Path) -> None:
    """Keep the application as it should be until `yarn-accel stop`; only in a container of YARN."""
    config = load_config(config_file)
    logging.basicConfig(
        level=config.log_level, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr
    )
    from yarn_accel.master.service import run

    sys.exit(run(config, os.environ, lambda line: click.echo(line)))


@group.command("check-config")
@_config_option
def _check_config(config_file: Path) -> None:
    """Print the settings in effect, each with what it means."""
    values = load_config(config_file).model_dump(mode="json")
    for name, field in MasterConfig.model_fields.items():
        click.echo(f"{name}: {json.dumps(values[name])}  # {field.description}")
