"""``yarn-accel hadoop``: the distribution and its configuration, apart from any cluster."""

from __future__ import annotations

from pathlib import Path

import click
import yaml

from yarn_accel.errors import ConfigError
from yarn_accel.testbed.class_archives import ensure_archive
from yarn_accel.testbed.class_lists import record_command
from yarn_accel.testbed.maven import ensure_hadoop
from yarn_accel.testbed.templates import PLACEHOLDERS, render

__all__ = [
    "fetch_command",
    "group",
    "placeholders_command",
    "render_command",
]


def _report(text: str) -> None:
    click.echo(text, err=True)


@click.group("hadoop")
def group() -> None:
    """Hadoop's jars and configuration templates."""


@group.command("fetch")
def fetch_command() -> None:
    """Fetch Hadoop's jars and build the class data archive, unless both are cached."""
    install = ensure_hadoop(_report)
    archive = ensure_archive(install, _report)
    click.echo(
        f"Hadoop {install.version}: {install.n_jars} jars, {install.n_bytes / 1e6:.0f} MB, {install.lib_dir}"
    )
    click.echo(f"class data archive: {archive or 'none'}")


@group.command("render")
@click.argument("values", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("target", type=click.Path(file_okay=False, path_type=Path))
def render_command(values: Path, target: Path) -> None:
    """Write a configuration directory TARGET from the templates and a YAML file of VALUES."""
    try:
        loaded = yaml.safe_load(values.read_text())
    except yaml.YAMLError as error:
        raise ConfigError(f"{values}: {' '.join(str(error).split())}") from error
    if not isinstance(loaded, dict):
        raise ConfigError(f"{values} must hold keys and values; see: yarn-accel hadoop placeholders")
    render({str(key): str(value) for key, value in loaded.items()}, target)
    click.echo(f"configuration written to {target}")


@group.command("placeholders")
def placeholders_command() -> None:
    """List every value that the templates take, with its default."""
    for name, placeholder in PLACEHOLDERS.items():
        default = "required" if placeholder.default is None else repr(placeholder.default)
        click.echo(f"{name}: {placeholder.meaning} [{default}]")


group.add_command(record_command)
