"""``yarn-accel pipeline serve``, apart from the commands beside it: a container loads this one alone."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

import click

from yarn_accel.pipeline.config import load_config

__all__ = ["command", "config_option"]

#: What the linear algebra libraries read, once, when they are loaded.
_BLAS_VARIABLES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS")

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
    logging.basicConfig(
        level=config.log_level, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr
    )
    # The server itself computes nothing: its workers set the threads of their libraries themselves.
    for variable in _BLAS_VARIABLES:
        os.environ[variable] = "1"
    from yarn_accel.pipeline.service import run

    sys.exit(run(config, lambda line: click.echo(line)))
