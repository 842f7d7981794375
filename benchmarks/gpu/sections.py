"""The table of sections; each runs within its part of the time, and one that fails costs only itself."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.gpu.batches import batch_rows
from benchmarks.gpu.budget import SHARES, Budget, SectionOverError, ended_after
from benchmarks.gpu.copies import overlap_rows
from benchmarks.gpu.factorizations import factorization_rows
from benchmarks.gpu.images import image_rows
from benchmarks.gpu.machine import Machine
from benchmarks.gpu.paper import paper_rows
from benchmarks.gpu.right import operation_rows
from benchmarks.gpu.setting import GpuSetting, Servers
from benchmarks.gpu.workers import worker_rows
from benchmarks.result import Report, Row, not_measured, observed
from yarn_accel.errors import JobError

_GRACE_S = 15.0
"""After its time a section may finish what it is at."""
_START_LIMIT_S, _START_SHARE = 100.0, 0.3
"""For the first server: so long, or that part of the time where there is more of it."""
_OF_SPEED = tuple(name for name in SHARES if name != "operations")

TABLE: Mapping[str, Callable[[GpuSetting], Iterable[list[Row]]]] = {
    "operations": operation_rows,
    "factorizations": factorization_rows,
    "batches": batch_rows,
    "overlap": overlap_rows,
    "workers": worker_rows,
    "images": image_rows,
    "paper": paper_rows,
}


def measure(
    quick: bool,
    say: Callable[[str], None],
    report: Report,
    machine: Machine,
    only: Sequence[str],
    minutes: float,
) -> Generator[list[Row], None, None]:
    """The rows of the sections named in `only`, as they come; what was cut is in the report's series.

    Raises:
        JobError: sections failed, after all have run.
    """
    failed: list[str] = []
    start_limit_s = max(_START_LIMIT_S, _START_SHARE * 60.0 * minutes)
    with (
        tempfile.TemporaryDirectory(prefix="bench-gpu-") as folder,
        Servers(Path(folder), machine, start_limit_s) as servers,
    ):
        for name, section in {"start": start_rows, **TABLE}.items():
            if name != "start" and name not in only:
                continue
            say(f"section {name}")
            budget = Budget(60.0 * minutes * SHARES[name] if name in SHARES else start_limit_s)
            setting = GpuSetting(quick, say, machine, servers, budget, report.series)
            rest = f"{name}: the rest"
            try:
                with ended_after(budget.left_s + _GRACE_S):
                    for rows in section(setting):
                        yield [_said(row, name, machine) for row in rows]
            except SectionOverError:
                budget.cut.append(rest)
                yield [_said(budget.cut_row(rest), name, machine)]
            except Exception as error:  # noqa: BLE001 -- whatever one section meets, the others are measured
                failed.append(name)
                why = not_measured(rest, f"{type(error).__name__}: {error}")
                yield [_said(why, name, machine)]
            report.series.setdefault("cut", {})[name] = budget.cut
    if failed:
        raise JobError(f"failed: {', '.join(failed)}; the rows say why, the others were measured")


def start_rows(setting: GpuSetting) -> Iterator[list[Row]]:
    """How long a server takes until its GPU has passed the probe; all others need it."""
    start_s = time.monotonic()
    _ = setting.servers.gpu
    note = "with the probe of every operation; the first one compiles all kernels"
    yield [observed("a server on the GPU: start to ready", time.monotonic() - start_s, "s", note=note)]


def _said(row: Row, section: str, machine: Machine) -> Row:
    """The row as it is shown: an emulated GPU has no speed to judge."""
    if not machine.is_emulated:
        return row
    row = replace(row, what=f"EMULATED: {row.what}")
    return replace(row, goal="", ok=None) if section in _OF_SPEED else row
