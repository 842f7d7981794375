"""A report on applications, simulated or live: a folder with JSON, a page and pictures.

``outcome.json`` is what happened, ``index.html`` shows it without needing anything else, and ``use.png`` and
``delays.png`` are drawn with matplotlib, where that is installed.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from yarn_accel.core.tasks.outcome import FormSummary, RunOutcome, TaskOutcome, form_summaries
from yarn_accel.core.tasks.use_over_time import NodePlace, UseSteps, use_over_time
from yarn_accel.core.tasks.values import Form
from yarn_accel.core.units import format_bytes, format_duration_s
from yarn_accel.launch.report_folder import write_report_folder
from yarn_accel.master.markup import Child, Markup, element
from yarn_accel.master.page import html_page, section
from yarn_accel.master.tables import table
from yarn_accel.master.task_page import figures_table
from yarn_accel.master.use_charts import Curve, use_chart

#: Nodes whose use over time is drawn.
MAX_DRAWN_NODES = 24
_N_STEPS = 240
_MAX_TASKS = 100


@dataclass(frozen=True)
class RunReport:
    """What a report shows.

    Attributes:
        places: what the nodes of `outcome.use` have.
        figures: what is believed of applications, by name, as a task service's status has it.
        notes: what its reader should know.
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
    """Write a report; what could not be made is said in the lines that come back.

    Raises:
        StartupError: the folder cannot be written.
    """

    def draw(folder: Path) -> None:
        # matplotlib takes a second to import.
        from yarn_accel.launch.task_pictures import draw_delays, draw_use

        draw_delays(form_summaries(report.outcome), folder / "delays.png")
        draw_use(report.use(), report.places, folder / "use.png")

    return write_report_folder(folder, report.outcome.as_json(), report_page(report), draw)


def report_page(report: RunReport) -> str:
    """The page: self-contained, everything that comes from users as text."""
    outcome = report.outcome
    whole = f"makespan {_seconds(outcome.makespan_s)}, mean delay {_times(outcome.mean_delay)}"
    words = f"policy {outcome.policy}, {whole}"
    notes = element("ul", [element("li", note) for note in report.notes]) if report.notes else None
    body = element(
        "main",
        element("header", element("h1", "Applications of tasks"), element("span", words, class_="soft")),
        element("section", element("h2", "What is not known"), notes, class_="problems") if notes else None,
        section("Applications", "from submission to the end of the last task", _apps(outcome)),
        section(
            "Tasks by form",
            "time over time alone, beside what was predicted",
            _forms(form_summaries(outcome)),
        ),
        section("Nodes over time", _drawn(report), _charts(report)),
        section(
            "Figures", "what is believed of a task alone, beside what happened", figures_table(report.figures)
        )
        if report.figures
        else None,
        section("Tasks that were delayed most", f"at most {_MAX_TASKS}", _tasks(outcome.tasks)),
    )
    return html_page(f"{outcome.policy}: {', '.join(list(outcome.apps)[:5])}", body, is_live=False)


def _apps(outcome: RunOutcome) -> Markup:
    n_tasks: dict[str, int] = defaultdict(int)
    n_gpu: dict[str, int] = defaultdict(int)
    for task in outcome.tasks:
        n_tasks[task.app] += 1
        n_gpu[task.app] += task.form is Form.GPU
    rows: list[list[Child]] = [
        [
            app,
            str(n_tasks[app]),
            str(n_gpu[app]),
            _seconds(each.start_s),
            _seconds(each.end_s),
            _times(each.delay),
        ]
        for app, each in outcome.apps.items()
    ]
    columns = ("application", ">tasks", ">on GPUs", ">start", ">end", ">delay")
    return table(columns, rows, "There is none.")


def _forms(summaries: Iterable[FormSummary]) -> Markup:
    rows: list[list[Child]] = [
        [
            each.app,
            each.form.value,
            str(each.n_tasks),
            _seconds(each.mean_s),
            _seconds(each.alone_s),
            _times(each.delay),
            _times(each.predicted_delay),
        ]
        for each in summaries
    ]
    columns = ("application", "form", ">tasks", ">mean time", ">alone", ">delay", ">predicted")
    return table(columns, rows, "No task is done.")


def _tasks(tasks: Sequence[TaskOutcome]) -> Markup:
    known = [task for task in tasks if not math.isnan(task.delay)]
    known.sort(key=lambda task: -task.delay)
    rows: list[list[Child]] = [
        [
            task.task,
            task.node,
            task.form.value,
            _seconds(task.start_s),
            _seconds(task.end_s),
            _times(task.delay),
            task.reason,
        ]
        for task in known[:_MAX_TASKS]
    ]
    columns = ("task", "node", "form", ">start", ">end", ">delay", "why there")
    return table(columns, rows, "Of none is it known.")


def _drawn(report: RunReport) -> str:
    n_nodes = len(report.outcome.use)
    cut = f"; {MAX_DRAWN_NODES} of {n_nodes} are drawn" if n_nodes > MAX_DRAWN_NODES else ""
    return f"means of {report.end_s / _N_STEPS:.3g} s{cut}"


def _charts(report: RunReport) -> Markup:
    end = format_duration_s(report.end_s)
    charts = [
        use_chart(node, list(_curves(steps, report.places.get(node, NodePlace(0, 0, 0.0)))), "0 s", end)
        for node, steps in report.use().items()
    ]
    return element("div", charts or "Nothing is known.", class_="uses" if charts else "soft")


def _curves(steps: UseSteps, place: NodePlace) -> Iterator[Curve]:
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


def _seconds(value: float) -> str:
    return "not known" if math.isnan(value) else f"{value:,.1f} s"


def _times(value: float) -> str:
    return "not known" if math.isnan(value) else f"{value:.2f} ×"
