"""Charts of a run of DAGs for its page: when each task ran, and SD over time (the paper's Figure 10)."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from yarn_accel.core.dags.outcome import DagRunOutcome, DagTaskOutcome
from yarn_accel.core.units import format_duration_s
from yarn_accel.master.markup import Markup, element

#: What is drawn at most.
MOST_ROWS = 200
MOST_BARS = 5_000
_MOST_POINTS = 400
#: Shortly after a DAG's arrival SD may be thousands below 0, beside which nothing else could be seen.
SHOWN_SLOWDOWNS = (-1.5, 2.0)
_N_TICKS = 6
_WIDTH, _LEFT, _BAR, _FOOT = 1100.0, 150.0, 18.0, 18.0
_PLOT_HEIGHT, _PLOT_TOP = 240.0, 8.0


def lanes(tasks: Iterable[DagTaskOutcome]) -> tuple[list[int], int]:
    """In which lane each task is drawn so that none hides another one, and how many lanes there are.

    >>> bars = [DagTaskOutcome("d", str(i), "m", start, start + 2.0, "") for i, start in enumerate((0, 1, 2))]
    >>> lanes(bars)
    ([0, 1, 0], 2)
    """
    ordered = list(tasks)
    ends_s: list[float] = []
    found = [0] * len(ordered)
    for number in sorted(range(len(ordered)), key=lambda each: (ordered[each].start_s, each)):
        task = ordered[number]
        free = next((lane for lane, end_s in enumerate(ends_s) if end_s <= task.start_s), len(ends_s))
        ends_s[free:] = [task.end_s, *ends_s[free + 1 :]]
        found[number] = free
    return found, max(1, len(ends_s))


def gantt(
    outcome: DagRunOutcome, rows: Iterable[str], attribute: str, colours: Mapping[str, str], end_s: float
) -> Markup:
    """A row for each machine or DAG, a bar for each task; tasks at once lie below each other.

    Args:
        attribute: of a task, which names its row.
        colours: DAG -> class of the style sheet.
    """
    of_row: dict[str, list[DagTaskOutcome]] = defaultdict(list)
    for task in outcome.tasks[:MOST_BARS]:
        of_row[getattr(task, attribute)].append(task)
    shown = list(rows)[:MOST_ROWS]
    height = _BAR * len(shown)
    return element(
        "svg",
        list(_time_axis(end_s, 0.0, height)),
        [_row(row, of_row[row], _BAR * number, end_s, colours) for number, row in enumerate(shown)],
        viewBox=f"0 0 {_WIDTH:g} {height + _FOOT:g}",
        class_="use",
    )


def slowdown_chart(
    slowdowns: Mapping[str, Sequence[tuple[float, float]]], colours: Mapping[str, str], end_s: float
) -> Markup:
    """SD of each DAG over time, a line each; 1 is undisturbed."""
    values = [value for points in slowdowns.values() for _, value in points]
    least, most = SHOWN_SLOWDOWNS
    low = max(least, math.floor(2 * min([0.0, *values])) / 2)
    high = min(most, math.ceil(2 * max([1.0, *values])) / 2)
    scale = _PLOT_HEIGHT / (high - low)

    def y_of(value: float) -> float:
        return _PLOT_TOP + (high - min(max(value, low), high)) * scale

    marks = [low + 0.5 * number for number in range(round((high - low) / 0.5) + 1)]
    return element(
        "svg",
        list(_time_axis(end_s, _PLOT_TOP, _PLOT_HEIGHT)),
        [_level(mark, y_of(mark)) for mark in marks],
        [_line(name, points, y_of, end_s, colours[name]) for name, points in slowdowns.items() if points],
        viewBox=f"0 0 {_WIDTH:g} {_PLOT_TOP + _PLOT_HEIGHT + _FOOT:g}",
        class_="use",
    )


def _x(at_s: float, end_s: float) -> float:
    return _LEFT + at_s * (_WIDTH - _LEFT) / (end_s or 1.0)


def _time_axis(end_s: float, top: float, height: float) -> Iterator[Markup]:
    """Vertical lines at round times; the last one is the end."""
    step_s = _round_step(end_s / _N_TICKS)
    n_steps = int((end_s or 1.0) / step_s)
    ticks = [step_s * number for number in range(n_steps + 1)]
    # The end has its own words, beside which another one needs space.
    ticks = [each for each in ticks if each < 0.9 * end_s] + [end_s]
    for at_s in ticks:
        x = f"{_x(at_s, end_s):.1f}"
        yield element("path", d=f"M{x} {top:g}V{top + height:g}", style="stroke:var(--edge);fill:none")
        words = "0 s" if not at_s else format_duration_s(at_s)
        place = {"class_": "end"} if at_s == end_s else {}
        yield element("text", words, x=x, y=f"{top + height + 13:g}", **place)


def _round_step(at_least_s: float) -> float:
    """1, 2 or 5 times a power of ten, or whole minutes and hours."""
    if at_least_s <= 0:
        return 1.0
    whole = [number * unit for unit in (1.0, 60.0, 3600.0, 86400.0) for number in (1, 2, 5, 10, 20, 30)]
    if 0.5 < at_least_s <= whole[-1]:
        return next(each for each in sorted(whole) if each >= at_least_s)
    power: float = 10.0 ** math.floor(math.log10(at_least_s))
    return next(number * power for number in (1, 2, 5, 10) if number * power >= at_least_s)


def _level(mark: float, y: float) -> Markup:
    stroke = "var(--soft)" if mark == 1 else "var(--edge)"
    return element(
        "g",
        element("path", d=f"M{_LEFT:g} {y:.1f}H{_WIDTH:g}", style=f"stroke:{stroke};fill:none"),
        element("text", f"SD {mark:g}", x=_LEFT - 6, y=f"{y + 4:.1f}", class_="end"),
    )


def _line(
    name: str,
    points: Sequence[tuple[float, float]],
    y_of: Callable[[float], float],
    end_s: float,
    colour: str,
) -> Markup:
    every = -(-len(points) // _MOST_POINTS)
    drawn = [*points[:-1:every], points[-1]]
    path = "L".join(f"{_x(at_s, end_s):.1f} {y_of(value):.1f}" for at_s, value in drawn)
    return element(
        "path",
        element("title", f"{name}: SD {points[-1][1]:.3f} at {points[-1][0]:.6g} s"),
        d=f"M{path}",
        class_=f"curve {colour}",
    )


def _row(
    name: str, tasks: Sequence[DagTaskOutcome], y: float, end_s: float, colours: Mapping[str, str]
) -> Iterator[Markup]:
    yield element("text", name, x=_LEFT - 6, y=y + 13, class_="end")
    found, n_lanes = lanes(tasks)
    height = (_BAR - 2) / n_lanes
    for task, lane in zip(tasks, found, strict=True):
        when = f"{task.start_s:.6g} to {task.end_s:.6g} s"
        words = f"{task.dag}/{task.task} on {task.machine}: {when}; {task.reason}"
        start, end = _x(task.start_s, end_s), _x(task.end_s, end_s)
        yield element(
            "rect",
            element("title", words),
            x=f"{start:.2f}",
            y=f"{y + 1 + lane * height:.2f}",
            width=f"{max(0.3, end - start):.2f}",
            height=f"{height:.2f}",
            class_=colours[task.dag],
            style="fill:var(--colour);stroke:var(--paper);stroke-width:.5",
        )
