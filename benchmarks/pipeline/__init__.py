"""The pipeline server against bare sockets, bare LAPACK and its peers; `sections` has the table of parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing

from benchmarks.result import Report

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
    "stopped",
)


def run(
    quick: bool,
    say: Callable[[str], None],
    report: Report,
    *,
    only: Sequence[str] = (),
    cores_may_sleep: bool = False,
) -> None:
    """Measure all sections, or those named in `only`; the report has the rows as they come.

    `cores_may_sleep`: the cores are not kept awake for latency and echo, see `awake`.
    """
    from benchmarks.pipeline import awake  # late: the benchmark's processes come by here, too
    from benchmarks.pipeline.sections import WITH_PEERS, measure

    sections = only or SECTIONS
    stay_awake = not cores_may_sleep and awake.is_possible() and any(name in WITH_PEERS for name in sections)
    report.setting["cores_awake"] = stay_awake
    with closing(measure(quick, say, sections, stay_awake)) as parts:  # whatever is up goes down at once
        for rows in parts:
            report.add(rows)


def draw(report: Report, stem: str) -> list[str]:
    """Draw the figures of a report; returns the files."""
    from benchmarks.pipeline.pictures import draw as draw_all

    files: list[str] = draw_all(report, stem)
    return files


def install_triton(report: Callable[[str], None]) -> None:
    """Install the one peer that needs an environment of its own."""
    from benchmarks.pipeline.triton import install

    install(report)
