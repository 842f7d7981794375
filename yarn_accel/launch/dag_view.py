"""What `dag status` and `dag top` show of the DAGs of a task service, from its status."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from yarn_accel.core.units import format_duration_s
from yarn_accel.launch.status_view import plain

_DASH = "-"
_MAX_ENDED = 20
_MAX_ERROR = 200
_MIN_NAME = 8
_COLUMNS = ("running", "done", "SD", "alone", "for", "ends in")


def dags_of(answer: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The applications that are DAGs, those that ended first."""
    return {name: row for name, row in [*answer["ended"].items(), *answer["apps"].items()] if "dag" in row}


def dags_table(answer: Mapping[str, Any]) -> Group:
    """The DAGs of a task service, for people."""
    table = Table(title=f"DAGs, policy {answer.get('policy') or _DASH}", title_justify="left")
    # Other commands take the name: where the column is too narrow it goes on in the next line.
    table.add_column("DAG", overflow="fold", min_width=_MIN_NAME)
    for name in ("class", "state"):
        table.add_column(name)
    for name in _COLUMNS:
        table.add_column(name, justify="right")
    rows = list(dags_of(answer).items())
    n_running = sum("ended_at" not in row for _, row in rows)
    n_cut = max(0, len(rows) - n_running - _MAX_ENDED)
    notes = []
    for name, row in rows[n_cut:]:
        table.add_row(*_cells(name, row))
        notes += [Text(plain(f"{name}: {note}")) for note in _notes(row)]
    cut = [Text(f"... and {n_cut} that ended before; all of them: dag status --json")] if n_cut else []
    workers = answer["workers"].values()
    n_cores, n_busy = sum(each["n_cores"] for each in workers), sum(each["cores"] for each in workers)
    there = Text(f"{len(workers)} workers, {n_busy} of {n_cores} cores busy")
    problems = [Text(plain(f"problem: {each}")) for each in answer["problems"]]
    return Group(table, *notes, *cut, there, *problems)


def _cells(name: str, row: Mapping[str, Any]) -> list[Text | str]:
    counts, dag = row["tasks"], row["dag"]
    now = row.get("ended_at") or time.time()
    end_at = dag.get("predicted_end_at")
    return [
        Text(plain(name)),
        dag["class"],
        Text(plain(row["state"])),
        str(counts.get("running", 0)),
        f"{counts.get('done', 0)} of {sum(counts.values())}",
        _DASH if dag["sd"] is None else f"{dag['sd']:.3f}",
        _DASH if dag["own_makespan_s"] is None else f"{dag['own_makespan_s']:.1f} s",
        format_duration_s(max(0.0, now - row["begun_at"])),
        _DASH if end_at is None else format_duration_s(max(0.0, end_at - now)),
    ]


def _notes(row: Mapping[str, Any]) -> Iterator[str]:
    """What is not so of most DAGs."""
    dag, error = row["dag"], row["error"]
    if dag["n_moved"]:
        yield f"{dag['n_moved']} tasks moved to another worker before they started"
    if dag["n_interrupted"]:
        yield f"{dag['n_interrupted']} attempts interrupted, after {dag['lost_s']:.1f} s together"
    if error:
        yield error[:_MAX_ERROR]
