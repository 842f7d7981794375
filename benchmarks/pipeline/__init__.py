"""The pipeline server against bare sockets, bare LAPACK and its peers; `sections` has the table of parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from benchmarks.result import Report, Row

__all__ = ["SECTIONS", "draw", "install_triton", "run"]

SECTIONS = (
    "latency",
    "echo",
    "stages",
    "links",
    "hdfs",
    "workers",
    "kernels",
    "small",
    "fairness",
    "gpu",
)


def run(quick: bool, report: Callable[[str], None], only: Sequence[str] = ()) -> list[Row]:
    """Measure all sections, or those named in `only`."""
    from benchmarks.pipeline.sections import measure  # late: the benchmark's own processes come by here, too

    return measure(quick, report, only or SECTIONS)


def draw(report: Report, stem: str) -> list[str]:
    """Draw the figures of a report; returns the files."""
    from benchmarks.pipeline.pictures import draw as draw_all

    files: list[str] = draw_all(report, stem)
    return files


def install_triton(report: Callable[[str], None]) -> None:
    """Install the one peer that needs an environment of its own."""
    from benchmarks.pipeline.triton import install

    install(report)
