"""A report on DAGs, simulated or live: a folder with JSON, a page and pictures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from yarn_accel.core.dags.outcome import DagRunOutcome
from yarn_accel.launch.dag_charts import MOST_BARS, MOST_ROWS, gantt, slowdown_chart
from yarn_accel.launch.report_folder import write_report_folder
from yarn_accel.master.markup import Child, Markup, element
from yarn_accel.master.page import html_page, section
from yarn_accel.master.tables import table

#: What a page shows at most; the JSON has all.
_MOST_CURVES = 48
_MOST_TASKS = 100
_N_COLOURS = 8


def write_dag_report(outcome: DagRunOutcome, folder: Path) -> list[str]:
    """Write a report; what could not be made is said in the lines that come back.

    Raises:
        StartupError: the folder cannot be written.
    """

    def draw(folder: Path) -> None:
        # matplotlib takes a second to import.
        from yarn_accel.launch.dag_pictures import draw_gantt, draw_slowdowns

        draw_gantt(outcome, folder / "gantt.png")
        draw_slowdowns(outcome, folder / "slowdowns.png")

    return write_report_folder(folder, _document(outcome), dag_report_page(outcome), draw)


def dag_report_page(outcome: DagRunOutcome) -> str:
    """The page: self-contained, everything that comes from users as text."""
    whole = (
        f"policy {outcome.policy}, makespan {_seconds(outcome.makespan_s)}, "
        f"unfairness {outcome.unfairness:.3f}, utilisation {outcome.utilisation:.3f}, {outcome.moved} moved"
    )
    colours = {name: f"c{number % _N_COLOURS}" for number, name in enumerate(outcome.dags)}
    end_s = _end_s(outcome)
    machines = Counter(task.machine for task in outcome.tasks)
    body = element(
        "main",
        element("header", element("h1", "Workflows"), element("span", whole, class_="soft")),
        section("DAGs", "", _dags(outcome, colours)),
        section(
            "Slowdown over time",
            "SD by equation (3); 1 is undisturbed, less is delayed"
            + _cut(_MOST_CURVES, len(outcome.slowdowns)),
            _slowdowns(outcome, colours, end_s),
        ),
        section(
            "Machines", _drawn(outcome, machines), gantt(outcome, sorted(machines), "machine", colours, end_s)
        ),
        section(
            "DAGs over time",
            _drawn(outcome, outcome.dags),
            gantt(outcome, outcome.dags, "dag", colours, end_s),
        ),
        section(
            "Tasks", f"in the order of their starts{_cut(_MOST_TASKS, len(outcome.tasks))}", _tasks(outcome)
        ),
    )
    return html_page(f"{outcome.policy}: {', '.join(list(outcome.dags)[:5])}", body, is_live=False)


def _document(outcome: DagRunOutcome) -> dict[str, Any]:
    return {"policy": outcome.policy, **outcome.as_json(), "slowdowns": dict(outcome.slowdowns)}


def _dags(outcome: DagRunOutcome, colours: dict[str, str]) -> Markup:
    n_tasks = Counter(task.dag for task in outcome.tasks)
    rows: list[list[Child]] = [
        [
            [element("span", class_=f"swatch {colours[name]}"), name],
            str(n_tasks[name]),
            _seconds(each.arrival_s),
            _seconds(each.end_s),
            _seconds(each.makespan_s),
            _seconds(each.own_makespan_s),
            f"{each.slowdown:.3f}",
        ]
        for name, each in outcome.dags.items()
    ]
    columns = ("DAG", ">tasks", ">arrival", ">end", ">makespan", ">alone", ">SD")
    return table(columns, rows, "There is none.")


def _slowdowns(outcome: DagRunOutcome, colours: dict[str, str], end_s: float) -> Markup:
    shown = dict(list(outcome.slowdowns.items())[:_MOST_CURVES])
    if not shown:
        return element("p", "Not kept of this run.", class_="soft")
    names = [
        element("span", [element("span", class_=f"swatch {colours[name]}"), f"{name} "], class_="keep")
        for name in shown
    ]
    return element("div", slowdown_chart(shown, colours, end_s), element("p", names))


def _tasks(outcome: DagRunOutcome) -> Markup:
    rows: list[list[Child]] = [
        [f"{task.dag}/{task.task}", task.machine, _seconds(task.start_s), _seconds(task.end_s), task.reason]
        for task in outcome.tasks[:_MOST_TASKS]
    ]
    return table(("task", "machine", ">start", ">end", "why there"), rows, "There is none.")


def _drawn(outcome: DagRunOutcome, rows: Iterable[str]) -> str:
    n_rows, n_tasks = len(list(rows)), len(outcome.tasks)
    parts = [(MOST_ROWS, n_rows, "rows"), (MOST_BARS, n_tasks, "tasks")]
    cut = ", ".join(f"{most} of {n} {what}" for most, n, what in parts if n > most)
    return f"a colour for each DAG{f'; drawn are {cut}' if cut else ''}"


def _cut(most: int, n: int) -> str:
    return f"; the first {most} of {n}" if n > most else ""


def _end_s(outcome: DagRunOutcome) -> float:
    return max(each.end_s for each in outcome.dags.values())


def _seconds(value: float) -> str:
    return f"{value:,.1f} s"
