"""The part of the tracking page about tasks: DAGs, applications, workers over time, figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from yarn_accel.core.units import format_bytes, format_duration_s
from yarn_accel.report.charts import figures_table, progress_bar, side_by_side, use_chart, use_curves
from yarn_accel.report.pages import markup, status, table

#: Of each table.
MAX_TASK_ROWS = 100
_STATES = {"done": "good", "failed": "bad", "cancelled": "warn"}
_WAITING = ("waiting", "ready", "queued")
_APP_COLUMNS = (
    *("application", "state", ">waiting", ">running", ">done", ">failed", ">cores", ">GPUs", ">share"),
    *(">delay", ">predicted", ">for", "error"),
)
_DAG_COLUMNS = (
    *("DAG", "class", "state", ">waiting", ">running", ">done", "progress", ">SD", ">alone", ">for"),
    *(">predicted end", ">moved", ">interrupted", "error"),
)
_WORKER_COLUMNS = ("worker", "state", ">cores", ">GPUs", ">I/O", ">running", ">next", ">heard", "problem")
_Values = Mapping[str, Any]
_Section = tuple[str, str, Sequence[Markup]]


def task_sections(tasks: _Values | None, at: float) -> Iterator[_Section]:
    """Title, note and content of each section; none without a task service.

    Args:
        tasks: of the state document.
        at: its Unix time.
    """
    if tasks is None:
        return
    problems = [markup('<p class="bad">problem: {}</p>', each) for each in tasks["problems"]]
    if "apps" not in tasks:
        yield "Applications of tasks", "", problems
        return
    known = [*tasks["apps"].items(), *reversed(tasks["ended"].items())]
    dags = [(name, row) for name, row in known if "dag" in row]
    apps = [(name, row) for name, row in known if "dag" not in row]
    policy = f"policy {tasks['policy']}"
    if dags:
        rows = [_dag_row(name, row, at) for name, row in dags[:MAX_TASK_ROWS]]
        note = f"{policy}; SD: alone over in all, 1 is undisturbed{_cut(len(dags))}"
        yield "DAGs", note, [table(_DAG_COLUMNS, rows)]
    if apps or problems or not known:
        rows = [_app_row(name, row, at) for name, row in apps[:MAX_TASK_ROWS]]
        shown = table(_APP_COLUMNS, rows, "None was submitted yet.")
        yield "Applications of tasks", f"{policy}{_cut(len(apps))}", [*problems, shown]
    use = tasks["use"]
    yield "Workers over time", _drawn(use), [_charts(use), _workers(tasks["workers"])]
    if tasks["figures"]:
        yield "Figures", "of a task alone, beside what happened", [figures_table(tasks["figures"])]


def _app_row(name: str, row: _Values, at: float) -> list[object]:
    counts, is_over = row["tasks"], "ended_at" in row
    n_tasks = sum(counts.get(each, 0) for each in (*_WAITING, "running", "done", "failed", "cancelled"))
    return [
        name,
        _state(row["state"]),
        _n_waiting(counts),
        counts.get("running", 0),
        f"{counts.get('done', 0):,} of {n_tasks:,}",
        counts.get("failed", 0),
        "" if is_over else row["cores"],
        "" if is_over else row["gpus"],
        "" if is_over else f"{100 * row['share']:.0f} %",
        _times(row["delay"]),
        _times(row["predicted_delay"]),
        _ran_for(row, at),
        row["error"],
    ]


def _dag_row(name: str, row: _Values, at: float) -> list[object]:
    counts, dag = row["tasks"], row["dag"]
    n_tasks, n_done = sum(counts.values()), counts.get("done", 0)
    sd, own_s, end_at = dag["sd"], dag["own_makespan_s"], dag.get("predicted_end_at")
    return [
        name,
        dag["class"],
        _state("paused" if dag.get("is_paused") else row["state"]),
        _n_waiting(counts),
        counts.get("running", 0),
        f"{n_done:,} of {n_tasks:,}",
        progress_bar(n_done, n_tasks),
        "" if sd is None else f"{sd:.3f}",
        "" if own_s is None else format_duration_s(own_s),
        _ran_for(row, at),
        "" if end_at is None else f"in {format_duration_s(max(0.0, end_at - at))}",
        dag["n_moved"],
        dag["n_interrupted"],
        row["error"],
    ]


def _state(state: str) -> Markup:
    return status(_STATES.get(state, "idle"), state)


def _n_waiting(counts: _Values) -> int:
    return sum(counts.get(each, 0) for each in _WAITING)


def _ran_for(row: _Values, at: float) -> str:
    return (
        format_duration_s(max(0.0, (row.get("ended_at") or at) - row["begun_at"])) if row["begun_at"] else ""
    )


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


def _workers(workers: _Values) -> Markup:
    rows = [_worker_row(name, row) for name, row in list(workers.items())[:MAX_TASK_ROWS]]
    return table(_WORKER_COLUMNS, rows, "There is no worker; one starts when something waits.")


def _worker_row(name: str, row: _Values) -> list[object]:
    kind, word = ("warn", "expected") if row["is_expected"] else ("good", "there")
    kind, word = ("idle", "leaves") if row["is_leaving"] else (kind, word)
    rate = row["bytes_per_s"]
    return [
        name,
        status(kind, word),
        f"{row['cores']} of {row['n_cores']}",
        f"{row['gpus']} of {row['n_gpus']}",
        "" if rate is None else f"{format_bytes(rate)}/s",
        len(row["running"]),
        len(row["queued"]),
        "" if row["is_expected"] else f"{row['silent_s']:.1f} s ago",
        row["problem"],
    ]


def _times(value: float | None) -> str:
    return "not known" if value is None else f"{value:.2f} ×"


def _cut(n: int) -> str:
    return f"; {n - MAX_TASK_ROWS} more are left out" if n > MAX_TASK_ROWS else ""
