"""The table of sections: each measures one group of figures of the issue and cleans up after itself."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from pathlib import Path

from benchmarks.pipeline import triton
from benchmarks.pipeline.echo import PEERS, latency_rows, throughput_rows
from benchmarks.pipeline.fairness import fairness_rows
from benchmarks.pipeline.fleet import Fleet
from benchmarks.pipeline.hdfs import hdfs_rows
from benchmarks.pipeline.kernels import kernel_rows
from benchmarks.pipeline.links import link_rows
from benchmarks.pipeline.setting import Setting
from benchmarks.pipeline.small import small_rows
from benchmarks.pipeline.stages import stage_rows
from benchmarks.pipeline.stopped import stopped_rows
from benchmarks.pipeline.workers import worker_rows
from benchmarks.result import Row, not_measured
from yarn_accel.errors import StartupError

_PEER_MODULES = ("dask", "distributed", "grpc", "pyarrow", "ray", "zmq")

WITH_PEERS: Mapping[str, Callable[[Setting, Fleet, Sequence[str]], Iterable[list[Row]]]] = {
    "latency": latency_rows,
    "echo": throughput_rows,
}
"""Sections by name; each gives its rows as they come."""
_ALONE: Mapping[str, Callable[[Setting], Iterable[list[Row]]]] = {
    "stages": stage_rows,
    "links": link_rows,
    "hdfs": hdfs_rows,
    "workers": worker_rows,
    "kernels": kernel_rows,
    "small": small_rows,
    "fairness": fairness_rows,
    "stopped": stopped_rows,
}


def measure(
    quick: bool, say: Callable[[str], None], only: Sequence[str], cores_awake: bool = False
) -> Generator[list[Row], None, None]:
    """The rows of the sections named in `only`, as they come.

    The peers are down again before anything else is measured, and whatever is up when the caller ends this.
    """
    if any(name in only for name in WITH_PEERS):
        _require_peers()
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        setting = Setting(quick, say, Path(folder), cores_awake)
        with Fleet(setting.folder) as fleet:
            for name, compare in WITH_PEERS.items():
                if name in only:
                    say(f"section {name}")
                    yield from compare(setting, fleet, _peers(quick))
        if "echo" in only and "triton" not in _peers(quick):
            why = "left out when quick" if triton.python() else "not installed; --install-triton does it"
            yield [not_measured("echo: PyTriton", why)]
        for name, section in _ALONE.items():
            if name in only:
                say(f"section {name}")
                yield from section(setting)


def _require_peers() -> None:
    missing = [name for name in _PEER_MODULES if importlib.util.find_spec(name) is None]
    if missing:
        raise StartupError(
            f"the peers to compare with are not installed: {', '.join(missing)}",
            cure="run ./bootstrap.sh yarn,bench,peers, or name sections without them by --only",
        )


def _peers(quick: bool) -> tuple[str, ...]:
    return PEERS if quick or triton.python() is None else (*PEERS, "triton")
