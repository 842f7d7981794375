"""Three pictures of a report: throughput by size and candidate, latency, efficiency of the stages."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from benchmarks.result import Report, Row

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
    import matplotlib

    matplotlib.use("agg")
    drawn = []
    for name, paint in (("throughput", _throughput), ("latency", _latency), ("efficiency", _efficiency)):
        figure = paint(report.rows)
        if figure is not None:
            file = f"{stem}-{name}.png"
            figure.savefig(file, dpi=110)
            drawn.append(file)
    return drawn


def _found(rows: Sequence[Row], pattern: re.Pattern[str]) -> list[tuple[dict[str, str], Row]]:
    matches = ((pattern.match(row.what), row) for row in rows)
    return [(match.groupdict(), row) for match, row in matches if match is not None]


def _axes(n_columns: int, **options: Any) -> tuple[Any, list[Any]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2 * n_columns, 4.6), layout="constrained")
    axes = figure.subplots(1, n_columns, squeeze=False, **options)
    return figure, list(axes[0])


def _unique(values: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(values))


def _throughput(rows: Sequence[Row]) -> Any:
    found = _found(rows, _ECHO)
    panels = _unique([f"{keys['place']}, clients: {keys['n']}" for keys, _ in found])
    if not panels:
        return None
    figure, axes = _axes(len(panels), sharey=True)
    sizes = _unique([keys["size"] for keys, _ in found])
    for axis, panel in zip(axes, panels, strict=True):
        inside = [(keys, row) for keys, row in found if f"{keys['place']}, clients: {keys['n']}" == panel]
        for number, who in enumerate(_unique([keys["who"] for keys, _ in inside])):
            points = [(sizes.index(keys["size"]), row.value) for keys, row in inside if keys["who"] == who]
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
    return figure


def _latency(rows: Sequence[Row]) -> Any:
    found = _found(rows, _LATENCY)
    panels = _unique([keys["panel"] for keys, _ in found])
    if not panels:
        return None
    figure, axes = _axes(len(panels))
    for axis, panel in zip(axes, panels, strict=True):
        bars = sorted((row.value, keys["who"]) for keys, row in found if keys["panel"] == panel)
        colours = ["tab:orange" if who.startswith("ours") else "tab:blue" for _, who in bars]
        axis.barh([who for _, who in bars], [value for value, _ in bars], color=colours)
        axis.set(title=f"64 B there and back, {panel}", xlabel="us", xscale="log")
    return figure


def _efficiency(rows: Sequence[Row]) -> Any:
    found = _found(rows, _EFFICIENCY)
    operations = _unique([keys["operation"] for keys, _ in found])
    if not operations:
        return None
    figure, axes = _axes(len(operations), sharey=True)

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
    return figure
