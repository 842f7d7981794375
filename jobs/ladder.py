"""From a rung's name to an open rung and the store its data lives in."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from jobs.rungs.cluster import ClusterRung
from jobs.rungs.inprocess import InProcessRung
from jobs.rungs.pipe import PipeRung
from jobs.rungs.step import Rung
from yarn_accel.adapters.hdfs import Store
from yarn_accel.hadoop.site import Site

__all__ = ["RUNGS", "RungOptions", "open_rung"]

RUNGS = ("inprocess", "pipe", "cluster")


@dataclass(frozen=True, slots=True)
class RungOptions:
    """How to open a rung.

    Args:
        home: folder for data of the local rungs; None: a temporary one.
        python: interpreter of mappers and reducers.
        credential_hours: life of a job's credential (cluster).
        binding_file: overrides the site's binding (cluster).
        credential_file: token file from the site's administrator (cluster).
        n_servers: pipeline servers to start (pipe).
    """

    home: Path | None = None
    python: str = "python3"
    credential_hours: float = 24.0
    binding_file: Path | None = None
    credential_file: Path | None = None
    n_servers: int = 1


@contextlib.contextmanager
def open_rung(
    name: str,
    options: RungOptions,
    report: Callable[[str], None],
    environ: Mapping[str, str] | None = None,
) -> Iterator[tuple[Rung, Store]]:
    """Open the rung called `name`; what it started is stopped at the end of the block.

    Raises:
        StartupError: a server did not start, or HADOOP_CONF_DIR is not set (cluster).
        ConfigError: the site's configuration is wrong.
    """
    if name == "inprocess":
        with InProcessRung(options.home) as rung:
            yield rung, Store()
    elif name == "pipe":
        with PipeRung(options.home, options.python, n_servers=options.n_servers) as pipes:
            yield pipes, Store()
    else:
        site = Site.load(os.environ if environ is None else environ)
        cluster = ClusterRung(
            site,
            options.python,
            options.credential_hours,
            options.binding_file,
            credential_file=options.credential_file,
        )
        with cluster:
            yield cluster, Store(site.conf_dir)
