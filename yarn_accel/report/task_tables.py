"""The tables of a task service's status: columns, and cells as plain values.

The page (`yarn_accel.master.tasks.views`) and the commands `tasks` and `dag` (`yarn_accel.launch.task_view`)
show these same tables, the one as HTML, the others as text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from yarn_accel.core.fairness import fairness
from yarn_accel.core.units import format_bytes, format_duration_s

#: Of each table.
MAX_ROWS = 100
_STATES = {"done": "good", "failed": "bad", "cancelled": "warn"}
_WAITING = ("waiting", "ready", "queued")
_APP_COLUMNS = (
    *("application", "state", ">waiting", ">running", ">done", ">failed", ">cores", ">GPUs", ">share"),
    *(">delay", ">predicted", ">for"),
)
_DAG_COLUMNS = (
    *("DAG", "class", "state", ">waiting", ">running", ">done", ">SD", ">alone", ">for", ">ends in"),
)
_WORKER_COLUMNS = ("worker", "state", ">cores", ">GPUs", ">I/O", ">running", ">next", ">heard")
_Values = Mapping[str, Any]
#: Name and status of applications or DAGs.
Apps = Sequence[tuple[str, _Values]]


class StateCell(NamedTuple):
    """A cell: a word, and whether it is good, warn, bad or idle."""

    kind: str
    word: str

    def __str__(self) -> str:
        return self.word


class DoneCell(NamedTuple):
    """A cell: how many of so many tasks are done."""

    n_done: int
    n_tasks: int

    def __str__(self) -> str:
        return f"{self.n_done:,} of {self.n_tasks:,}"


class StatusRow(NamedTuple):
    """One application, DAG or worker.

    Attributes:
        cells: texts, numbers, `StateCell` and `DoneCell`; None: not known. The first is the name.
        notes: errors and costs, which few have.
    """

    cells: Sequence[object]
    notes: Sequence[str] = ()


class StatusTable(NamedTuple):
    """A table.

    Attributes:
        note: a line about the whole.
        columns: names; those of texts that stand for numbers begin with ``>``.
        otherwise: the text where there are no rows.
    """

    title: str
    note: str
    columns: Sequence[str]
    rows: Sequence[StatusRow]
    otherwise: str = ""


def known_apps(status: _Values) -> Apps:
    """The applications and DAGs of a status: those that run first, then the others, the last one first."""
    return [*status["apps"].items(), *reversed(status["ended"].items())]


def dags_of(apps: Apps) -> Apps:
    """Those that are DAGs."""
    return [(name, row) for name, row in apps if "dag" in row]


def status_tables(status: _Values, at: float, n_ended: int) -> list[StatusTable]:
    """The DAGs, where there are any, the other applications, and the workers.

    Args:
        status: of the service, see `LiveTaskService.status`.
        at: its Unix time.
        n_ended: so many are shown of those that ended.
    """
    known = known_apps(status)
    dags, apps = dags_of(known), [(name, row) for name, row in known if "dag" not in row]
    found = [dag_table(status, dags, at, n_ended)] if dags else []
    if apps or not dags:
        shown = _shown(apps, n_ended)
        note = f"policy {status['policy']}{_cut(apps, shown)}"
        rows = [_app_row(name, row, at) for name, row in shown]
        found.append(
            StatusTable("Applications of tasks", note, _APP_COLUMNS, rows, "None was submitted yet.")
        )
    workers = list(status["workers"].items())[:MAX_ROWS]
    otherwise = "There is no worker; one starts when something waits."
    rows = [_worker_row(name, row) for name, row in workers]
    return [*found, StatusTable("Workers", workers_note(status), _WORKER_COLUMNS, rows, otherwise)]


def dag_table(status: _Values, dags: Apps, at: float, n_ended: int) -> StatusTable:
    """These DAGs, with their fairness in the note."""
    shown = _shown(dags, n_ended)
    known = slowdowns(dags)
    note = f"policy {status['policy']}; SD: alone over in all, 1 is undisturbed"
    if known:
        note += f"; {fairness(known).words} of {len(known)}"
    rows = [_dag_row(name, row, at) for name, row in shown]
    return StatusTable("DAGs", f"{note}{_cut(dags, shown)}", _DAG_COLUMNS, rows)


def slowdowns(dags: Apps) -> list[float]:
    """SD of each of these DAGs of which it is known."""
    return [row["dag"]["sd"] for _, row in dags if row["dag"]["sd"] is not None]


def workers_note(status: _Values) -> str:
    """How many workers are wanted and there, and what of them is in use."""
    workers = status["workers"].values()
    used = (
        f"{sum(each[key] for each in workers)} of {sum(each[f'n_{key}'] for each in workers)} {word} in use"
        for key, word in (("cores", "cores"), ("gpus", "GPUs"))
    )
    return f"{status['workers_wanted']} wanted, {len(workers)} known; {', '.join(used)}"


def _shown(apps: Apps, n_ended: int) -> Apps:
    n_running = sum("ended_at" not in row for _, row in apps)
    return apps[: min(MAX_ROWS, n_running + n_ended)]


def _cut(apps: Apps, shown: Apps) -> str:
    n_more = len(apps) - len(shown)
    return f"; {n_more} more are left out" if n_more else ""


def _app_row(name: str, row: _Values, at: float) -> StatusRow:
    counts, is_over = row["tasks"], "ended_at" in row
    held = (None, None, None) if is_over else (row["cores"], row["gpus"], f"{100 * row['share']:.0f} %")
    cells = (
        *(name, _state(row), _n_waiting(counts), counts.get("running", 0), done(row)),
        *(counts.get("failed", 0), *held, times(row["delay"]), times(row["predicted_delay"])),
        _ran_for(row, at),
    )
    return StatusRow(cells, [row["error"]] if row["error"] else [])


def _dag_row(name: str, row: _Values, at: float) -> StatusRow:
    counts, dag = row["tasks"], row["dag"]
    sd, own_s, end_at = dag["sd"], dag["own_makespan_s"], dag.get("predicted_end_at")
    cells = (
        *(name, dag["class"], _state(row), _n_waiting(counts), counts.get("running", 0), done(row)),
        None if sd is None else f"{sd:.3f}",
        None if own_s is None else format_duration_s(own_s),
        _ran_for(row, at),
        None if end_at is None else format_duration_s(max(0.0, end_at - at)),
    )
    return StatusRow(cells, list(_dag_notes(row)))


def _dag_notes(row: _Values) -> Iterable[str]:
    dag, error = row["dag"], row["error"]
    if dag["n_moved"]:
        yield f"{dag['n_moved']} tasks moved to another worker before they started"
    if dag["n_interrupted"]:
        yield f"{dag['n_interrupted']} attempts interrupted, after {dag['lost_s']:.1f} s together"
    if error:
        yield error


def _worker_row(name: str, row: _Values) -> StatusRow:
    state = StateCell("warn", "expected") if row["is_expected"] else StateCell("good", "there")
    rate = row["bytes_per_s"]
    cells = (
        *(name, StateCell("idle", "leaves") if row["is_leaving"] else state),
        *(f"{row['cores']} of {row['n_cores']}", f"{row['gpus']} of {row['n_gpus']}"),
        None if rate is None else f"{format_bytes(rate)}/s",
        *(len(row["running"]), len(row["queued"])),
        None if row["is_expected"] else f"{row['silent_s']:.1f} s ago",
    )
    return StatusRow(cells, [row["problem"]] if row["problem"] else [])


def _state(row: _Values) -> StateCell:
    return StateCell(_STATES.get(row["state"], "idle"), row["state"])


def _n_waiting(counts: Mapping[str, int]) -> int:
    return sum(counts.get(each, 0) for each in _WAITING)


def done(row: _Values) -> DoneCell:
    """How far an application is."""
    return DoneCell(row["tasks"].get("done", 0), sum(row["tasks"].values()))


def times(value: float | None) -> str | None:
    """A delay; None: it is not known."""
    return None if value is None else f"{value:.2f} ×"


def _ran_for(row: _Values, at: float) -> str | None:
    ended_at, begun_at = row.get("ended_at") or at, row["begun_at"]
    return format_duration_s(max(0.0, ended_at - begun_at)) if begun_at else None
