"""What a benchmark hands back: rows of figures with machine, commit, n, median and spread."""

from __future__ import annotations

import functools
import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from benchmarks import ROOT
from yarn_accel.local_filesystem import write_atomic

_JUDGED = {"<=": lambda value, bound: value <= bound, ">=": lambda value, bound: value >= bound}


@dataclass(frozen=True)
class Row:
    """One figure: the median of ``n`` measurements with their spread."""

    what: str
    value: float
    unit: str
    n: int
    spread: tuple[float, float] | None
    """Smallest and largest measurement; None when there was only one."""
    goal: str = ""
    """Such as ``<= 20``; empty when the figure is reported only."""
    ok: bool | None = None
    """Whether the goal was met; None without a goal."""
    note: str = ""
    interval: tuple[float, float] | None = None
    """95 % interval of the mean, where `value` is the mean of `n` independent figures."""


def _judge(value: float, goal: str) -> bool | None:
    if not goal:
        return None
    sign, bound = goal.split()
    return bool(_JUDGED[sign](value, float(bound)))


def measured(what: str, values: Sequence[float], unit: str, *, goal: str = "", note: str = "") -> Row:
    """Condense repeated measurements into a row.

    Args:
        what: the figure's name as the issue's table has it.
        values: at least one measurement, in ``unit``.
        unit: such as ``s`` or ``MB/s``.
        goal: ``<= number`` or ``>= number``; judged against the median.
        note: what a reader must know to trust or repeat it.
    """
    median = statistics.median(values)
    spread = (min(values), max(values)) if len(values) > 1 else None
    return Row(what, median, unit, len(values), spread, goal, _judge(median, goal), note)


def observed(what: str, value: float, unit: str, *, goal: str = "", note: str = "") -> Row:
    """A row of a single observation, such as a memory peak."""
    return measured(what, [value], unit, goal=goal, note=note)


def ratio(
    what: str,
    ours: Sequence[float],
    others: Sequence[float],
    unit: str = "x",
    *,
    goal: str = "",
    note: str = "",
) -> Row:
    """One figure over another: the ratio of the medians over interleaved rounds.

    Its spread comes from the pairs of one round.

    Args:
        what: the figure's name.
        ours: at least one measurement, a round each.
        others: the same for what it is divided by.
        unit: ``x`` or ``share``.
        goal: as in `measured`.
        note: as in `measured`.
    """
    pairs = [mine / other for mine, other in zip(ours, others, strict=False)]
    value = statistics.median(ours) / statistics.median(others)
    spread = (min(pairs), max(pairs)) if len(pairs) > 1 else None
    return Row(what, value, unit, len(pairs), spread, goal, _judge(value, goal), note)


def not_measured(what: str, why: str) -> Row:
    """A row without a figure (n = 0) that says why there is none."""
    return Row(what, 0.0, "", 0, None, note=f"not measured: {why}")


def _first_line(path: str, prefix: str) -> str:
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(prefix)), "")


def machine_facts() -> dict[str, object]:
    """CPU, cores, memory, kernel and Python of this machine."""
    return {
        "cpu": _first_line("/proc/cpuinfo", "model name"),
        "cores": len(os.sched_getaffinity(0)),
        "memory": _first_line("/proc/meminfo", "MemTotal"),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


@functools.cache
def current_commit() -> str:
    """The version that runs, and whether it has uncommitted changes."""

    def git(*argv: str) -> str:
        done = subprocess.run(["git", *argv], cwd=ROOT, capture_output=True, text=True, check=False)
        return done.stdout.strip()

    # Results that an earlier section of the same run wrote are no change of what is measured.
    changed = git("status", "--porcelain", "--", ".", ":!benchmarks/results")
    dirty = "+uncommitted" if changed else ""
    return (git("rev-parse", "--short=12", "HEAD") or "unknown") + dirty


def _row_document(row: Row) -> dict[str, Any]:
    """A row for JSON; only rows of means have an interval."""
    document = asdict(row)
    if row.interval is None:
        del document["interval"]
    return document


@dataclass
class Report:
    """All rows of one run; ``write`` is the JSON the issues ask for.

    Attributes:
        path: where `add` writes what there is so far; None: nowhere.
        setting: what else a reader must know of the machine, such as ``cores_awake``.
        series: what was noted over time, by name; lists fit for JSON.
        state: ``running``, ``complete``, ``interrupted`` or ``failed``. A file that says ``running`` though
            nothing runs is what a killed run left.
        is_quick: the quick form; such figures are no results.
        earlier_s: what runs took before that this one goes on from (``--resume``).
    """

    name: str
    rows: list[Row] = field(default_factory=list)
    path: Path | None = None
    setting: dict[str, object] = field(default_factory=dict)
    series: dict[str, Any] = field(default_factory=dict)
    state: str = "running"
    is_quick: bool = False
    earlier_s: float = 0.0
    began_s: float = field(default_factory=time.monotonic)
    started_at: str = field(default_factory=lambda: datetime.now(timezone.utc).isoformat(timespec="seconds"))

    def add(self, rows: Iterable[Row]) -> None:
        """Take rows as they come, and write all there are each time: a long run may end at any of them."""
        for row in rows:
            self.rows.append(row)
            self.save()

    def end(self, state: str) -> None:
        """The run is over, in this way."""
        self.state = state
        self.save()

    def save(self) -> None:
        """Write it to its path, where it has one."""
        if self.path is not None:
            self.write(self.path)

    def write(self, path: Path) -> None:
        """Write the report as JSON, whole or not at all."""
        document: dict[str, object] = {
            "name": self.name,
            "commit": current_commit(),
            "machine": {**machine_facts(), **self.setting},
            "started_at": self.started_at,
            "wall_s": round(self.earlier_s + time.monotonic() - self.began_s, 1),
            "is_quick": self.is_quick,
            "state": self.state,
            "rows": [_row_document(row) for row in self.rows],
            **({"series": self.series} if self.series else {}),
        }
        write_atomic(path, json.dumps(document, indent=1) + "\n")


def draw_all(report: Report, stem: str, paints: Mapping[str, Callable[[Report, str], bool]]) -> list[str]:
    """Draw ``STEM-NAME.png`` for each name; returns the files that the report had figures for."""
    files = {name: f"{stem}-{name}.png" for name in paints}
    return [files[name] for name, paint in paints.items() if paint(report, files[name])]


def earlier_wall_s(path: Path) -> float:
    """Seconds that the runs took which left this file; 0 where it does not say."""
    try:
        return float(json.loads(path.read_text(encoding="utf-8"))["wall_s"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0.0


Benchmark = Callable[[bool, Callable[[str], None], Report], None]
"""A benchmark: ``(quick, say, report)``; ``say`` takes progress lines, `Report.add` rows as they come."""
