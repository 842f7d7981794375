"""Starts a pipeline server from its settings.

The first worker process is started before the server's own modules are loaded: both load at the same time.
"""

from __future__ import annotations

import logging
import os
import sys

from yarn_accel.extras import require
from yarn_accel.pipeline.config import PipelineConfig
from yarn_accel.pipeline.workers.launching import Launched, launch

__all__ = ["serve"]

#: What the linear algebra libraries read, once, when they are loaded.
_BLAS_VARIABLES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS")


def serve(config: PipelineConfig, first: Launched | None = None) -> int:
    """Serve until SIGTERM: the first drains, the second stops at once; returns the exit code.

    Args:
        config: the settings.
        first: the first worker, when this thread has started it already.

    Raises:
        StartupError: a package is not installed, an address is in use, or the state file cannot be written.
        ConfigError: the master secret cannot be used.
    """
    logging.basicConfig(
        level=config.log_level, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr
    )
    # Without them workers would end again and again, and requests wait for ever.
    require("numpy", "scipy", *(("aiohttp", "prometheus_client") if config.http_port >= 0 else ()))
    # The server itself computes nothing: its workers set the threads of their libraries themselves.
    for variable in _BLAS_VARIABLES:
        os.environ[variable] = "1"
    first = first or launch(config.cores_per_worker, config.extra_operations)
    # Loaded only now, while the worker loads its libraries, which takes longest.
    from yarn_accel.pipeline.service import run
    from yarn_accel.pipeline.workers.process import WorkerProcess

    return run(config, _say, WorkerProcess(first))


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
