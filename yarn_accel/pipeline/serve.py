"""``yarn-accel pipeline serve``."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from yarn_accel.pipeline.config import load_config
from yarn_accel.pipeline.starting import serve

__all__ = ["command", "config_option"]

config_option = click.option(
    "--config", "config_file", required=True, type=click.Path(path_type=Path), help="YAML configuration file."
)


@click.command("serve")
@config_option
@click.option("--trace", "trace_file", default="", help="Write a Chrome trace of every stage to this file.")
def command(config_file: Path, trace_file: str) -> None:
    """Serve until SIGTERM: the first drains, the second stops at once."""
    config = load_config(config_file)
    if trace_file:
        config = config.model_copy(update={"trace_file": trace_file})
    sys.exit(serve(config))
