"""``yarn-accel pipeline``: run a server, check its configuration, look at its counters."""

from __future__ import annotations

import json
import logging
import os
import sys
from pathlib import Path

import click

from yarn_accel.adapters.settings_file import described
from yarn_accel.pipeline.config import load_config
from yarn_accel.pipeline.top import command as top
from yarn_accel.pipeline.top import operator_client

__all__ = ["group"]

#: What the linear algebra libraries read, once, when they are loaded.
_BLAS_VARIABLES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS")

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
    logging.basicConfig(
        level=config.log_level, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr
    )
    # The server itself computes nothing: its workers set the threads of their libraries themselves.
    for variable in _BLAS_VARIABLES:
        os.environ[variable] = "1"
    from yarn_accel.pipeline.service import run

    sys.exit(run(config, lambda line: click.echo(line)))


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
