"""Three pictures of a report: throughput by size and candidate, latency, efficiency of the stages."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from benchmarks.result import Report, Row, draw_all

_ECHO = re.compile(r"echo, (?P<place>[^,]+), (?P<size>[^,]+), (?P<n>\d+) clients?, window 4: (?P<who>[^/]+)$")
_LATENCY = re.compile(r"latency, 64 B, (?P<panel>\w+, cores [^:]+): (?P<who>[^/]+)$")
_EFFICIENCY = re.compile(r"efficiency, (?P<operation>\w+), (?P<size>\d+) MB, c = (?P<times>\d+)$")

#: Enough of them that no two lines of a panel share one.
_COLOURS = (
    *("#555555", "#aaaaaa", "#0b6623", "#2ca02c", "#98df8a", "#d62728"),
    *("#1f77b4", "#ff7f0e", "#9467bd", "#8c564b", "#e377c2", "#17becf"),
)


def draw(report: Report, stem: str) -> list[str]:
    """Draw what the report has rows for.

    Args:
        report: with rows of this benchmark.
        stem: the files are called this, a dash and what they show.

    Returns:
        The files.
    """
    paints = {"throughput": _throughput, "latency": _latency, "efficiency": _efficiency}
    return draw_all(report, stem, paints)


def _found(rows: Sequence[Row], pattern: re.Pattern[str]) -> list[tuple[dict[str, str], Row]]:
    matches = ((pattern.match(row.what), row) for row in rows)
    return [(match.groupdict(), row) for match, row in matches if match is not None]


@contextmanager
def _panels(file: str, n: int, **options: Any) -> Iterator[Any]:
    from yarn_accel.report.figures import drawing

    with drawing(file, (5.2 * n, 4.6), columns=n, **options) as (_, axes):
        yield axes[0]


def _unique(values: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(values))


def _throughput(report: Report, file: str) -> bool:
    found = _found(report.rows, _ECHO)
    panels = _unique([f"{keys['place']}, clients: {keys['n']}" for keys, _ in found])
    if not panels:
        return False
    with _panels(file, len(panels), sharey=True) as axes:
        sizes = _unique([keys["size"] for keys, _ in found])
        for axis, panel in zip(axes, panels, strict=True):
            inside = [(keys, row) for keys, row in found if f"{keys['place']}, clients: {keys['n']}" == panel]
            for number, who in enumerate(_unique([keys["who"] for keys, _ in inside])):
                points = [
                    (sizes.index(keys["size"]), row.value) for keys, row in inside if keys["who"] == who
                ]
                label = who.replace(" unix", "").replace(" tcp", "")
                colour = _COLOURS[number % len(_COLOURS)]
                width = 2.4 if who.startswith("ours") else 1.2
                style = "--" if who.startswith("bare") else "-"
                axis.plot(
                    *zip(*points, strict=True), style, color=colour, marker=".", linewidth=width, label=label
                )
            axis.set(title=panel, xticks=range(len(sizes)), xticklabels=sizes, yscale="log")
            axis.grid(visible=True, alpha=0.3)
        axes[0].set_ylabel("GB/s, both directions")
        axes[-1].legend(fontsize="x-small", loc="center left", bbox_to_anchor=(1.0, 0.5))
    return True


def _latency(report: Report, file: str) -> bool:
    found = _found(report.rows, _LATENCY)
    panels = _unique([keys["panel"] for keys, _ in found])
    if not panels:
        return False
    with _panels(file, len(panels)) as axes:
        for axis, panel in zip(axes, panels, strict=True):
            bars = sorted((row.value, keys["who"]) for keys, row in found if keys["panel"] == panel)
            colours = ["tab:orange" if who.startswith("ours") else "tab:blue" for _, who in bars]
            axis.barh([who for _, who in bars], [value for value, _ in bars], color=colours)
            axis.set(title=f"64 B there and back, {panel}", xlabel="us", xscale="log")
    return True


def _efficiency(report: Report, file: str) -> bool:
    found = _found(report.rows, _EFFICIENCY)
    operations = _unique([keys["operation"] for keys, _ in found])
    if not operations:
        return False
    with _panels(file, len(operations), sharey=True) as axes:
        for axis, operation in zip(axes, operations, strict=True):
            inside = [(keys, row) for keys, row in found if keys["operation"] == operation]
            for times in _unique([keys["times"] for keys, _ in inside]):
                points = sorted(
                    ((int(keys["size"]), row.value) for keys, row in inside if keys["times"] == times)
                )
                axis.plot(*zip(*points, strict=True), marker="o", label=f"c = {times}")
            axis.axhline(1.0, color="grey", linewidth=0.8)
            axis.set(title=operation, xlabel="MB", ylim=(0, 1.15))
            axis.grid(visible=True, alpha=0.3)
        axes[0].set_ylabel("N x slowest stage alone / wall")
        axes[-1].legend()
    return True
