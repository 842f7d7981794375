"""Opens a runner by its name, with the store that holds its data."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from jobs.runners.hadoop import HadoopRunner
from jobs.runners.inline import InlineRunner
from jobs.runners.local import LocalRunner
from jobs.runners.spark import SparkRunner
from jobs.runners.step import Runner
from yarn_accel.storage import Store
from yarn_accel.streaming import SiteSettings

RUNNERS = ("inline", "local", "hadoop", "spark")


@dataclass(frozen=True, slots=True)
class RunnerOptions:
    """How to open a runner.

    Args:
        home: folder for data on this machine (inline, local); None: a temporary one.
        python: interpreter of mappers and reducers.
        credential_hours: life of a job's credential (hadoop).
        binding_file: overrides the site's binding (hadoop).
        credential_file: token file from the site's administrator (hadoop).
        n_servers: pipeline servers to start (local).
    """

    home: Path | None = None
    python: str = "python3"
    credential_hours: float = 24.0
    binding_file: Path | None = None
    credential_file: Path | None = None
    n_servers: int = 1


@contextlib.contextmanager
def open_runner(
    name: str,
    options: RunnerOptions,
    report: Callable[[str], None],
    environ: Mapping[str, str] | None = None,
) -> Iterator[tuple[Runner, Store]]:
    """Open the runner called `name`; what it started is stopped at the end of the block.

    Raises:
        StartupError: a server did not start, or HADOOP_CONF_DIR is not set (hadoop, spark), or there is no
            Spark.
        ConfigError: the site's configuration is wrong.
    """
    if name == "inline":
        with InlineRunner(options.home) as runner:
            yield runner, Store()
    elif name == "local":
        with LocalRunner(options.home, options.python, n_servers=options.n_servers) as local:
            yield local, Store()
    else:
        site = SiteSettings.read(os.environ if environ is None else environ)
        runner_class = SparkRunner if name == "spark" else HadoopRunner
        hadoop = runner_class(
            site,
            options.python,
            options.credential_hours,
            options.binding_file,
            credential_file=options.credential_file,
        )
        with hadoop:
            yield hadoop, Store(site.conf_dir)
