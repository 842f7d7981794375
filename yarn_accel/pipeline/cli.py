"""``yarn-accel pipeline``: run a server, check its configuration, look at its counters."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from pathlib import Path

import click

from yarn_accel.client.binding import Endpoint
from yarn_accel.errors import ConfigError
from yarn_accel.pipeline.config import PipelineConfig, load_config

__all__ = ["group"]

#: What the linear algebra libraries read, once, when they are loaded.
_BLAS_VARIABLES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS")
_STATS_CREDENTIAL_S = 60

_config_option = click.option(
    "--config", "config_file", required=True, type=click.Path(path_type=Path), help="YAML configuration file."
)


@click.group("pipeline")
def group() -> None:
    """The pipeline server of an accelerator node."""


@group.command("serve")
@_config_option
def _serve(config_file: Path) -> None:
    """Serve until SIGTERM: the first drains, the second stops at once."""
    config = load_config(config_file)
    logging.basicConfig(
        level=config.log_level, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr
    )
    for variable in _BLAS_VARIABLES:
        os.environ[variable] = str(config.blas_threads)
    # Only now may numpy be loaded: the libraries below it count their threads at that moment.
    from yarn_accel.pipeline.service import run

    sys.exit(run(config, lambda line: click.echo(line)))


@group.command("check-config")
@_config_option
def _check_config(config_file: Path) -> None:
    """Print the settings in effect, each with what it means."""
    config = load_config(config_file)
    config.master_secret()
    for name, field in PipelineConfig.model_fields.items():
        value = getattr(config, name)
        shown = str(value) if isinstance(value, Path) else json.dumps(value)
        click.echo(f"{name}: {shown}  # {field.description}")


@group.command("stats")
@_config_option
def _stats(config_file: Path) -> None:
    """Print the counters of the running server as JSON."""
    from yarn_accel.client.client import Client
    from yarn_accel.wire.credential import issue

    config = load_config(config_file)
    credential = issue(
        config.master_secret(), "operator", int(time.time()) + _STATS_CREDENTIAL_S, "pipeline-stats"
    )
    with Client(_endpoint(config), credential) as client:
        click.echo(json.dumps(dict(client.stats()), indent=1, sort_keys=True))


def _endpoint(config: PipelineConfig) -> Endpoint:
    """Where the server of this configuration listens; with port 0 its state file says."""
    port = config.listen_port
    if not port and config.state_file:
        try:
            port = int(json.loads(Path(config.state_file).read_text(encoding="utf-8"))["port"])
        except (OSError, ValueError, KeyError) as error:
            raise ConfigError(f"state_file {config.state_file}: {error}; is the server running?") from None
    return Endpoint(config.name or "pipeline", config.listen_host, port, config.unix_path)
