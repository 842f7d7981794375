"""``yarn-accel launch``: shows what a start uses, packs an environment, removes old ones."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from yarn_accel.adapters.settings_file import described
from yarn_accel.hadoop.rm_client import RmClient
from yarn_accel.launch.cleaning import look, remove
from yarn_accel.launch.config import LaunchConfig, load_launch_config
from yarn_accel.launch.gpu_environment import gpu_note, packed_extras
from yarn_accel.launch.packing import pack
from yarn_accel.launch.staging import role_settings

_config_option = click.option(
    "--config", "config_file", default=None, type=click.Path(path_type=Path), help="YAML configuration file."
)


def _config(config_file: Path | None) -> LaunchConfig:
    return LaunchConfig.model_validate({}) if config_file is None else load_launch_config(config_file)


@click.group("launch")
def group() -> None:
    """Show and prepare what `start` brings to the cluster."""


@group.command("check-config")
@_config_option
def _check_config(config_file: Path | None) -> None:
    """Print the settings in effect, each with what it means."""
    config = _config(config_file)
    roles = role_settings(config)
    for line in described(config):
        click.echo(line)
    for name, settings in roles.items():
        click.echo(f"# {name}, with all its keys:")
        for line in described(settings):
            click.echo(f"#   {line}")
    click.echo(f"# {gpu_note(config.environment)}")
    click.echo(f"# memory of an accelerator container: {config.server_memory_mib} MiB")


@group.command("clean")
@_config_option
@click.option(
    "--keep",
    "n_keep",
    default=1,
    show_default=True,
    type=click.IntRange(0),
    help="Keep so many of the newest, used or not.",
)
@click.option("--apply", "is_applied", is_flag=True, help="Remove what is unused; else it is only listed.")
def _clean(config_file: Path | None, n_keep: int, is_applied: bool) -> None:
    """List the packed environments in the cluster's storage, and remove those that nobody uses.

    What an application uses stays until the application is over. Do not run `start` at the same time.
    """
    rm_client = RmClient.load()
    store, root = rm_client.store(), rm_client.staging_uri(_config(config_file).environment.staging_uri)
    survey = look(store, root, n_keep)
    for each in survey.found:
        why = f"used by {', '.join(each.used_by)}" if each.used_by else "kept" if each.is_recent else "unused"
        click.echo(f"{each.uri} ({each.n_bytes / 1e6:.1f} MB): {why}")
    n_bytes = sum(each.n_bytes for each in survey.unused)
    if is_applied:
        click.echo(f"removed {remove(store, survey)} ({n_bytes / 1e6:.1f} MB)")
        return
    for folder in survey.silent:
        click.echo(f"note: {folder} does not say what its application uses: nothing would be removed")
    click.echo(f"{len(survey.unused)} unused ({n_bytes / 1e6:.1f} MB); --apply removes them")


@group.command("pack")
@_config_option
@click.option("--folder", default=None, type=click.Path(path_type=Path), help="Where the archive goes.")
def _pack(config_file: Path | None, folder: Path | None) -> None:
    """Pack the Python environment of the containers; prints what came out as JSON."""
    settings = _config(config_file).environment
    packed = pack(packed_extras(settings), settings.packages, folder)
    click.echo(json.dumps({**asdict(packed), "path": str(packed.path)}, indent=1))
