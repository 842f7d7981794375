"""The table of sections: each measures one group of figures of the issue and cleans up after itself."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks.pipeline import triton
from benchmarks.pipeline.echo import PEERS, latency_rows, throughput_rows
from benchmarks.pipeline.fairness import fairness_rows
from benchmarks.pipeline.fleet import Fleet
from benchmarks.pipeline.gpu import gpu_rows
from benchmarks.pipeline.hdfs import hdfs_rows
from benchmarks.pipeline.kernels import kernel_rows
from benchmarks.pipeline.links import link_rows
from benchmarks.pipeline.setting import Setting
from benchmarks.pipeline.small import small_rows
from benchmarks.pipeline.stages import stage_rows
from benchmarks.pipeline.workers import worker_rows
from benchmarks.result import Row, not_measured

__all__ = ["measure"]


_WITH_PEERS: Mapping[str, Callable[[Setting, Fleet, Sequence[str]], list[Row]]] = {
    "latency": latency_rows,
    "echo": throughput_rows,
}
_ALONE: Mapping[str, Callable[[Setting], list[Row]]] = {
    "stages": stage_rows,
    "links": link_rows,
    "hdfs": hdfs_rows,
    "workers": worker_rows,
    "kernels": kernel_rows,
    "small": small_rows,
    "fairness": fairness_rows,
    "gpu": gpu_rows,
}


def measure(quick: bool, report: Callable[[str], None], only: Sequence[str]) -> list[Row]:
    """The rows of the sections named in `only`; the peers are down again before anything else is measured."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        setting = Setting(quick, report, Path(folder))
        with Fleet(setting.folder) as fleet:
            for name, compare in _WITH_PEERS.items():
                if name in only:
                    report(f"section {name}")
                    rows += compare(setting, fleet, _peers(quick))
        if "echo" in only and "triton" not in _peers(quick):
            why = "left out when quick" if triton.python() else "not installed; --install-triton does it"
            rows.append(not_measured("echo: PyTriton", why))
        for name, section in _ALONE.items():
            if name in only:
                report(f"section {name}")
                rows += section(setting)
    return rows


def _peers(quick: bool) -> tuple[str, ...]:
    return PEERS if quick or triton.python() is None else (*PEERS, "triton")
