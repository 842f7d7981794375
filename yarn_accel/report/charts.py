"""SVG charts, and the table of tasks' figures, for the status page and the reports of commands.

Functions here compute places and lengths; `charts.svg` has the markup. Colours are classes of the style.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from markupsafe import Markup

from yarn_accel.core.units import format_bytes, format_duration_s
from yarn_accel.report.pages import macros, markup, table

#: Colours c0, c1, ... of the style sheet.
N_COLOURS = 8
#: A Gantt chart draws no more than this.
MOST_ROWS = 200
MOST_BARS = 5_000
_MOST_POINTS = 400
_MOST_FIGURES = 100
_FIGURE_COLUMNS = (
    *("name", "form", ">reads", ">read, s", ">compute, s", ">measured", ">predicted, s", ">happened, s"),
    ">error",
)
_N_TICKS = 6

# A worker's use over time.
_WIDTH, _LEFT, _RIGHT = 372.0, 54.0, 276.0
_TOP, _HEIGHT, _GAP, _FOOT = 26.0, 30.0, 8.0, 14.0

# Charts as wide as the page.
_PAGE_WIDTH, _PAGE_LEFT, _BAR, _PAGE_FOOT = 1100.0, 150.0, 18.0, 18.0
_PLOT_HEIGHT, _PLOT_TOP = 240.0, 8.0


@dataclass(frozen=True, slots=True)
class Curve:
    """One value over time, in equal steps.

    Attributes:
        values: of each step; None: a gap.
        top: the value that fills the height.
        words: text beside the curve.
        colour: c0 to c7.
    """

    label: str
    values: Sequence[float | None]
    top: float
    words: str
    colour: str


class Bar(NamedTuple):
    """A task in a Gantt chart.

    Attributes:
        row: name of the row it lies in.
        colour: c0 to c7.
        words: the tooltip.
    """

    row: str
    start_s: float
    end_s: float
    colour: str
    words: str


def colours_of(names: Iterable[str]) -> dict[str, str]:
    """A colour for each name; many names take them in turn."""
    return {name: f"c{number % N_COLOURS}" for number, name in enumerate(names)}


def lanes(spans: Sequence[tuple[float, float]]) -> tuple[list[int], int]:
    """The lane of each span of time, so that none hides another one, and how many lanes there are.

    >>> lanes([(0, 2), (1, 3), (2, 4)])
    ([0, 1, 0], 2)
    """
    ends: list[float] = []
    found = [0] * len(spans)
    for number in sorted(range(len(spans)), key=lambda each: (spans[each][0], each)):
        start, end = spans[number]
        free = next((lane for lane, until in enumerate(ends) if until <= start), len(ends))
        ends[free : free + 1] = [end]
        found[number] = free
    return found, max(1, len(ends))


def use_chart(title: str, curves: Sequence[Curve], begin: str, end: str) -> Markup:
    """A small picture with a row for each curve, as figures 3, 4 and 10 of the HDAS paper.

    Args:
        begin: text below the first step.
        end: below the last one.
    """
    rows = []
    for number, curve in enumerate(curves):
        y = _TOP + number * (_HEIGHT + _GAP)
        rows.append((curve, y, _HEIGHT, " ".join(_steps(curve, y))))
    height = _TOP + len(curves) * (_HEIGHT + _GAP) + _FOOT
    return _drawn().use(title, rows, begin, end, _WIDTH, height, _LEFT, _RIGHT)  # type: ignore[no-any-return]


def use_curves(use: Mapping[str, Any]) -> list[Curve]:
    """The curves of a worker, or of all together, as `UseSamples.document` has them."""
    curves = []
    for label, key, colour in (("GPUs", "gpus", "c0"), ("cores", "cores", "c2")):
        values = use[key]
        there = use.get(f"n_{key}") or 0
        if there or key == "cores" or any(values):
            top = max(there, *_known(values), 1)
            last = _last(values)
            words = f"{last:.1f} of {there}" if there else f"{last:.1f}"
            curves.append(Curve(label, values, top, words, colour))
    values = use["bytes_per_s"]
    top = max(use.get("bandwidth_bytes_per_s") or 0, *_known(values), 1)
    words = f"{format_bytes(_last(values))}/s" if any(values) else "none seen"
    curves.append(Curve("I/O", values, top, words, "c1"))
    return curves


def spark(values: Sequence[float], title: str) -> Markup | None:
    """A curve of the last steps, the highest of them at the top; None: it has less than two."""
    if len(values) < 2:
        return None
    top = max(*values, 1e-9)
    line = "M" + " L".join(f"{i} {30 - 28 * value / top:.2f}" for i, value in enumerate(values))
    return _drawn().spark(title, line, len(values) - 1)  # type: ignore[no-any-return]


def progress_bar(n_done: int, n_tasks: int) -> Markup:
    """How many tasks are done."""
    return _drawn().progress(n_done, n_tasks)  # type: ignore[no-any-return]


def gantt(bars: Iterable[Bar], rows: Iterable[str], end_s: float) -> Markup:
    """A row for each name, a bar for each task; tasks that run at once lie below each other."""
    of_row: dict[str, list[Bar]] = defaultdict(list)
    for bar in list(bars)[:MOST_BARS]:
        of_row[bar.row].append(bar)
    shown = list(rows)[:MOST_ROWS]
    drawn = [(name, _BAR * n, list(_bars(of_row[name], _BAR * n, end_s))) for n, name in enumerate(shown)]
    height = _BAR * len(shown)
    return _drawn().gantt(  # type: ignore[no-any-return]
        list(_ticks(end_s)), drawn, _PAGE_WIDTH, height, _PAGE_FOOT, _PAGE_LEFT
    )


def line_chart(
    lines: Mapping[str, Sequence[tuple[float, float]]],
    colours: Mapping[str, str],
    end_s: float,
    limits: tuple[float, float],
    unit: str,
) -> Markup:
    """A line for each name, of (second, value); values are shown within the limits, and 0 and 1 always.

    Args:
        unit: before each value, such as ``SD``.
    """
    values = [value for points in lines.values() for _, value in points]
    low = max(limits[0], math.floor(2 * min([0.0, *values])) / 2)
    high = min(limits[1], math.ceil(2 * max([1.0, *values])) / 2)

    def y_of(value: float) -> float:
        return _PLOT_TOP + (high - min(max(value, low), high)) * _PLOT_HEIGHT / (high - low)

    levels = [low + 0.5 * number for number in range(round((high - low) / 0.5) + 1)]
    paths = []
    for name, points in lines.items():
        if points:
            drawn = [*points[: -1 : -(-len(points) // _MOST_POINTS)], points[-1]]
            path = "L".join(f"{_x(at_s, end_s):.1f} {y_of(value):.1f}" for at_s, value in drawn)
            words = f"{name}: {unit} {points[-1][1]:.3f} at {points[-1][0]:.6g} s"
            paths.append((f"M{path}", words, colours[name]))
    return _drawn().lines(  # type: ignore[no-any-return]
        list(_ticks(end_s)),
        [(round(y_of(each), 1), f"{unit} {each:g}", each == 1) for each in levels],
        paths,
        _PAGE_WIDTH,
        _PLOT_TOP,
        _PLOT_HEIGHT,
        _PAGE_FOOT,
        _PAGE_LEFT,
    )


def figures_table(figures: Mapping[str, Sequence[Mapping[str, Any]]]) -> Markup:
    """The expected times of an undisturbed task, by name and form, beside the times of those that ran.

    Args:
        figures: of the task service's status.
    """
    rows = [(name, row) for name, forms in figures.items() for row in forms]
    shown = [_figures_row(*each) for each in rows[:_MOST_FIGURES]]
    return table(_FIGURE_COLUMNS, shown, "Nothing was measured yet.")


def side_by_side(charts: Iterable[Markup], otherwise: str) -> Markup:
    """Small charts in rows; the text `otherwise` where there is none."""
    shown = list(charts)
    if not shown:
        return markup('<div class="soft">{}</div>', otherwise)
    return markup('<div class="uses">{}</div>', Markup().join(shown))


def _drawn() -> Any:
    return macros(Path(__file__).with_name("charts.svg"))


def _figures_row(name: str, row: Mapping[str, Any]) -> list[object]:
    error = row["mean_error"]
    return [
        name,
        f"{row['form']} ({row['accelerator']})" if row["accelerator"] else row["form"],
        format_bytes(row["split_bytes"]),
        f"{row['read_s']:.3g}",
        f"{row['compute_s']:.3g}",
        row["n_measured"],
        _number(row["predicted_s"]),
        _number(row["happened_s"]),
        "" if error is None else f"{100 * error:.0f} %",
    ]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def _steps(curve: Curve, y: float) -> Iterator[str]:
    """A line that is level in each step, and ends at gaps."""
    width = (_RIGHT - _LEFT) / max(len(curve.values), 1)
    is_drawing = False
    for i, value in enumerate(curve.values):
        if value is None:
            is_drawing = False
            continue
        at = y + _HEIGHT - 1 - (_HEIGHT - 2) * min(max(value / curve.top, 0.0), 1.0)
        yield f"{'L' if is_drawing else 'M'}{_LEFT + i * width:.1f} {at:.1f}H{_LEFT + (i + 1) * width:.1f}"
        is_drawing = True


def _known(values: Iterable[float | None]) -> list[float]:
    return [0.0, *(value for value in values if value is not None)]


def _last(values: Sequence[float | None]) -> float:
    return next((value for value in reversed(values) if value is not None), 0.0)


def _bars(bars: Sequence[Bar], y: float, end_s: float) -> Iterator[tuple[object, ...]]:
    found, n_lanes = lanes([(bar.start_s, bar.end_s) for bar in bars])
    height = (_BAR - 2) / n_lanes
    for bar, lane in zip(bars, found, strict=True):
        start, end = _x(bar.start_s, end_s), _x(bar.end_s, end_s)
        places = (start, y + 1 + lane * height, max(0.3, end - start), height)
        yield *(f"{each:.2f}" for each in places), bar.colour, bar.words


def _x(at_s: float, end_s: float) -> float:
    return _PAGE_LEFT + at_s * (_PAGE_WIDTH - _PAGE_LEFT) / (end_s or 1.0)


def _ticks(end_s: float) -> Iterator[tuple[str, str, str]]:
    """Place, text and class of round times; the last one is the end."""
    step_s = _round_step(end_s / _N_TICKS)
    times_s = [step_s * number for number in range(int((end_s or 1.0) / step_s) + 1)]
    # The end has its own words, beside which another one needs space.
    for at_s in [each for each in times_s if each < 0.9 * end_s] + [end_s]:
        words = format_duration_s(at_s) if at_s else "0 s"
        yield f"{_x(at_s, end_s):.1f}", words, "end" if at_s == end_s else "tick"


def _round_step(at_least_s: float) -> float:
    """1, 2 or 5 times a power of ten, or whole minutes and hours."""
    if at_least_s <= 0:
        return 1.0
    whole = [number * unit for unit in (1.0, 60.0, 3600.0, 86400.0) for number in (1, 2, 5, 10, 20, 30)]
    if 0.5 < at_least_s <= whole[-1]:
        return next(each for each in sorted(whole) if each >= at_least_s)
    power: float = 10.0 ** math.floor(math.log10(at_least_s))
    return next(number * power for number in (1, 2, 5, 10) if number * power >= at_least_s)
