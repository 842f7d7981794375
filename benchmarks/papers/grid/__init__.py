"""The grid paper's experiment: four sites, the same jobs, three modes; claims G1-G8, delay, scale, scan.

``--log FILE`` names the CTC SP2 log of the Parallel Workloads Archive; ``--quick`` takes one week in place of
four months. ``experiment`` are 72 simulations of 114,872 jobs and more, in two processes; with ``--resume``
those that the JSON file has are kept.
"""

from __future__ import annotations

import json
import multiprocessing
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from benchmarks.papers.grid.cells import GROUPS, OVERHEADS, WINDOWS, Cell, cells_of, simulate
from benchmarks.papers.grid.claims import claim_rows
from benchmarks.papers.grid.links import delay_rows, scale_rows, scan_rows
from benchmarks.result import Report, Row, not_measured, observed
from torque_sched.core.grid.formulas import SPLIT_FORMULAS

__all__ = ["SECTIONS", "draw", "run"]

SECTIONS = ("scan", "delay", "scale", "formulas", "experiment")
_PROCESSES = 2
_QUICK_DAYS = 7
_MINUTES_S = 600.0


def run(
    quick: bool,
    say: Callable[[str], None],
    report: Report,
    *,
    log: Path | None = None,
    only: Sequence[str] = (),
    resume: bool = False,
) -> None:
    """Run the sections asked for, all of them by default; `Benchmark`."""
    report.series["cells"] = _cells_so_far(report.path) if resume else {}
    for name in only or SECTIONS:
        if name == "scan":
            report.add(scan_rows(quick, report.series))
        elif log is None:
            report.add([not_measured(name, "needs CTC-SP2-1996-3.1-cln.swf.gz, --log FILE")])
        elif name == "delay":
            _one_by_one(report, delay_rows(log, quick, say))
        elif name == "scale":
            _one_by_one(report, scale_rows(log, quick, say))
        elif name == "formulas":
            _formulas(log, quick, say, report)
        else:
            for preset, gain in GROUPS:
                _group(log, cells_of(preset, gain, _QUICK_DAYS if quick else None), say, report)


def _one_by_one(report: Report, rows: Iterable[Row]) -> None:
    for row in rows:
        report.add([row])


def draw(report: Report, stem: str) -> list[str]:
    """Draw the paper's figures of every preset and lambda that is complete."""
    return draw_groups(report.series.get("cells", {}), stem)


def _cells_so_far(path: Path | None) -> dict[str, Any]:
    """What a run before this one has left in its file."""
    if path is None or not path.exists():
        return {}
    cells: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")).get("series", {}).get("cells", {})
    return cells


def _group(log: Path, cells: Sequence[Cell], say: Callable[[str], None], report: Report) -> None:
    """Eighteen cells in two processes."""
    results = report.series["cells"]
    todo = [cell for cell in cells if cell.key not in results]
    began_s = time.monotonic()
    with ProcessPoolExecutor(_PROCESSES, mp_context=multiprocessing.get_context("spawn")) as pool:
        waiting = {pool.submit(simulate, log, cell): cell for cell in todo}
        for future in as_completed(waiting):
            cell = waiting[future]
            results[cell.key] = future.result()
            say(f"{cell.key}: {results[cell.key]['cpu_s']:.0f} s")
            report.save()
    wall_s = time.monotonic() - began_s
    report.add([_row(cell, results[cell.key]) for cell in cells])
    report.add(claim_rows(results, cells))
    group = f"{cells[0].preset}, lambda {cells[0].gain:g}"
    cpu_s = sum(results[cell.key]["cpu_s"] for cell in cells)
    if len(todo) == len(cells):
        note = f"{_PROCESSES} processes; CPU {cpu_s:.0f} s"
        report.add([observed(f"{group}: time of {len(cells)} runs", wall_s, "s", goal="<= 600", note=note)])
    else:
        report.add([observed(f"{group}: CPU of {len(cells)} runs", cpu_s, "s", note="resumed")])


def _formulas(log: Path, quick: bool, say: Callable[[str], None], report: Report) -> None:
    """What hangs on the formula that is lost: a month at p = 0.4 with each, alone and co-allocated."""
    for formula in sorted(SPLIT_FORMULAS):
        for mode in ("a", "c"):
            cell = Cell("equal", 1.0, "CTC1", mode, 0.4, formula, _QUICK_DAYS if quick else 31)
            say(f"{cell.key}, {formula}")
            report.add([_row(cell, simulate(log, cell))])


def _row(cell: Cell, result: dict[str, Any]) -> Row:
    """A cell in one line: all that the paper and our notes ask for is in the note."""
    sites = [site["awrt_s"] for site in result["sites"]]
    extended = [site["awrt_extended_s"] for site in result["sites"]]
    blocks = ", ".join(f"{n} x f={f}" for f, n in result["blocks"].items() if int(f) > 1)
    note = (
        f"sites {_listed(sites)}; weighed by n*T' {_listed(extended)}; max/min {result['spread']:.2f}; "
        f"{result['n_split']:,} of {result['n_jobs']:,} split ({blocks}); "
        f"extension mean {result['mean_extension']:.2f}, max {result['max_extension']:.2f}; "
        f"utilisation {result['utilisation']:.3f}; {len(result['problems'])} faults in the schedule"
    )
    return Row(
        f"{cell.key}: AWRT, mean of sites",
        result["mean_awrt_s"],
        "s",
        len(sites),
        (min(sites), max(sites)),
        note=note,
    )


def _listed(values: Sequence[float]) -> str:
    return " ".join(f"{value:,.0f}" for value in values)


# ---- the paper's figures 3 to 5: AWRT per site, alone, then search and co-allocation for each window

_HOURS = 3600.0
_COLOURS = ("#4477aa", "#66ccee", "#228833", "#ccbb44")


def draw_groups(results: Mapping[str, Any], stem: str) -> list[str]:
    """Draw every preset and lambda whose cells are all there; returns the files."""
    files = []
    for preset, gain in GROUPS:
        cells = [
            Cell(preset, gain, window, mode, p) for window in WINDOWS for mode in "abc" for p in OVERHEADS
        ]
        if all(cell.key in results for cell in cells):
            files.append(_draw(results, preset, gain, f"{stem}-{preset}-lambda{gain:g}.png"))
    return files


def _draw(results: Mapping[str, Any], preset: str, gain: float, file: str) -> str:
    from yarn_accel.report.figures import drawing

    with drawing(file, (15, 4.5), columns=3) as (figure, table):
        alone, *grids = table[0]
        columns = [Cell(preset, gain, window, "a", p) for window in WINDOWS for p in OVERHEADS]
        names = [f"{cell.window}\np={cell.p:g}" for cell in columns]
        _bars(alone, results, columns, names, "figure 3: alone")
        for number, (axes, window) in enumerate(zip(grids, WINDOWS, strict=True), start=4):
            columns = [Cell(preset, gain, window, mode, p) for mode in "bc" for p in OVERHEADS]
            names = [f"({cell.mode})\np={cell.p:g}" for cell in columns]
            _bars(axes, results, columns, names, f"figure {number}: {window}, (b) search, (c) co-allocation")
        top = max(axes.get_ylim()[1] for axes in grids)
        for axes in grids:
            axes.set_ylim(0, top)
        figure.suptitle(f"AWRT per site, preset {preset}, lambda {gain:g}, f <= 4, T' = T f^p")
    return file


def _bars(
    axes: Any, results: Mapping[str, Any], cells: Sequence[Cell], names: Sequence[str], title: str
) -> None:
    width = 0.8 / len(_COLOURS)
    for site, colour in enumerate(_COLOURS):
        values = [results[cell.key]["sites"][site]["awrt_s"] / _HOURS for cell in cells]
        at = [place + (site - 1.5) * width for place in range(len(cells))]
        axes.bar(at, values, width, color=colour, label=f"site {site + 1}")
    axes.set_xticks(range(len(cells)), names, fontsize="small")
    axes.set_ylabel("AWRT, hours")
    axes.set_title(title, fontsize="medium")
    axes.legend(fontsize="small", ncols=4)
    axes.set_ylim(top=1.12 * axes.get_ylim()[1])
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)
