"""The pictures of a report on tasks (figures 2, 3, 4, 10 of the HDAS paper) or DAGs (10 of the MPS paper)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from yarn_accel.core.tasks.outcome import FormSummary, RunOutcome
from yarn_accel.core.tasks.use_over_time import NodePlace, UseSteps
from yarn_accel.report.charts import Bar
from yarn_accel.report.figures import colour_of, cut_name, draw_gantt, draw_groups, draw_rate, drawing

_MAX_BARS = 60
_MOST_LABELLED = 200
#: Names in a legend.
_MOST_NAMED = 20


def draw_delays(summaries: Sequence[FormSummary], path: Path) -> None:
    """Bars by application and form: mean delay, beside the predicted one."""
    shown = summaries[:_MAX_BARS]
    delays = {
        "happened": [each.delay for each in shown],
        "predicted": [each.predicted_delay for each in shown],
    }
    known = {name: [0.0 if math.isnan(each) else each for each in values] for name, values in delays.items()}
    names = [f"{cut_name(each.app)}\n{each.form.value}, {each.n_tasks}" for each in shown]
    with drawing(path, (max(6.0, 0.7 * len(shown)), 4.0), dpi=90) as (_, grid):
        axes = grid[0, 0]
        draw_groups(axes, names, known, ("#4477aa", "#ccbb44"))
        axes.axhline(1.0, color="#666666", linewidth=0.8)
        axes.set_ylabel("time of a task, alone = 1")
        axes.legend(fontsize="small")


def draw_use(use: Mapping[str, UseSteps], places: Mapping[str, NodePlace], path: Path) -> None:
    """A row for each node: GPUs that tasks hold, those that compute, and the I/O."""
    n_rows = max(1, len(use))
    with drawing(path, (11.0, 0.8 + 1.9 * n_rows), n_rows, dpi=80, sharex=True) as (_, grid):
        for axes, (node, steps) in zip(grid[:, 0], use.items(), strict=False):
            at_s = [number * steps.step_s for number in range(len(steps.gpus))]
            place = places.get(node)
            has_gpus = any(steps.gpus) or (place is not None and place.gpus > 0)
            held, word = (steps.gpus, "GPUs") if has_gpus else (steps.cores, "cores")
            axes.plot(at_s, held, color="#4477aa", linewidth=0.9, label=f"{word} held")
            if has_gpus:
                computing = steps.gpus_computing
                axes.plot(at_s, computing, color="#222222", linewidth=0.9, label="GPUs that compute")
            axes.set_ylim(bottom=0)
            axes.margins(x=0.01)
            axes.set_ylabel(word)
            axes.set_title(cut_name(node), fontsize="small", loc="left")
            mb_s = [math.nan if value is None else value / 1e6 for value in steps.io_bytes_per_s]
            other = draw_rate(axes, at_s, mb_s, "I/O, MB/s")
            other.set_ylabel("MB/s")
            # Below the curves, which are at the top most of the time.
            axes.legend(fontsize="x-small", loc="lower left", ncols=2)
            other.legend(fontsize="x-small", loc="lower right")
        grid[-1, 0].set_xlabel("s")


def draw_tasks(outcome: RunOutcome, path: Path) -> None:
    """When each task ran: machines above, DAGs below; a colour for each DAG."""
    machines = sorted({task.node for task in outcome.tasks})
    names = list(outcome.apps)
    colours = {name: colour_of(number) for number, name in enumerate(names)}
    is_labelled = len(outcome.tasks) <= _MOST_LABELLED
    size = (12, min(60.0, 2 + 0.28 * (len(machines) + len(names))))
    heights = {"height_ratios": [len(machines), len(names)]}
    with drawing(path, size, 2, sharex=True, gridspec_kw=heights) as (_, grid):
        above, below = grid[:, 0]
        for axes, rows, attribute in ((above, machines, "node"), (below, names, "app")):
            bars = [
                Bar(getattr(each, attribute), each.start_s, each.end_s, each.app, each.task * is_labelled)
                for each in outcome.tasks
            ]
            draw_gantt(axes, rows, bars, colours)
        above.set_title(
            f"{outcome.policy}: makespan {outcome.makespan_s:.6g} s, {outcome.fairness.words}, "
            f"utilisation {outcome.utilisation:.3f}"
        )
        below.set_xlabel("seconds")


def draw_slowdowns(outcome: RunOutcome, limits: tuple[float, float], path: Path) -> None:
    """SD over time of each DAG, a point for each decision.

    Args:
        limits: what is shown of SD.
    """
    with drawing(path, (12, 5)) as (_, grid):
        axes = grid[0, 0]
        for number, (name, points) in enumerate(outcome.slowdowns.items()):
            label = cut_name(name) if number < _MOST_NAMED else "_"
            style = {"marker": "o", "markersize": 2.5, "linewidth": 1, "color": colour_of(number)}
            axes.plot(*zip(*points, strict=True), label=label, **style)
        axes.axhline(1.0, color="#666666", linewidth=0.8)
        lowest, highest = axes.get_ylim()
        axes.set_ylim(max(lowest, limits[0]), min(highest, limits[1]))
        axes.set_title(f"{outcome.policy}: slowdown SD over time; 1 is undisturbed")
        axes.set_xlabel("seconds")
        axes.legend(fontsize="x-small", loc="best")
