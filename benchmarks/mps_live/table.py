"""The table of docs/benchmarks.md, from a report's file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def mps_live_table(document: Mapping[str, Any]) -> list[str]:
    """Its lines: each figure with its spread and, where it has one, its goal and the verdict."""
    lines = [_line("", "median", "least", "most", "n", "goal", "")]
    lines += [_of_row(row) for row in document["rows"]]
    return [*lines, "", *_setting(document["machine"])]


def _line(what: str, *cells: str) -> str:
    value, least, most, n, goal, verdict = cells
    return f"{what:64} {value:>8} {least:>8} {most:>8} {n:>4}  {goal:7} {verdict}".rstrip()


def _of_row(row: Mapping[str, Any]) -> str:
    what = f"{row['what']}, {row['unit']}" if row["unit"] else row["what"]
    if not row["n"]:
        return f"{what}: {row['note']}"
    least, most = ("", "") if row["spread"] is None else map(_number, row["spread"])
    verdict = {None: "", True: "holds", False: "does not hold"}[row["ok"]]
    return _line(what, _number(row["value"]), least, most, str(row["n"]), row["goal"], verdict)


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _setting(machine: Mapping[str, Any]) -> Iterator[str]:
    yield f"{machine['machines']}; times of the paper / {machine['time_divided_by']:g}"
    yield f"load average when runs began: {machine['load_average']}"
