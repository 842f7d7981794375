"""The part of the tracking page about applications of tasks: workers over time, applications, figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from yarn_accel.core.units import format_bytes, format_duration_s
from yarn_accel.master.dag_page import dag_section
from yarn_accel.master.markup import Child, Markup, element
from yarn_accel.master.tables import table
from yarn_accel.master.use_charts import use_chart, use_curves

#: Of each table.
MAX_TASK_ROWS = 100
_STATES = {"done": "good", "failed": "bad", "cancelled": "warn"}
_COUNTS = ("waiting", "ready", "queued", "running", "done", "failed", "cancelled")
_Values = Mapping[str, Any]


def task_sections(tasks: _Values | None, at: float) -> Iterator[Markup]:
    """The sections; none without a task service.

    Args:
        tasks: of the state document.
        at: its Unix time.
    """
    if tasks is None:
        return
    problems = [element("p", f"problem: {each}", class_="bad") for each in tasks["problems"]]
    if "apps" not in tasks:
        yield element("section", element("h2", "Applications of tasks"), problems)
        return
    workers, use = tasks["workers"], tasks["use"]
    known = [*tasks["apps"].items(), *reversed(tasks["ended"].items())]
    rows = [(name, row) for name, row in known if "dag" not in row]
    n_cut = max(0, len(rows) - MAX_TASK_ROWS)
    shown = rows[:MAX_TASK_ROWS]
    yield from dag_section(tasks, at)
    if rows or problems or not known:
        yield element(
            "section",
            element(
                "h2", "Applications of tasks", element("small", f"policy {tasks['policy']}{_cut(n_cut)}")
            ),
            problems,
            table(_APP_COLUMNS, [_app_row(name, row, at) for name, row in shown], "None was submitted yet."),
        )
    yield element("section", element("h2", "Workers over time", _note(use)), _charts(use), _workers(workers))
    if tasks["figures"]:
        heading = element("h2", "Figures", element("small", "of a task alone, beside what happened"))
        yield element("section", heading, figures_table(tasks["figures"]))


_APP_COLUMNS = (
    *("application", "state", ">waiting", ">running", ">done", ">failed", ">cores", ">GPUs", ">share"),
    *(">delay", ">predicted", ">for", "error"),
)


def _app_row(name: str, row: _Values, at: float) -> list[Child]:
    counts = row["tasks"]
    n_tasks = sum(counts.get(each, 0) for each in _COUNTS)
    n_waiting = sum(counts.get(each, 0) for each in ("waiting", "ready", "queued"))
    is_over = "ended_at" in row
    ended_at = row["ended_at"] if is_over else at
    return [
        name,
        element("span", row["state"], class_=f"keep {_STATES.get(row['state'], 'idle')}"),
        f"{n_waiting:,}",
        f"{counts.get('running', 0):,}",
        f"{counts.get('done', 0):,} of {n_tasks:,}",
        f"{counts.get('failed', 0):,}",
        "" if is_over else str(row["cores"]),
        "" if is_over else str(row["gpus"]),
        "" if is_over else f"{100 * row['share']:.0f} %",
        _times(row["delay"]),
        _times(row["predicted_delay"]),
        format_duration_s(max(0.0, ended_at - row["begun_at"])) if row["begun_at"] else "",
        row["error"],
    ]


def _charts(use: _Values) -> Markup:
    whole = use["all"]
    workers = use["workers"].items()
    named = [("all workers together", whole), *workers]
    charts = [_chart(name, each, use["step_s"]) for name, each in named if each["cores"]]
    return element("div", charts or "Nothing was reported yet.", class_="uses" if charts else "soft")


def _chart(name: str, use: _Values, step_s: float) -> Markup:
    return use_chart(name, use_curves(use), f"{format_duration_s(len(use['cores']) * step_s)} ago", "now")


def _note(use: _Values) -> Markup | None:
    n_drawn = len(use["workers"])
    cut = f", {n_drawn} of {use['n_workers']} are drawn" if n_drawn < use["n_workers"] else ""
    return element("small", f"means of {use['step_s']:g} s{cut}")


def _workers(workers: _Values) -> Markup:
    columns = ("worker", "state", ">cores", ">GPUs", ">I/O", ">running", ">next", ">heard", "problem")
    rows = [_worker_row(name, row) for name, row in list(workers.items())[:MAX_TASK_ROWS]]
    return table(columns, rows, "There is no worker; one starts when something waits.")


def _worker_row(name: str, row: _Values) -> list[Child]:
    kind, word = ("warn", "expected") if row["is_expected"] else ("good", "there")
    kind, word = ("idle", "leaves") if row["is_leaving"] else (kind, word)
    rate = row["bytes_per_s"]
    return [
        name,
        element("span", word, class_=f"keep {kind}"),
        f"{row['cores']} of {row['n_cores']}",
        f"{row['gpus']} of {row['n_gpus']}",
        "" if rate is None else f"{format_bytes(rate)}/s",
        str(len(row["running"])),
        str(len(row["queued"])),
        "" if row["is_expected"] else f"{row['silent_s']:.1f} s ago",
        row["problem"],
    ]


def figures_table(figures: Mapping[str, Sequence[_Values]]) -> Markup:
    """What is believed of a task that nobody disturbs, by name and form, and of those that ran what happened.

    Args:
        figures: of the task service's status.
    """
    columns = (
        *("name", "form", ">reads", ">read, s", ">compute, s", ">measured", ">predicted, s", ">happened, s"),
        ">error",
    )
    rows = [(name, row) for name, forms in figures.items() for row in forms]
    return table(columns, [_figures_row(*each) for each in rows[:MAX_TASK_ROWS]], "Nothing was measured yet.")


def _figures_row(name: str, row: _Values) -> list[Child]:
    kind = f" ({row['accelerator']})" if row["accelerator"] else ""
    error = row["mean_error"]
    return [
        name,
        f"{row['form']}{kind}",
        format_bytes(row["split_bytes"]),
        f"{row['read_s']:.3g}",
        f"{row['compute_s']:.3g}",
        str(row["n_measured"]),
        _number(row["predicted_s"]),
        _number(row["happened_s"]),
        "" if error is None else f"{100 * error:.0f} %",
    ]


def _times(value: float | None) -> str:
    return "not known" if value is None else f"{value:.2f} ×"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def _cut(n_cut: int) -> str:
    return f"; {n_cut} more are left out" if n_cut else ""
