"""The pipeline server against bare sockets, bare LAPACK and its peers.

Each section measures one group of figures and cleans up after itself.
"""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.result import Report, Row, not_measured
from yarn_accel.errors import StartupError

if TYPE_CHECKING:
    from benchmarks.pipeline.setting import Setting

__all__ = ["SECTIONS", "draw", "install_triton", "run"]

_WITH_PEERS = ("latency", "echo")
SECTIONS = (*_WITH_PEERS, *("stages", "links", "hdfs", "workers", "kernels", "small", "fairness", "stopped"))
_PEER_MODULES = ("dask", "distributed", "grpc", "pyarrow", "ray", "zmq")


def run(
    quick: bool,
    say: Callable[[str], None],
    report: Report,
    *,
    only: Sequence[str] = (),
    cores_may_sleep: bool = False,
) -> None:
    """Measure all sections, or those named in `only`; the report has the rows as they come.

    `cores_may_sleep`: the cores are not kept awake for latency and echo, see `setting.kept_awake`.
    """
    # Late: the benchmark's processes come by here, too.
    from yarn_accel.pipeline.cpu_idle import DEVICE, can_keep_awake

    sections = only or SECTIONS
    wanted = not cores_may_sleep and any(name in _WITH_PEERS for name in sections)
    stay_awake = wanted and can_keep_awake(DEVICE)
    report.setting["cores_awake"] = stay_awake
    with closing(measure(quick, say, sections, stay_awake)) as parts:  # whatever is up goes down at once
        for rows in parts:
            report.add(rows)


def measure(
    quick: bool, say: Callable[[str], None], only: Sequence[str], cores_awake: bool = False
) -> Generator[list[Row], None, None]:
    """The rows of the sections named in `only`, as they come.

    The peers are down again before anything else is measured, and whatever is up when the caller ends this.
    """
    from benchmarks.pipeline.echo import PEERS, latency_rows, throughput_rows
    from benchmarks.pipeline.fleet import Fleet, triton_python
    from benchmarks.pipeline.setting import Setting

    has_triton = triton_python() is not None
    peers = (*PEERS, "triton") if has_triton and not quick else PEERS
    if any(name in only for name in _WITH_PEERS):
        _require_peers()
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        setting = Setting(quick, say, Path(folder), cores_awake)
        with Fleet(setting.folder) as fleet:
            for name, compare in zip(_WITH_PEERS, (latency_rows, throughput_rows), strict=True):
                if name in only:
                    say(f"section {name}")
                    yield from compare(setting, fleet, peers)
        if "echo" in only and "triton" not in peers:
            why = "left out when quick" if has_triton else "not installed; --install-triton does it"
            yield [not_measured("echo: PyTriton", why)]
        for name, section in _alone().items():
            if name in only:
                say(f"section {name}")
                yield from section(setting)


def _alone() -> Mapping[str, Callable[[Setting], Iterable[list[Row]]]]:
    """The sections without peers, by name."""
    from benchmarks.pipeline import computing, hdfs, sharing

    return {
        "stages": computing.stage_rows,
        "links": computing.link_rows,
        "hdfs": hdfs.hdfs_rows,
        "workers": computing.worker_rows,
        "kernels": computing.kernel_rows,
        "small": computing.small_rows,
        "fairness": sharing.fairness_rows,
        "stopped": sharing.stopped_rows,
    }


def _require_peers() -> None:
    missing = [name for name in _PEER_MODULES if importlib.util.find_spec(name) is None]
    if missing:
        raise StartupError(
            f"the peers to compare with are not installed: {', '.join(missing)}",
            cure="run ./bootstrap.sh yarn,bench,peers, or name sections without them by --only",
        )


def draw(report: Report, stem: str) -> list[str]:
    """Draw the figures of a report; returns the files."""
    from benchmarks.pipeline.pictures import draw as draw_all

    return draw_all(report, stem)


def install_triton(report: Callable[[str], None]) -> None:
    """Install the one peer that needs an environment of its own."""
    from benchmarks.pipeline.fleet import install_triton as install

    install(report)
