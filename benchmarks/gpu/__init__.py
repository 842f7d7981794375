"""What only a GPU can show, in one run of minutes: see docs/gpu-checks.md, "The day a GPU is there".

Each section runs within its part of the time, and one that fails costs only itself.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.result import Report, Row, not_measured, observed
from yarn_accel.errors import JobError

if TYPE_CHECKING:
    from benchmarks.gpu.machine import Machine
    from benchmarks.gpu.setting import GpuSetting

__all__ = ["MINUTES", "SECTIONS", "draw", "require", "run"]

SECTIONS = (
    *("operations", "factorizations", "batches", "forms", "tenants", "overlap", "workers", "images", "paper"),
    "killed",
)
MINUTES = 4.5
_MOST_S = 525.0
"""No section goes on after that, whatever `minutes` says: a loan of a GPU is short."""
_GRACE_S = 15.0
"""After its time a section may finish what it is at."""
_START_LIMIT_S, _START_SHARE = 100.0, 0.3
"""For the first server: so long, or that part of the time where there is more of it."""


def require(path: Path | None) -> None:
    """Find a GPU that can be used, for figures that will be written there.

    Raises:
        NoGpuError: there is none, or no CuPy; says what to do.
        ConfigError: the figures of an emulated GPU would lie among the results.
    """
    from benchmarks.gpu.machine import find, refuse_results

    refuse_results(find(), path)


def run(
    quick: bool,
    say: Callable[[str], None],
    report: Report,
    *,
    only: Sequence[str] = (),
    minutes: float = MINUTES,
) -> None:
    """Measure all sections, or those named in `only`, in so many minutes; the report gets rows as they come.

    Raises:
        NoGpuError: as `require`.
        JobError: sections failed; what the others measured is in the report.
    """
    from benchmarks.gpu.machine import find

    machine = find()
    say(str(machine))
    report.setting.update(machine.facts(), minutes=minutes)
    with closing(measure(quick, say, report, machine, only or SECTIONS, minutes)) as parts:
        for rows in parts:
            report.add(rows)


def table() -> Mapping[str, Callable[[GpuSetting], Iterable[list[Row]]]]:
    """Each of `SECTIONS`, by name, with what gives its rows."""
    from benchmarks.gpu import cases, factorizations, images, overlap, requests

    return {
        "operations": cases.operation_rows,
        "factorizations": factorizations.factorization_rows,
        "batches": factorizations.batch_rows,
        "forms": requests.form_rows,
        "tenants": requests.tenant_rows,
        "overlap": overlap.overlap_rows,
        "workers": factorizations.worker_rows,
        "images": images.image_rows,
        "paper": factorizations.paper_rows,
        "killed": requests.killed_rows,
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
    from benchmarks.gpu.setting import SHARES, Budget, GpuSetting, SectionOverError, Servers, ended_after

    failed: list[str] = []
    began_s = time.monotonic()
    start_limit_s = max(_START_LIMIT_S, _START_SHARE * 60.0 * minutes)
    with (
        tempfile.TemporaryDirectory(prefix="bench-gpu-") as folder,
        Servers(Path(folder), machine, start_limit_s) as servers,
    ):
        for name, section in {"start": start_rows, **table()}.items():
            if name != "start" and name not in only:
                continue
            say(f"section {name}")
            limit_s = 60.0 * minutes * SHARES[name] if name in SHARES else start_limit_s
            if not machine.is_emulated:
                limit_s = max(0.0, min(limit_s, began_s + _MOST_S - _GRACE_S - time.monotonic()))
            budget = Budget(limit_s)
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
    return row if section in ("start", "operations") else replace(row, goal="", ok=None)


def draw(report: Report, stem: str) -> list[str]:
    """Draw the figures of a report; returns the files."""
    from benchmarks.gpu.pictures import draw as draw_all

    return draw_all(report, stem)
