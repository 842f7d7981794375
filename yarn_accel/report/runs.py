"""Reports on runs of tasks and of DAGs, simulated or live: a folder with JSON, a page and pictures.

``outcome.json`` is what happened, ``index.html`` shows it without needing anything else, and the pictures are
drawn with matplotlib, where that is installed.
"""

from __future__ import annotations

import importlib.util
import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from markupsafe import Markup

from yarn_accel.core.dags.outcome import DagRunOutcome
from yarn_accel.core.tasks.outcome import RunOutcome, form_summaries
from yarn_accel.core.tasks.use_over_time import NodePlace, UseSteps, use_over_time
from yarn_accel.core.tasks.values import Form
from yarn_accel.core.units import format_bytes, format_duration_s
from yarn_accel.errors import StartupError
from yarn_accel.extras import install_command
from yarn_accel.local_filesystem import write_atomic
from yarn_accel.report.charts import (
    MOST_BARS,
    MOST_ROWS,
    Bar,
    Curve,
    colours_of,
    figures_table,
    gantt,
    line_chart,
    side_by_side,
    use_chart,
)
from yarn_accel.report.pages import render, swatch, table

#: Nodes whose use over time is drawn.
MAX_DRAWN_NODES = 24
#: Shortly after a DAG's arrival SD may be thousands below 0, beside which nothing else could be seen.
SHOWN_SLOWDOWNS = (-1.5, 2.0)
_N_STEPS = 240
#: A page shows no more than this; the JSON has all.
_MOST_TASKS = 100
_MOST_CURVES = 48


@dataclass(frozen=True)
class RunReport:
    """The content of a report on tasks.

    Attributes:
        places: what the nodes of `outcome.use` have.
        figures: expected times by application, as a task service's status has them.
        notes: lines for the reader on what is missing.
    """

    outcome: RunOutcome
    places: Mapping[str, NodePlace] = field(default_factory=dict)
    figures: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    notes: Sequence[str] = ()

    @property
    def end_s(self) -> float:
        """When the last thing happened that is known."""
        ends_s = [each.end_s for each in self.outcome.apps.values() if not math.isnan(each.end_s)]
        return max([*ends_s, *(task.end_s for task in self.outcome.tasks)], default=0.0)

    def use(self) -> dict[str, UseSteps]:
        """The use of the nodes to draw, in equal steps."""
        end_s = self.end_s
        nodes = list(self.outcome.use.items())[:MAX_DRAWN_NODES] if end_s > 0 else []
        return {node: use_over_time(use, end_s, _N_STEPS) for node, use in nodes if use}


def write_report(report: RunReport, folder: Path) -> list[str]:
    """Write a report on tasks; the lines that come back say what could not be made.

    Raises:
        StartupError: the folder cannot be written.
    """

    def draw(folder: Path) -> None:
        # matplotlib takes a second to import.
        from yarn_accel.report.run_pictures import draw_delays, draw_use

        draw_delays(form_summaries(report.outcome), folder / "delays.png")
        draw_use(report.use(), report.places, folder / "use.png")

    return _write_folder(folder, report.outcome.as_json(), report_page(report), draw)


def write_dag_report(outcome: DagRunOutcome, folder: Path) -> list[str]:
    """Write a report on DAGs; the lines that come back say what could not be made.

    Raises:
        StartupError: the folder cannot be written.
    """

    def draw(folder: Path) -> None:
        from yarn_accel.report.run_pictures import draw_slowdowns, draw_tasks

        draw_tasks(outcome, folder / "gantt.png")
        draw_slowdowns(outcome, SHOWN_SLOWDOWNS, folder / "slowdowns.png")

    document = {"policy": outcome.policy, **outcome.as_json(), "slowdowns": dict(outcome.slowdowns)}
    return _write_folder(folder, document, dag_report_page(outcome), draw)


def _write_folder(
    folder: Path, document: Mapping[str, Any], page: str, draw: Callable[[Path], None]
) -> list[str]:
    has_pictures = importlib.util.find_spec("matplotlib") is not None
    text = json.dumps(document, indent=1, allow_nan=False)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(folder / "outcome.json", text + "\n")
        write_atomic(folder / "index.html", page)
        if has_pictures:
            draw(folder)
    except OSError as error:
        raise StartupError(f"{folder}: {error.strerror}", cure="name a folder that may be written") from None
    missing = f"no pictures, for matplotlib is not here: {install_command('matplotlib')}"
    return [] if has_pictures else [missing]


# The page of tasks.


def report_page(report: RunReport) -> str:
    """The page on tasks."""
    outcome, n_nodes = report.outcome, len(report.outcome.use)
    cut = f"; {MAX_DRAWN_NODES} of {n_nodes} are drawn" if n_nodes > MAX_DRAWN_NODES else ""
    whole = f"makespan {_seconds(outcome.makespan_s)}, mean delay {_times(outcome.mean_delay)}"
    return render(
        Path(__file__).with_name("task_run.html"),
        title=f"{outcome.policy}: {', '.join(list(outcome.apps)[:5])}",
        is_live=False,
        summary=f"policy {outcome.policy}, {whole}",
        notes=report.notes,
        apps=_apps(outcome),
        forms=_forms(outcome),
        drawn=f"means of {report.end_s / _N_STEPS:.3g} s{cut}",
        nodes=side_by_side(_use_charts(report), "Nothing is known."),
        figures=figures_table(report.figures) if report.figures else None,
        most_tasks=_MOST_TASKS,
        tasks=_delayed_tasks(outcome),
    )


def _apps(outcome: RunOutcome) -> Markup:
    n_tasks = Counter(task.app for task in outcome.tasks)
    n_gpu = Counter(task.app for task in outcome.tasks if task.form is Form.GPU)
    rows = [
        (app, n_tasks[app], n_gpu[app], _seconds(each.start_s), _seconds(each.end_s), _times(each.delay))
        for app, each in outcome.apps.items()
    ]
    columns = ("application", ">tasks", ">on GPUs", ">start", ">end", ">delay")
    return table(columns, rows, "There is none.")


def _forms(outcome: RunOutcome) -> Markup:
    columns = ("application", "form", ">tasks", ">mean time", ">alone", ">delay", ">predicted")
    rows = []
    for each in form_summaries(outcome):
        times = (
            _seconds(each.mean_s),
            _seconds(each.alone_s),
            _times(each.delay),
            _times(each.predicted_delay),
        )
        rows.append((each.app, each.form.value, each.n_tasks, *times))
    return table(columns, rows, "No task is done.")


def _delayed_tasks(outcome: RunOutcome) -> Markup:
    known = [task for task in outcome.tasks if not math.isnan(task.delay)]
    known.sort(key=lambda task: -task.delay)
    rows = []
    for task in known[:_MOST_TASKS]:
        times = _seconds(task.start_s), _seconds(task.end_s), _times(task.delay)
        rows.append((task.task, task.node, task.form.value, *times, task.reason))
    columns = ("task", "node", "form", ">start", ">end", ">delay", "why there")
    return table(columns, rows, "Of none is it known.")


def _use_charts(report: RunReport) -> Iterator[Markup]:
    end = format_duration_s(report.end_s)
    for node, steps in report.use().items():
        place = report.places.get(node, NodePlace(0, 0, 0.0))
        yield use_chart(node, list(_use_curves(steps, place)), "0 s", end)


def _use_curves(steps: UseSteps, place: NodePlace) -> Iterator[Curve]:
    for label, values, there, colour in (
        ("GPUs", steps.gpus, place.gpus, "c0"),
        ("compute", steps.gpus_computing, place.gpus, "c3"),
        ("cores", steps.cores, place.cores, "c2"),
    ):
        if there or any(values):
            mean = sum(values) / len(values)
            yield Curve(label, values, max(there, *values, 1), f"mean {mean:.2f}", colour)
    known = [value for value in steps.io_bytes_per_s if value is not None]
    words = f"mean {format_bytes(sum(known) / len(known))}/s" if known else "not known"
    yield Curve("I/O", steps.io_bytes_per_s, max(place.bandwidth_bytes_per_s, *known, 1.0), words, "c1")


# The page of DAGs.


def dag_report_page(outcome: DagRunOutcome) -> str:
    """The page on DAGs."""
    colours = colours_of(outcome.dags)
    end_s = max(each.end_s for each in outcome.dags.values())
    machines = sorted({task.machine for task in outcome.tasks})
    slowdowns = dict(list(outcome.slowdowns.items())[:_MOST_CURVES])
    return render(
        Path(__file__).with_name("dag_run.html"),
        title=f"{outcome.policy}: {', '.join(list(outcome.dags)[:5])}",
        is_live=False,
        summary=(
            f"policy {outcome.policy}, makespan {_seconds(outcome.makespan_s)}, "
            f"unfairness {outcome.unfairness:.3f}, utilisation {outcome.utilisation:.3f}, "
            f"{outcome.moved} moved"
        ),
        dags=_dags(outcome, colours),
        slowdowns=line_chart(slowdowns, colours, end_s, SHOWN_SLOWDOWNS, "SD") if slowdowns else None,
        slowdowns_cut=_cut(_MOST_CURVES, len(outcome.slowdowns)),
        legend=[(swatch(colours[name]), name) for name in slowdowns],
        machines=gantt(_task_bars(outcome, "machine", colours), machines, end_s),
        machines_drawn=_drawn(outcome, len(machines)),
        dags_over_time=gantt(_task_bars(outcome, "dag", colours), outcome.dags, end_s),
        dags_drawn=_drawn(outcome, len(outcome.dags)),
        tasks=_first_tasks(outcome),
        tasks_cut=_cut(_MOST_TASKS, len(outcome.tasks)),
    )


def _task_bars(outcome: DagRunOutcome, attribute: str, colours: Mapping[str, str]) -> Iterator[Bar]:
    """A bar for each task; `attribute` of the task names its row."""
    for task in outcome.tasks:
        when = f"{task.start_s:.6g} to {task.end_s:.6g} s"
        words = f"{task.dag}/{task.task} on {task.machine}: {when}; {task.reason}"
        yield Bar(getattr(task, attribute), task.start_s, task.end_s, colours[task.dag], words)


def _dags(outcome: DagRunOutcome, colours: Mapping[str, str]) -> Markup:
    n_tasks = Counter(task.dag for task in outcome.tasks)
    rows = []
    for name, each in outcome.dags.items():
        times = (each.arrival_s, each.end_s, each.makespan_s, each.own_makespan_s)
        named = [swatch(colours[name]), name]
        rows.append((named, n_tasks[name], *map(_seconds, times), f"{each.slowdown:.3f}"))
    columns = ("DAG", ">tasks", ">arrival", ">end", ">makespan", ">alone", ">SD")
    return table(columns, rows, "There is none.")


def _first_tasks(outcome: DagRunOutcome) -> Markup:
    rows = [
        (f"{task.dag}/{task.task}", task.machine, _seconds(task.start_s), _seconds(task.end_s), task.reason)
        for task in outcome.tasks[:_MOST_TASKS]
    ]
    return table(("task", "machine", ">start", ">end", "why there"), rows, "There is none.")


def _drawn(outcome: DagRunOutcome, n_rows: int) -> str:
    parts = [(MOST_ROWS, n_rows, "rows"), (MOST_BARS, len(outcome.tasks), "tasks")]
    cut = ", ".join(f"{most} of {n} {what}" for most, n, what in parts if n > most)
    return f"a colour for each DAG{f'; drawn are {cut}' if cut else ''}"


def _cut(most: int, n: int) -> str:
    return f"; the first {most} of {n}" if n > most else ""


def _seconds(value: float) -> str:
    return "not known" if math.isnan(value) else f"{value:,.1f} s"


def _times(value: float) -> str:
    return "not known" if math.isnan(value) else f"{value:.2f} ×"
