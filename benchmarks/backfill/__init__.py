"""Backfilling on logs of real machines: against referee schedules and published figures, and how fast.

Without ``--log`` the two small traces of `benchmarks/traces` and the insertion are measured; with the full
CTC log its published figures and times; with any other log a robustness run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from benchmarks.backfill.insertion import draw
from benchmarks.backfill.insertion import rows as insertion_rows
from benchmarks.backfill.schedules import estimates_rows, first_rows, log_rows, referee_rows, robust_rows
from benchmarks.result import Report, Row, not_measured
from torque_sched.sim.workload import read_trace

__all__ = ["SECTIONS", "draw", "run"]

Say = Callable[[str], None]
SECTIONS = ("referee", "first", "log", "estimates", "insertion")


def run(quick: bool, say: Say, report: Report, only: Sequence[str] = (), log: Path | None = None) -> None:
    """Run the sections asked for, all of them by default; `Benchmark`.

    Quick: each time is taken once, and estimates are compared on 2,000 jobs, not 10,000.
    """
    for name in only or SECTIONS:
        for row in _section(name, quick, say, report, log):
            report.add([row])


def _section(name: str, quick: bool, say: Say, report: Report, log: Path | None) -> Iterator[Row]:
    if name == "referee":
        yield from referee_rows(say)
    elif name == "first":
        yield from first_rows(say)
    elif name == "insertion":
        yield from insertion_rows(quick, say, report)
    elif log is None:
        yield not_measured(f"{name}: the full log", "needs CTC-SP2-1996-3.1-cln.swf.gz, --log FILE")
    elif name == "estimates":
        trace = read_trace(log)
        yield from estimates_rows(log.name.split(".")[0], trace, 2_000 if quick else 10_000, say)
    elif "CTC" in read_trace(log).header.get("Installation", ""):
        yield from log_rows(log, 1 if quick else 3, say)
    else:
        yield from robust_rows(log, say)
