"""Pictures drawn with matplotlib, for reports of commands; no daemon imports this module.

::

    with drawing(folder / "use.png", (12, 6), rows=2, sharex=True) as (figure, axes):
        axes[0, 0].plot(at_s, gpus)

Names come from users, so text is drawn as it is: without formulas, and cut to its place by `cut_name`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter, LogFormatterMathtext

from yarn_accel.report.charts import Bar, lanes

#: Okabe and Ito's colours, which people without colour vision can tell apart, too.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#999999")
_AS_TEXT: Any = {"text.parse_math": False, "text.usetex": False}
_LONGEST_NAME = 24


@contextmanager
def drawing(
    file: str | Path | IO[bytes],
    size: tuple[float, float],
    rows: int = 1,
    columns: int = 1,
    *,
    mosaic: Sequence[Sequence[str]] = (),
    dpi: int = 110,
    **options: Any,
) -> Iterator[tuple[Any, Any]]:
    """Yield a figure and the array of its axes, (rows, columns); write it as PNG at the end.

    Args:
        size: width and height in inches.
        mosaic: names by row and column, in place of a grid; the axes are then a mapping by name.
        options: of `Figure.subplots` or `Figure.subplot_mosaic`, such as ``sharex``.
    """
    with matplotlib.rc_context(_AS_TEXT):
        figure: Any = Figure(figsize=size, layout="constrained")
        if mosaic:
            yield figure, figure.subplot_mosaic(mosaic, **options)
        else:
            yield figure, figure.subplots(rows, columns, squeeze=False, **options)
        for axes in figure.axes:
            _write_powers_plainly(axes)
        figure.savefig(file, format="png", dpi=dpi, facecolor="white")


def _write_powers_plainly(axes: Any) -> None:
    """Numbers at a logarithmic axis without formulas, which are not drawn."""
    for axis in (axes.xaxis, axes.yaxis):
        if isinstance(axis.get_major_formatter(), LogFormatterMathtext):
            axis.set_major_formatter(LogFormatter())
        if isinstance(axis.get_minor_formatter(), LogFormatterMathtext):
            axis.set_minor_formatter(LogFormatter(minor_thresholds=(1, 0.4)))


def cut_name(name: str) -> str:
    """A name that fits beside an axis."""
    return name if len(name) <= _LONGEST_NAME else f"{name[:11]}…{name[-12:]}"


def colour_of(number: int) -> Any:
    """One of ten colours, in turn."""
    return matplotlib.colormaps["tab10"](number % 10)


def draw_groups(
    axes: Any,
    labels: Sequence[str],
    series: Mapping[str, Sequence[float]],
    colours: Mapping[str, str] | Sequence[str] = COLOURS,
) -> None:
    """A group of bars for each label, with a bar of each series side by side."""
    width = 0.8 / len(series)
    for number, (name, values) in enumerate(series.items()):
        colour = colours[name] if isinstance(colours, Mapping) else colours[number % len(colours)]
        middle = number - (len(series) - 1) / 2
        places = [place + middle * width for place in range(len(labels))]
        axes.bar(places, values, width, color=colour, label=name)
    axes.set_xticks(range(len(labels)), labels, fontsize="small")


def draw_gantt(axes: Any, rows: Sequence[str], bars: Sequence[Bar], colours: Mapping[str, Any]) -> None:
    """A row for each name, a bar for each task with its words; tasks at once lie below each other.

    Args:
        bars: `colour` of each is a key of `colours`.
    """
    of_row: dict[str, list[Bar]] = defaultdict(list)
    for bar in bars:
        of_row[bar.row].append(bar)
    for number, row in enumerate(rows):
        inside = of_row[row]
        found, n_lanes = lanes([(bar.start_s, bar.end_s) for bar in inside])
        height = 0.8 / n_lanes
        for bar, lane in zip(inside, found, strict=True):
            low, took_s = number - 0.4 + lane * height, bar.end_s - bar.start_s
            axes.broken_barh(
                [(bar.start_s, took_s)],
                (low, height),
                facecolors=colours[bar.colour],
                edgecolor="white",
                linewidth=0.5,
            )
            place = (bar.start_s + took_s / 2, low + height / 2)
            size = 6 if n_lanes < 3 else 4
            axes.text(*place, bar.words, ha="center", va="center", fontsize=size, clip_on=True)
    axes.set_yticks(range(len(rows)), [cut_name(row) for row in rows], fontsize=7)
    axes.set_ylim(len(rows) - 0.5, -0.5)


def draw_rate(axes: Any, at_s: Sequence[float], mb_s: Sequence[float], label: str = "") -> Any:
    """MB/s over time, with an axis of their own on the right, which comes back."""
    other = axes.twinx()
    other.plot(at_s, mb_s, color="#bb5566", linewidth=0.8, label=label)
    other.set_ylim(bottom=0)
    return other
