"""The paper's figures 3 to 5: AWRT per site, alone, then search and co-allocation for each window."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.grid.cells import GROUPS, OVERHEADS, WINDOWS, Cell

_HOURS = 3600.0
_COLOURS = ("#4477aa", "#66ccee", "#228833", "#ccbb44")


def draw_groups(results: Mapping[str, Any], stem: str) -> list[str]:
    """Draw every preset and lambda whose cells are all there; returns the files."""
    files = []
    for preset, gain in GROUPS:
        cells = [
            Cell(preset, gain, window, mode, p) for window in WINDOWS for mode in "abc" for p in OVERHEADS
        ]
        if all(cell.key in results for cell in cells):
            files.append(_draw(results, preset, gain, f"{stem}-{preset}-lambda{gain:g}.png"))
    return files


def _draw(results: Mapping[str, Any], preset: str, gain: float, file: str) -> str:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(15, 4.5), layout="constrained")
    alone, *grids = figure.subplots(1, 3)
    columns = [Cell(preset, gain, window, "a", p) for window in WINDOWS for p in OVERHEADS]
    names = [f"{cell.window}\np={cell.p:g}" for cell in columns]
    _bars(alone, results, columns, names, "figure 3: alone")
    for number, (axes, window) in enumerate(zip(grids, WINDOWS, strict=True), start=4):
        columns = [Cell(preset, gain, window, mode, p) for mode in "bc" for p in OVERHEADS]
        names = [f"({cell.mode})\np={cell.p:g}" for cell in columns]
        _bars(axes, results, columns, names, f"figure {number}: {window}, (b) search, (c) co-allocation")
    top = max(axes.get_ylim()[1] for axes in grids)
    for axes in grids:
        axes.set_ylim(0, top)
    figure.suptitle(f"AWRT per site, preset {preset}, lambda {gain:g}, f <= 4, T' = T f^p")
    figure.savefig(file, dpi=110)
    return file


def _bars(
    axes: Any, results: Mapping[str, Any], cells: Sequence[Cell], names: Sequence[str], title: str
) -> None:
    width = 0.8 / len(_COLOURS)
    for site, colour in enumerate(_COLOURS):
        values = [results[cell.key]["sites"][site]["awrt_s"] / _HOURS for cell in cells]
        at = [place + (site - 1.5) * width for place in range(len(cells))]
        axes.bar(at, values, width, color=colour, label=f"site {site + 1}")
    axes.set_xticks(range(len(cells)), names, fontsize="small")
    axes.set_ylabel("AWRT, hours")
    axes.set_title(title, fontsize="medium")
    axes.legend(fontsize="small", ncols=4)
    axes.set_ylim(top=1.12 * axes.get_ylim()[1])
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)
