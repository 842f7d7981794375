"""Everything that only a GPU can show, in one run of minutes: see docs/gpu.md, "The day a GPU is there"."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.result import Report

__all__ = ["MINUTES", "SECTIONS", "draw", "require", "run"]

SECTIONS = ("operations", "factorizations", "batches", "overlap", "workers", "images", "paper")
MINUTES = 4.5


def require(path: Path | None) -> None:
    """Find a GPU that can be used, for figures that will be written there.

    Raises:
        NoGpuError: there is none, or no CuPy; says what to do.
        ConfigError: the figures of an emulated GPU would lie among the results.
    """
    from benchmarks.gpu.machine import find, refuse_results

    refuse_results(find(), path)


def run(
    quick: bool,
    say: Callable[[str], None],
    report: Report,
    *,
    only: Sequence[str] = (),
    minutes: float = MINUTES,
) -> None:
    """Measure all sections, or those named in `only`, in so many minutes; the report gets rows as they come.

    Raises:
        NoGpuError: as `require`.
        JobError: sections failed; what the others measured is in the report.
    """
    from benchmarks.gpu.machine import find
    from benchmarks.gpu.sections import measure

    machine = find()
    say(str(machine))
    report.setting.update(machine.facts(), minutes=minutes)
    with closing(measure(quick, say, report, machine, only or SECTIONS, minutes)) as parts:
        for rows in parts:
            report.add(rows)


def draw(report: Report, stem: str) -> list[str]:
    """Draw the figures of a report; returns the files."""
    from benchmarks.gpu.pictures import draw as draw_all

    return draw_all(report, stem)
