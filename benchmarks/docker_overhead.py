"""What containers cost beside network namespaces: the benchmark `hadoop` in both modes, figure by figure."""

from __future__ import annotations

from pathlib import Path

from benchmarks import hadoop
from benchmarks.result import Report, Row
from yarn_accel.testbed import UpOptions
from yarn_accel.testbed.docker_nodes import check_engine

_BASE, _OTHER = "netns", "docker"


def require(_path: Path | None) -> None:
    """Refuse at once where no engine answers or its image is missing.

    Raises:
        StartupError: with the cure.
    """
    check_engine(UpOptions(mode=_OTHER))


def run(quick: bool, report: hadoop.Say, record: Report) -> None:
    """Measure one mode after the other."""
    parts = {}
    for mode in (_BASE, _OTHER):
        parts[mode] = Report("hadoop", is_quick=quick)
        hadoop.run(quick, report, parts[mode], mode=mode)
        record.add(_of_mode(row, mode) for row in parts[mode].rows)
    record.add(compared(parts[_BASE].rows, parts[_OTHER].rows))


def _of_mode(row: Row, mode: str) -> Row:
    """The row with its mode, and without a goal: only the difference is the question here."""
    return Row(f"{row.what}, {mode}", row.value, row.unit, row.n, row.spread, note=row.note)


def compared(base: list[Row], other: list[Row]) -> list[Row]:
    """For each figure of both modes, the other's median over the base's."""
    medians = {row.what: row.value for row in base if row.n and row.value}
    return [
        Row(f"{row.what}, {_OTHER} / {_BASE}", row.value / medians[row.what], "x", 1, None)
        for row in other
        if row.n and row.what in medians
    ]
