"""The experiments of the YARN paper (section 3) on a real cluster, beside its claims.

Two instruments that are never mixed:

*emulated*: everything is real (the application, its agents and servers, sockets, streaming mappers), only
the kernel is a timed wait, on a server as long as Table 2 says of the GPU, in a mapper as it says of the CPU;
time and payload are scaled down by one factor per operation, which is printed.

*real*: LU, QR, Cholesky and features of images computed on this machine's own CPUs, in small. All nodes share
these, so more servers cannot make it faster: it shows that the path computes, not how fast a GPU is.

100 tasks, 25 for each of four mappers, one mapper on each node (one ``acct/slot`` each, slot publishing off).
Reported are the task phase (first task sent to last one done) and the whole job.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.papers.yarn_paper.cells import SCALES, SECTIONS, Cell, Cells, Key, estimate_s, plan, stops
from benchmarks.papers.yarn_paper.claims import judge
from benchmarks.papers.yarn_paper.views import cell_row, claim_rows, draw, tables
from benchmarks.result import Report, Row
from yarn_accel.errors import JobError

__all__ = ["SECTIONS", "draw", "judged_again", "known_cells", "run"]

#: No cell is begun when the whole has taken so long; the issue allows an hour.
_LIMIT_S = 58 * 60.0


def run(
    quick: bool,
    say: Callable[[str], None],
    report: Report,
    only: Sequence[str] = (),
    resume: bool = False,
    mode: str = "",
) -> None:
    """Run the cells of these sections, one streaming job each, and judge the paper's claims.

    Args:
        only: some of `SECTIONS`; none: all.
        resume: keep the cells that the report's file has already.
        mode: of the cluster, such as ``netns`` or ``docker``; empty: netns as root.
    """
    cells = known_cells(report.path) if resume else Cells()
    keys = plan(only, is_quick=quick)
    report.rows += [cell_row(cell) for cell in cells.all()]
    # Also where nothing is left to run.
    report.series["cells"] = [each.to_mapping() for each in cells.all()]
    report.setting["factors"] = {name: scale.factor for name, scale in SCALES.items()}
    for scale in SCALES.values():
        say(str(scale))
    todo = [key for _, some in stops(keys, cells) for key in some]
    say(f"{len(todo)} cells of {len(keys)}, about {estimate_s(todo) / 60:.0f} minutes")
    try:
        _run_all(todo, cells, say, report, mode)
    finally:
        claims = judge(cells)
        report.series["claims"] = [_vars_of(claim) for claim in claims]
        report.add(claim_rows(claims))
        out = Console(width=None if os.isatty(1) else 160)
        for table in tables(cells, claims):
            out.print(table)


def judged_again(document: Mapping[str, Any]) -> list[Row]:
    """The paper's claims, judged by today's bounds from the cells of a recorded result."""
    cells = Cells(Cell.from_mapping(values) for values in document.get("series", {}).get("cells", ()))
    return claim_rows(judge(cells)) if cells.all() else []


def _vars_of(claim: Any) -> dict[str, Any]:
    """A claim fit for JSON."""
    return {name: getattr(claim, name) for name in ("claim", "holds", "value", "unit", "why")}


def known_cells(path: Path | None) -> Cells:
    """The cells that a file of an earlier run holds, each with the version that made it; none without one."""
    if path is None or not path.exists():
        return Cells()
    document = json.loads(path.read_text(encoding="utf-8"))
    found = [Cell.from_mapping(values) for values in document.get("series", {}).get("cells", ())]
    made = str(document.get("commit", ""))
    return Cells(_made_by(cell, made) for cell in found)


def _made_by(cell: Cell, commit: str) -> Cell:
    return Cell.from_mapping({**cell.to_mapping(), "commit": cell.commit or commit})


def _run_all(
    keys: Sequence[Key], cells: Cells, say: Callable[[str], None], report: Report, mode: str
) -> None:
    from benchmarks.papers.yarn_paper.running import ground_up

    until_s = time.monotonic() + _LIMIT_S
    with tempfile.TemporaryDirectory(prefix="yarn-paper-") as scratch:
        for n_workers in sorted({int(key.cluster.split("-")[0]) for key in keys}):
            here = [key for key in keys if key.cluster.startswith(f"{n_workers}-")]
            with ground_up(n_workers, Path(scratch) / str(n_workers), say, mode) as ground:
                for key in here:
                    if time.monotonic() > until_s:
                        raise JobError(f"{_LIMIT_S / 60:.0f} minutes are over; --resume runs the rest")
                    cell = ground.run(key)
                    cells.add(cell)
                    report.series["cells"] = [each.to_mapping() for each in cells.all()]
                    report.add([cell_row(cell)])
                    say(f"{key}: task phase {cell.phase_s:.2f} s, job {cell.job_s:.1f} s")
