"""Page and metrics of a task service: DAGs, applications, workers over time, figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from yarn_accel.core.units import format_duration_s
from yarn_accel.master.plugin import Section
from yarn_accel.report.charts import figures_table, progress_bar, side_by_side, use_chart, use_curves
from yarn_accel.report.pages import markup, status, table
from yarn_accel.report.task_tables import MAX_ROWS, DoneCell, StateCell, StatusTable, status_tables

if TYPE_CHECKING:
    from prometheus_client.core import Metric

_Values = Mapping[str, Any]
_USED = (
    ("task_core_seconds", "for which attempts that ended held cores", "core_s"),
    ("task_gpu_seconds", "for which attempts that ended held GPUs", "gpu_s"),
    ("task_read_bytes", "of input that attempts that ended read", "read_bytes"),
)
_WORKER_SUMS = {
    "task_cores": ("of all workers of the task service", "n_cores"),
    "task_cores_in_use": ("by attempts that run", "cores"),
    "task_gpus": ("of all workers of the task service", "n_gpus"),
    "task_gpus_in_use": ("by attempts that run", "gpus"),
    "task_nodes_io_bytes_per_second": (
        "of everybody on the nodes of workers, as they last said",
        "bytes_per_s",
    ),
}


def sections(tasks: _Values, at: float) -> Iterator[Section]:
    """The parts of the page.

    Args:
        tasks: of the state document, see `LiveTaskService.document`.
        at: its Unix time.
    """
    problems = [markup('<p class="bad">problem: {}</p>', each) for each in tasks["problems"]]
    if "apps" not in tasks:
        yield "Applications of tasks", "", problems
        return
    *applications, workers = status_tables(tasks, at, MAX_ROWS)
    for each in applications:
        yield each.title, each.note, [*problems, _filled(each)]
        problems = []
    use = tasks["use"]
    yield "Workers over time", f"{workers.note}; {_drawn(use)}", [_charts(use), _filled(workers)]
    if tasks["figures"]:
        yield "Figures", "of a task alone, beside what happened", [figures_table(tasks["figures"])]


def _filled(shown: StatusTable) -> Markup:
    rows = [[*map(_cell, each.cells), "; ".join(each.notes)] for each in shown.rows]
    return table((*shown.columns, "notes"), rows, shown.otherwise)


def _cell(value: object) -> object:
    if isinstance(value, StateCell):
        return status(*value)
    return [str(value), progress_bar(*value)] if isinstance(value, DoneCell) else value


def _charts(use: _Values) -> Markup:
    named = [("all workers together", use["all"]), *use["workers"].items()]
    charts = (_chart(name, each, use["step_s"]) for name, each in named if each["cores"])
    return side_by_side(charts, "Nothing was reported yet.")


def _chart(name: str, use: _Values, step_s: float) -> Markup:
    return use_chart(name, use_curves(use), f"{format_duration_s(len(use['cores']) * step_s)} ago", "now")


def _drawn(use: _Values) -> str:
    n_drawn = len(use["workers"])
    cut = f", {n_drawn} of {use['n_workers']} are drawn" if n_drawn < use["n_workers"] else ""
    return f"means of {use['step_s']:g} s{cut}"


def families(tasks: _Values) -> Iterator[Metric]:
    """The metrics: of applications and workers only counts and sums, for their names are the users'."""
    # Not before somebody wants them: they cost the ApplicationMaster memory.
    from yarn_accel.master.metrics import counter, gauge

    if "apps" not in tasks:
        return
    apps, workers = tasks["apps"].values(), tasks["workers"].values()
    by_state = Counter((app["state"],) for app in apps)
    yield gauge("task_applications", "that have not ended, by state", ("state",), sorted(by_state.items()))
    counts: Counter[tuple[str]] = Counter()
    for app in apps:
        counts.update({(state,): n for state, n in app["tasks"].items()})
    yield gauge("tasks", "of these applications, by state", ("state",), sorted(counts.items()))
    known = [app["delay"] for app in apps if app["delay"] is not None]
    text = "largest mean delay of an application that runs: time of its tasks over their time alone"
    yield gauge("task_delay_ratio", text, (), [((), max(known, default=None))])
    yield gauge("task_workers", "that report", (), [((), sum(not w["is_expected"] for w in workers))])
    yield gauge("task_workers_wanted", "for what waits and runs", (), [((), tasks["workers_wanted"])])
    for name, (text, key) in _WORKER_SUMS.items():
        yield gauge(name, text, (), [((), sum(worker[key] or 0 for worker in workers))])
    yield gauge("task_journal_failing", "1 while it is not written", (), [((), bool(tasks["problems"]))])
    labels, attempts = ("form", "end"), tasks["attempts"]
    ended = [((form, end), n) for form, end, n, _ in attempts]
    yield counter("task_attempts", "that ended since this master started", labels, ended)
    if used := tasks.get("used"):
        user = (str(used["user"]),)
        for name, text, key in _USED:
            yield counter(name, text, ("user",), [(user, used[key])])
    ran = [((form, end), seconds) for form, end, _, seconds in attempts]
    yield counter("task_attempt_seconds", "for which these ran", labels, ran)
