"""``python -m yarn_accel.worker --config FILE``: the worker of this node, until SIGTERM."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

import click

from yarn_accel.extras import errors_as_lines
from yarn_accel.node.config import read_key
from yarn_accel.worker.config import load_worker_config


@click.command("worker")
@click.option("--config", "config_file", type=click.Path(path_type=Path), help="YAML configuration file.")
def command(config_file: Path | None) -> None:
    """Run the tasks that the task service gives to this node."""
    from yarn_accel.worker.service import run

    config = load_worker_config(config_file, os.environ)
    key = read_key(config, os.environ)
    logging.basicConfig(
        level=config.log_level, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr
    )
    sys.exit(run(config, key, lambda line: click.echo(line)))


def _main() -> None:
    """Run the command; an expected error becomes one line on stderr and its exit code."""
    with errors_as_lines("yarn-accel"):
        command(standalone_mode=True, prog_name="python -m yarn_accel.worker")


if __name__ == "__main__":
    _main()
