"""Starts a pipeline server from its settings: ``python -m yarn_accel.pipeline.serve FILE`` from JSON.

The first worker process is started before the server's own modules are loaded: both load at the same time.
"""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from yarn_accel.extras import errors_as_lines, require
from yarn_accel.pipeline.workers.launching import Launched, launch

if TYPE_CHECKING:
    from yarn_accel.pipeline.config import PipelineConfig

#: Variables that the linear algebra libraries read, once, when they are loaded.
_BLAS_VARIABLES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS")


def serve(config: PipelineConfig, first: Launched | None = None, *, must_compute: bool = False) -> int:
    """Serve until SIGTERM: the first drains, the second stops at once; returns the exit code.

    Args:
        config: the settings.
        first: the first worker, when this thread has started it already.
        must_compute: end with an error when no worker process can start.

    Raises:
        StartupError: a package is not installed, an address is in use, the state file cannot be written, or
            no worker process can start.
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
    from yarn_accel.pipeline.worker_process import WorkerProcess

    return run(config, _say, WorkerProcess(first), must_compute=must_compute)


def main(argv: list[str]) -> None:
    """Serve as `connect("local")` has it; exits with the server's code, and after an error with one line.

    `yarn-accel pipeline serve` does the same, and loads half a second longer before its first worker starts.
    """
    with errors_as_lines("yarn-accel"):
        require("numpy", "scipy", "pydantic", "yaml")
        # `pipeline.service` enables it again when the server is ready.
        gc.disable()
        path = Path(argv[0])
        first = _first_worker(path)
        from yarn_accel.pipeline.config import load_config

        sys.exit(serve(load_config(path), first, must_compute=True))


def _first_worker(path: Path) -> Launched | None:
    """Started from settings that nobody has checked yet; None: they are wrong, as `load_config` will say."""
    with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):
        values = json.loads(path.read_text(encoding="utf-8"))
        operations = [str(each) for each in values.get("extra_operations", ())]
        return launch(int(values.get("cores_per_worker", 1)), operations)
    return None


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
