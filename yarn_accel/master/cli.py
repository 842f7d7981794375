"""``yarn-accel master``: what YARN runs in the first container of the application."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

import click

__all__ = ["group"]

_config_option = click.option(
    "--config", "config_file", required=True, type=click.Path(path_type=Path), help="JSON or YAML file."
)


@click.group("master")
def group() -> None:
    """The ApplicationMaster, as YARN starts it."""


@group.command("run")
@_config_option
@click.option(
    "--dry-run",
    is_flag=True,
    help="Print who would get which container, and be bound to whom; order nothing.",
)
def _run(config_file: Path, dry_run: bool) -> None:
    """Keep the application as it should be until `yarn-accel stop`; only in a container of YARN."""
    if dry_run:
        import asyncio
        import json

        from yarn_accel.master.rehearsal import rehearse

        click.echo(json.dumps(asyncio.run(rehearse(config_file)), indent=1))
        return
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr
    )
    from yarn_accel.master.process import run

    sys.exit(run(config_file, os.environ, lambda line: click.echo(line)))


@group.command("check-config")
@_config_option
def _check_config(config_file: Path) -> None:
    """Print the settings in effect, each with what it means."""
    from yarn_accel.adapters.settings_file import described
    from yarn_accel.master.config import load_config

    for line in described(load_config(config_file)):
        click.echo(line)
