"""The part of the tracking page about DAGs: class, progress, slowdown now, predicted end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from yarn_accel.core.units import format_duration_s
from yarn_accel.master.markup import Child, Markup, element
from yarn_accel.master.tables import table

_MAX_ROWS = 100
_STATES = {"done": "good", "failed": "bad", "cancelled": "warn"}
_WAITING = ("waiting", "ready", "queued")
_COLUMNS = (
    *("DAG", "class", "state", ">waiting", ">running", ">done", "progress", ">SD", ">alone", ">for"),
    *(">predicted end", ">moved", ">interrupted", "error"),
)
_Values = Mapping[str, Any]


def dag_section(tasks: _Values, at: float) -> Iterator[Markup]:
    """The section; none where there is no DAG.

    Args:
        tasks: of the state document.
        at: its Unix time.
    """
    rows = [(name, row) for name, row in tasks["apps"].items() if "dag" in row]
    rows += [(name, row) for name, row in reversed(tasks["ended"].items()) if "dag" in row]
    if not rows:
        return
    n_cut = max(0, len(rows) - _MAX_ROWS)
    cut = f"; {n_cut} more are left out" if n_cut else ""
    note = element("small", f"policy {tasks['policy']}; SD: alone over in all, 1 is undisturbed{cut}")
    cells = [_row(name, row, at) for name, row in rows[:_MAX_ROWS]]
    yield element("section", element("h2", "DAGs", note), table(_COLUMNS, cells, ""))


def _row(name: str, row: _Values, at: float) -> list[Child]:
    counts, dag = row["tasks"], row["dag"]
    n_tasks, n_done = sum(counts.values()), counts.get("done", 0)
    state = "paused" if dag.get("is_paused") else row["state"]
    sd, own_s, end_at = dag["sd"], dag["own_makespan_s"], dag.get("predicted_end_at")
    until = row.get("ended_at") or at
    return [
        name,
        dag["class"],
        element("span", state, class_=f"keep {_STATES.get(state, 'idle')}"),
        f"{sum(counts.get(each, 0) for each in _WAITING):,}",
        f"{counts.get('running', 0):,}",
        f"{n_done:,} of {n_tasks:,}",
        _progress(n_done, n_tasks),
        "" if sd is None else f"{sd:.3f}",
        "" if own_s is None else format_duration_s(own_s),
        format_duration_s(max(0.0, until - row["begun_at"])) if row["begun_at"] else "",
        "" if end_at is None else f"in {format_duration_s(max(0.0, end_at - at))}",
        str(dag["n_moved"]),
        str(dag["n_interrupted"]),
        row["error"],
    ]


def _progress(n_done: int, n_tasks: int) -> Markup:
    width = 100 * n_done / (n_tasks or 1)
    return element(
        "svg",
        element("title", f"{n_done} of {n_tasks} tasks are done"),
        element("rect", width=100, height=8, rx=2, class_="trough"),
        element("rect", width=f"{width:.1f}", height=8, rx=2, class_="fill"),
        viewBox="0 0 100 8",
        width=100,
        height=8,
    )
