"""``yarn-accel master``: what YARN runs in the first container of the application."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from pathlib import Path

import click

logger = logging.getLogger(__name__)

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
        import json

        from yarn_accel.master.environment import preview

        click.echo(json.dumps(asyncio.run(preview(config_file)), indent=1))
        return
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr
    )
    sys.exit(asyncio.run(_serve(config_file)))


async def _serve(config_file: Path) -> int:
    """Work until the application is over or this attempt is; returns the exit code.

    Whatever is not needed for registering is loaded afterwards.

    Raises:
        StartupError: this is no container of YARN, or the port is taken.
        ConfigError: the settings or the plan are wrong.
    """
    from yarn_accel.adapters.hadoop_rpc import AttemptGoneError
    from yarn_accel.master.registration import read_registration_settings, register

    registration = None
    try:
        registration = await register(read_registration_settings(config_file), os.environ)
        from yarn_accel.master.service import serve

        await serve(config_file, registration, os.environ, lambda line: click.echo(line))
    except AttemptGoneError as error:
        logger.error("this attempt is over: %s", error)
        return 1
    finally:
        if registration is not None:
            registration.listener.close()
            await registration.am.close()
    return 0


@group.command("check-config")
@click.option(
    "--config",
    "config_file",
    default=None,
    type=click.Path(path_type=Path),
    help="JSON or YAML file; default: none.",
)
def _check_config(config_file: Path | None) -> None:
    """Print the settings in effect, each with what it means: what `master: settings` of a start may hold."""
    from yarn_accel.adapters.settings_file import described
    from yarn_accel.master.config import SOME_MANAGERS, load_config, parse_config

    for line in described(parse_config(SOME_MANAGERS) if config_file is None else load_config(config_file)):
        click.echo(line)
