"""``yarn-accel launch``: look at what a start would use; and what its accelerator containers run."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from yarn_accel.adapters.settings_file import described

if TYPE_CHECKING:
    from yarn_accel.launch.config import LaunchConfig

__all__ = ["group"]

_config_option = click.option(
    "--config", "config_file", default=None, type=click.Path(path_type=Path), help="YAML configuration file."
)


def _config(config_file: Path | None) -> LaunchConfig:
    # An accelerator container comes through here too, and has no use for these settings.
    from yarn_accel.launch.config import LaunchConfig, load_launch_config

    return LaunchConfig.model_validate({}) if config_file is None else load_launch_config(config_file)


@click.group("launch")
def group() -> None:
    """What `start` would bring to the cluster."""


@group.command("check-config")
@_config_option
def _check_config(config_file: Path | None) -> None:
    """Print the settings in effect, each with what it means."""
    config = _config(config_file)
    for line in described(config):
        click.echo(line)
    click.echo(f"# memory of an accelerator container: {config.acct_memory_mib} MiB")


@group.command("pack")
@_config_option
@click.option("--folder", default=None, type=click.Path(path_type=Path), help="Where the archive goes.")
def _pack(config_file: Path | None, folder: Path | None) -> None:
    """Pack the Python environment of the containers; prints what came out as JSON."""
    from yarn_accel.launch.packing import pack

    settings = _config(config_file).environment
    packed = pack(settings.extras, settings.packages, folder)
    click.echo(json.dumps({**asdict(packed), "path": str(packed.path)}, indent=1))


@group.command("serve", hidden=True)
@click.option("--config", "config_file", required=True, type=click.Path(path_type=Path))
@click.option("--agent", "agent_file", default=None, type=click.Path(path_type=Path))
@click.pass_context
def _serve(context: click.Context, config_file: Path, agent_file: Path | None) -> None:
    """Run the pipeline server of an accelerator container: `pipeline serve` with this node's settings."""
    from yarn_accel.launch.serving import prepare
    from yarn_accel.pipeline.serve import command

    settings_file = prepare(config_file, agent_file)
    context.invoke(command, config_file=settings_file, trace_file="")
