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
from typing import Any, NamedTuple

from markupsafe import Markup

from yarn_accel.core.tasks.outcome import AppOutcome, RunOutcome, form_summaries
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
    """The content of a report on applications or DAGs.

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
    """Write a report; the lines that come back say what could not be made.

    Raises:
        StartupError: the folder cannot be written.
    """
    outcome = report.outcome
    document = outcome.as_json()
    if outcome.is_of_dags:
        document = {"policy": outcome.policy, **document, "slowdowns": dict(outcome.slowdowns)}
    has_pictures = importlib.util.find_spec("matplotlib") is not None
    text = json.dumps(document, indent=1, allow_nan=False)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(folder / "outcome.json", text + "\n")
        write_atomic(folder / "index.html", report_page(report))
        if has_pictures:
            _draw(report, folder)
    except OSError as error:
        raise StartupError(f"{folder}: {error.strerror}", cure="name a folder that may be written") from None
    missing = f"no pictures, for matplotlib is not here: {install_command('matplotlib')}"
    return [] if has_pictures else [missing]


def _draw(report: RunReport, folder: Path) -> None:
    # matplotlib takes a second to import.
    from yarn_accel.report import run_pictures

    if report.outcome.is_of_dags:
        run_pictures.draw_tasks(report.outcome, folder / "gantt.png")
        run_pictures.draw_slowdowns(report.outcome, SHOWN_SLOWDOWNS, folder / "slowdowns.png")
    else:
        run_pictures.draw_delays(form_summaries(report.outcome), folder / "delays.png")
        run_pictures.draw_use(report.use(), report.places, folder / "use.png")


def report_page(report: RunReport) -> str:
    """The page."""
    return _dag_page(report.outcome) if report.outcome.is_of_dags else _task_page(report)


# The summary, on pages and in the commands.


class SummaryRow(NamedTuple):
    """One application or DAG, or (at the end) all."""

    name: str
    n_tasks: int
    n_gpu: int
    app: AppOutcome


class Column(NamedTuple):
    """A column of the summary.

    Attributes:
        unit: of its numbers: ``s``, ``×`` or none.
        digits: after the decimal point.
        is_summed: whether it has a value for all together.
    """

    heading: str
    value: Callable[[SummaryRow], float]
    unit: str = ""
    digits: int = 0
    is_summed: bool = False


_TASKS = Column("tasks", lambda row: row.n_tasks, is_summed=True)
_END = Column("end", lambda row: row.app.end_s, "s", 1, is_summed=True)
_COLUMNS_OF_TASKS = (
    _TASKS,
    Column("on GPUs", lambda row: row.n_gpu, is_summed=True),
    Column("start", lambda row: row.app.start_s, "s", 1, is_summed=True),
    _END,
    Column("mean delay", lambda row: row.app.delay, "×", 3, is_summed=True),
)
_COLUMNS_OF_DAGS = (
    _TASKS,
    Column("arrival", lambda row: row.app.start_s, "s", 1),
    _END,
    Column("makespan", lambda row: row.app.makespan_s, "s", 1, is_summed=True),
    Column("alone", lambda row: row.app.own_makespan_s, "s", 1),
    Column("SD", lambda row: row.app.slowdown, "", 3),
)


def summary(outcome: RunOutcome) -> tuple[tuple[Column, ...], list[SummaryRow]]:
    """The columns, and a row for each application or DAG; the last row is of all."""
    n_tasks = Counter(task.app for task in outcome.tasks)
    n_gpu = Counter(task.app for task in outcome.tasks if task.form is Form.GPU)
    rows = [SummaryRow(name, n_tasks[name], n_gpu[name], each) for name, each in outcome.apps.items()]
    apps = outcome.apps.values()
    first_s = min((each.start_s for each in apps), default=math.nan)
    together = AppOutcome(first_s, first_s + outcome.makespan_s, outcome.mean_delay)
    rows.append(SummaryRow("all", len(outcome.tasks), sum(n_gpu.values()), together))
    return _COLUMNS_OF_DAGS if outcome.is_of_dags else _COLUMNS_OF_TASKS, rows


def summary_line(outcome: RunOutcome) -> str:
    """The figures of the whole run, in words."""
    if outcome.is_of_dags:
        return (
            f"makespan {outcome.makespan_s:.1f} s, {outcome.fairness.words}, "
            f"utilisation {outcome.utilisation:.3f}, {outcome.moved} moved"
        )
    makespan = "not known" if math.isnan(outcome.makespan_s) else f"{outcome.makespan_s:.1f} s"
    delay = "not known" if math.isnan(outcome.mean_delay) else f"{outcome.mean_delay:.3f}"
    return f"makespan {makespan}, mean delay {delay}"


def _summary_table(outcome: RunOutcome, colours: Mapping[str, str] | None = None) -> Markup:
    columns, rows = summary(outcome)
    shown = [
        (
            row.name if colours is None else [swatch(colours[row.name]), row.name],
            *(_number(column, column.value(row)) for column in columns),
        )
        for row in rows[:-1]
    ]
    first = "DAG" if outcome.is_of_dags else "application"
    return table((first, *(f">{each.heading}" for each in columns)), shown, "There is none.")


def _number(column: Column, value: float) -> str:
    if math.isnan(value):
        return "not known"
    unit = f" {column.unit}" if column.unit else ""
    return f"{value:,.{column.digits}f}{unit}"


# The page of tasks.


def _task_page(report: RunReport) -> str:
    outcome, n_nodes = report.outcome, len(report.outcome.use)
    cut = f"; {MAX_DRAWN_NODES} of {n_nodes} are drawn" if n_nodes > MAX_DRAWN_NODES else ""
    return render(
        Path(__file__).with_name("task_run.html"),
        title=f"{outcome.policy}: {', '.join(list(outcome.apps)[:5])}",
        is_live=False,
        summary=f"policy {outcome.policy}, {summary_line(outcome)}",
        notes=report.notes,
        apps=_summary_table(outcome),
        forms=_forms(outcome),
        drawn=f"means of {report.end_s / _N_STEPS:.3g} s{cut}",
        nodes=side_by_side(_use_charts(report), "Nothing is known."),
        figures=figures_table(report.figures) if report.figures else None,
        most_tasks=_MOST_TASKS,
        tasks=_delayed_tasks(outcome),
    )


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


def _dag_page(outcome: RunOutcome) -> str:
    colours = colours_of(outcome.apps)
    end_s = max(each.end_s for each in outcome.apps.values())
    machines = sorted({task.node for task in outcome.tasks})
    slowdowns = dict(list(outcome.slowdowns.items())[:_MOST_CURVES])
    return render(
        Path(__file__).with_name("dag_run.html"),
        title=f"{outcome.policy}: {', '.join(list(outcome.apps)[:5])}",
        is_live=False,
        summary=f"policy {outcome.policy}, {summary_line(outcome)}",
        dags=_summary_table(outcome, colours),
        slowdowns=line_chart(slowdowns, colours, end_s, SHOWN_SLOWDOWNS, "SD") if slowdowns else None,
        slowdowns_cut=_cut(_MOST_CURVES, len(outcome.slowdowns)),
        legend=[(swatch(colours[name]), name) for name in slowdowns],
        machines=gantt(_task_bars(outcome, "node", colours), machines, end_s),
        machines_drawn=_drawn(outcome, len(machines)),
        dags_over_time=gantt(_task_bars(outcome, "app", colours), outcome.apps, end_s),
        dags_drawn=_drawn(outcome, len(outcome.apps)),
        tasks=_first_tasks(outcome),
        tasks_cut=_cut(_MOST_TASKS, len(outcome.tasks)),
    )


def _task_bars(outcome: RunOutcome, attribute: str, colours: Mapping[str, str]) -> Iterator[Bar]:
    """A bar for each task; `attribute` of the task names its row."""
    for task in outcome.tasks:
        when = f"{task.start_s:.6g} to {task.end_s:.6g} s"
        words = f"{task.app}/{task.task} on {task.node}: {when}; {task.reason}"
        yield Bar(getattr(task, attribute), task.start_s, task.end_s, colours[task.app], words)


def _first_tasks(outcome: RunOutcome) -> Markup:
    rows = [
        (f"{task.app}/{task.task}", task.node, _seconds(task.start_s), _seconds(task.end_s), task.reason)
        for task in outcome.tasks[:_MOST_TASKS]
    ]
    return table(("task", "machine", ">start", ">end", "why there"), rows, "There is none.")


def _drawn(outcome: RunOutcome, n_rows: int) -> str:
    parts = [(MOST_ROWS, n_rows, "rows"), (MOST_BARS, len(outcome.tasks), "tasks")]
    cut = ", ".join(f"{most} of {n} {what}" for most, n, what in parts if n > most)
    return f"a colour for each DAG{f'; drawn are {cut}' if cut else ''}"


def _cut(most: int, n: int) -> str:
    return f"; the first {most} of {n}" if n > most else ""


def _seconds(value: float) -> str:
    return "not known" if math.isnan(value) else f"{value:,.1f} s"


def _times(value: float) -> str:
    return "not known" if math.isnan(value) else f"{value:.2f} ×"
