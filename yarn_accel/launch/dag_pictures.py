"""The pictures of a report on DAGs: when each task ran, and the paper's Figure 10."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from yarn_accel.core.dags.outcome import DagRunOutcome, DagTaskOutcome
from yarn_accel.launch.dag_charts import SHOWN_SLOWDOWNS, lanes
from yarn_accel.launch.task_pictures import AS_TEXT, cut_name

_MOST_LABELLED = 200
#: Names in a legend.
_MOST_NAMED = 20


def draw_gantt(outcome: DagRunOutcome, path: Path) -> None:
    """Write a PNG: machines above, DAGs below; a colour per DAG."""
    machines = sorted({task.machine for task in outcome.tasks})
    names = list(outcome.dags)
    colours = {name: _colour(number) for number, name in enumerate(names)}
    height = min(60.0, 2 + 0.28 * (len(machines) + len(names)))
    with matplotlib.rc_context(AS_TEXT):
        figure = Figure(figsize=(12, height), layout="constrained")
        above, below = figure.subplots(
            2, 1, sharex=True, gridspec_kw={"height_ratios": [len(machines), len(names)]}
        )
        for axes, rows, attribute in ((above, machines, "machine"), (below, names, "dag")):
            of_row: dict[str, list[DagTaskOutcome]] = defaultdict(list)
            for task in outcome.tasks:
                of_row[getattr(task, attribute)].append(task)
            for number, row in enumerate(rows):
                _draw_row(axes, number, of_row[row], colours, len(outcome.tasks) <= _MOST_LABELLED)
            axes.set_yticks(range(len(rows)), [cut_name(row) for row in rows], fontsize=7)
            axes.set_ylim(len(rows) - 0.5, -0.5)
        above.set_title(
            f"{outcome.policy}: makespan {outcome.makespan_s:.6g} s, unfairness {outcome.unfairness:.3f}, "
            f"utilisation {outcome.utilisation:.3f}"
        )
        below.set_xlabel("seconds")
        figure.savefig(path, format="png", dpi=110)


def _draw_row(
    axes: Axes, number: int, tasks: Sequence[DagTaskOutcome], colours: dict[str, Any], has_names: bool
) -> None:
    """Tasks that ran at once below each other."""
    found, n_lanes = lanes(tasks)
    height = 0.8 / n_lanes
    for task, lane in zip(tasks, found, strict=True):
        low, took_s = number - 0.4 + lane * height, task.end_s - task.start_s
        axes.broken_barh(
            [(task.start_s, took_s)],
            (low, height),
            facecolors=colours[task.dag],
            edgecolor="white",
            linewidth=0.5,
        )
        if has_names:
            place = (task.start_s + took_s / 2, low + height / 2)
            axes.text(
                *place, task.task, ha="center", va="center", fontsize=6 if n_lanes < 3 else 4, clip_on=True
            )


def draw_slowdowns(outcome: DagRunOutcome, path: Path) -> None:
    """Write a PNG: SD over time of each DAG, as in Figure 10; a point per decision."""
    with matplotlib.rc_context(AS_TEXT):
        figure = Figure(figsize=(12, 5), layout="constrained")
        axes = figure.subplots()
        for number, (name, points) in enumerate(outcome.slowdowns.items()):
            label = cut_name(name) if number < _MOST_NAMED else "_"
            at_s, values = zip(*points, strict=True)
            colour = _colour(number)
            axes.plot(at_s, values, marker="o", markersize=2.5, linewidth=1, color=colour, label=label)
        axes.axhline(1.0, color="#666666", linewidth=0.8)
        (lowest, highest), (least, most) = axes.get_ylim(), SHOWN_SLOWDOWNS
        axes.set_ylim(max(lowest, least), min(highest, most))
        axes.set_title(f"{outcome.policy}: slowdown SD over time; 1 is undisturbed")
        axes.set_xlabel("seconds")
        axes.legend(fontsize="x-small", loc="best")
        figure.savefig(path, format="png", dpi=110)


def _colour(number: int) -> Any:
    return colormaps["tab10"](number % 10)
