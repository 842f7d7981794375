"""The grid paper's experiment: four sites, the same jobs, three modes; claims G1-G8, delay, scale, scan.

``--log FILE`` names the CTC SP2 log of the Parallel Workloads Archive; ``--quick`` takes one week in place of
four months. ``experiment`` are 72 simulations of 114,872 jobs and more, in two processes; with ``--resume``
those that the JSON file has are kept.
"""

from __future__ import annotations

import functools
import json
import math
import multiprocessing
import random
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta, timezone
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from typing import Any

from benchmarks.result import Report, Row, not_measured, observed
from torque_sched.errors import ConfigError
from torque_sched.grid.search import SPLIT_FORMULAS, Mode, SplitCost
from torque_sched.grid.simulate.figures import figures_of, problems
from torque_sched.grid.simulate.messages import LinkSettings, simulate_messages
from torque_sched.grid.simulate.simulator import PRESETS, GridRun, GridSettings, simulate_grid
from torque_sched.model.availability import Availability
from torque_sched.simulate.workload import LogSelection, Overrun, TraceJob, read_trace, workload_of

# ---- The cells of the grid experiment: preset x lambda x window x mode x p; a cell is one simulation.
#
# Four sites get the same jobs: the log's of July to October 1996 (CTC1) or of November 1996 to February 1997
# (CTC2), in the zone the log begins in (UTC-4); those that ran, at most 336 processors wide (the widest of
# them all), with exact run times.

_WIDEST = 336
_ZONE = timezone(timedelta(hours=-4))
"""Eastern daylight time, in which the log begins; our notes on the log count its months so."""
WINDOWS = {
    "CTC1": (datetime(1996, 7, 1, tzinfo=_ZONE), datetime(1996, 11, 1, tzinfo=_ZONE)),
    "CTC2": (datetime(1996, 11, 1, tzinfo=_ZONE), datetime(1997, 3, 1, tzinfo=_ZONE)),
}
MODES = {"a": Mode.HOME, "b": Mode.SEARCH, "c": Mode.COALLOCATE}
OVERHEADS = (0.1, 0.2, 0.4)
GROUPS = tuple((preset, gain) for gain in (1.0, 0.0) for preset in ("equal", "338"))
"""(preset, lambda): eighteen cells each."""
_MAX_BLOCKS = 4


@dataclass(frozen=True, order=True)
class Cell:
    """One simulation of the experiment."""

    preset: str
    gain: float
    """lambda of the gain rule."""
    window: str
    mode: str
    p: float
    formula: str = "power"
    days: int | None = None
    """Only the first so many of the window."""

    @property
    def key(self) -> str:
        """Its name in the JSON file."""
        parts = [self.preset, f"lambda {self.gain:g}", self.window, f"({self.mode})", f"p {self.p:g}"]
        if self.formula != "power":  # the default goes without saying
            parts.append(self.formula)
        if self.days is not None:
            parts.append(f"{self.days} days")
        return ", ".join(parts)

    @property
    def cost(self) -> SplitCost:
        """What splits cost in it."""
        return SplitCost(self.formula, self.p, _MAX_BLOCKS, self.gain)


def cells_of(preset: str, gain: float, days: int | None = None) -> list[Cell]:
    """Three modes x three p x two windows, those that take long first."""
    return [
        Cell(preset, gain, window, mode, p, days=days)
        for mode in ("c", "b", "a")
        for window in WINDOWS
        for p in OVERHEADS
    ]


@functools.cache
def _log(path: Path) -> tuple[float, tuple[TraceJob, ...]]:
    """When the log begins (seconds since the epoch), and its jobs."""
    trace = read_trace(path)
    begins = trace.header.get("UnixStartTime", "")
    if not begins.isdigit():
        raise ConfigError(
            f"{path}: the header has no UnixStartTime", cure="give the log CTC-SP2-1996-3.1-cln.swf.gz"
        )
    choice = LogSelection(procs=_WIDEST, overrun=Overrun.EXTEND, cap_width=True)
    return float(begins), workload_of(trace, choice).jobs


def jobs_between(path: Path, begin: datetime, end: datetime) -> tuple[TraceJob, ...]:
    """The log's jobs submitted in [begin, end).

    Raises:
        ConfigError: there are none.
    """
    begins_s, jobs = _log(path)
    first_s, last_s = begin.timestamp() - begins_s, end.timestamp() - begins_s
    chosen = tuple(job for job in jobs if first_s <= job.submit_s < last_s)
    if not chosen:
        raise ConfigError(
            f"{path}: no job from {begin:%B %Y} on", cure="give the log CTC-SP2-1996-3.1-cln.swf.gz"
        )
    return chosen


def simulate(path: Path, cell: Cell) -> dict[str, Any]:
    """Run a cell and condense it; the result goes into JSON as it is."""
    begin, end = WINDOWS[cell.window]
    if cell.days is not None:
        end = begin + timedelta(days=cell.days)
    jobs = jobs_between(path, begin, end)
    layout = PRESETS[cell.preset]
    settings = GridSettings(layout, MODES[cell.mode], cell.cost)
    began_s, cpu_s = time.perf_counter(), time.process_time()
    run = simulate_grid(settings, [jobs] * len(layout))
    cpu_s, wall_s = time.process_time() - cpu_s, time.perf_counter() - began_s
    figures = figures_of(run, layout)
    return {
        **asdict(cell),
        **asdict(figures),
        "n_jobs": len(run.jobs),
        "spread": figures.spread,
        "mean_awrt_s": figures.mean_awrt_s,
        "n_split": figures.n_split,
        "messages": dict(run.messages),
        "problems": problems(run, settings),
        "hash": run.schedule_hash(),
        "cpu_s": cpu_s,
        "wall_s": wall_s,
    }


# ---- The claims of the grid paper (section 4) as checks over the cells of one preset and lambda.
#
# A claim is a share of single comparisons that hold, each named when it does not.

_Check = tuple[str, bool]
_MOST_NAMED = 8


class _Cells:
    """The cells of one preset and lambda."""

    def __init__(self, results: Mapping[str, Any], cells: Iterable[Cell]) -> None:
        self._cells = {(cell.window, cell.mode, cell.p): results[cell.key] for cell in cells}

    def of(self, window: str, mode: str, p: float) -> Any:
        return self._cells[window, mode, p]

    def awrt_s(self, window: str, mode: str, p: float) -> list[float]:
        return [site["awrt_s"] for site in self.of(window, mode, p)["sites"]]


_EVERYWHERE = tuple(product(WINDOWS, OVERHEADS))


def _grows(cells: _Cells) -> Iterator[_Check]:
    """G1: alone, AWRT grows with the clusters of a site, and with p where there are several."""
    for window, p in _EVERYWHERE:
        sites = cells.awrt_s(window, "a", p)
        for site in range(1, len(sites)):
            yield f"{window} p {p:g}: site {site} to {site + 1}", sites[site] > sites[site - 1]
    for window in WINDOWS:
        for low, high in pairwise(OVERHEADS):
            before, after = cells.awrt_s(window, "a", low), cells.awrt_s(window, "a", high)
            for site in range(1, len(before)):
                yield f"{window} site {site + 1}: p {low:g} to {high:g}", after[site] > before[site]


def _is_lower(cells: _Cells, mode: str, other: str) -> Iterator[_Check]:
    """G2, G6: every site's AWRT in one mode is below that in the other."""
    for window, p in _EVERYWHERE:
        yield from _below(f"{window} p {p:g}", cells.awrt_s(window, mode, p), cells.awrt_s(window, other, p))


def _beats_cheap_splits(cells: _Cells, mode: str) -> Iterator[_Check]:
    """G3: even at p = 0.4 most sites in the grid beat themselves alone at p = 0.1."""
    for window in WINDOWS:
        yield from _below(window, cells.awrt_s(window, mode, 0.4), cells.awrt_s(window, "a", 0.1))


def _below(where: str, these_s: Sequence[float], others_s: Sequence[float]) -> Iterator[_Check]:
    for site, (this_s, other_s) in enumerate(zip(these_s, others_s, strict=True), start=1):
        yield f"{where} site {site} ({this_s / other_s - 1:+.1%})", this_s < other_s


def _falls(cells: _Cells, mode: str, of: tuple[str, str]) -> Iterator[_Check]:
    """G4, G5: a figure of the whole grid is lower than without one; `of` also writes both, alone first."""
    figure, shown = of
    for window, p in _EVERYWHERE:
        grid, alone = (cells.of(window, each, p)[figure] for each in (mode, "a"))
        yield f"{window} p {p:g} ({shown.format(alone, grid)})", grid < alone


#: Fewer jobs are split once the grid is searched; the extra area of all splits falls, as a share of the
#: unsplit area; the AWRTs of the sites differ less.
_N_SPLIT = "n_split", "{:,} to {:,}"
_AREA = "overhead_share", "{:.1%} to {:.1%}"
_SPREAD = "spread", "max/min {:.2f} to {:.2f}"

CLAIMS: Mapping[str, tuple[str, Callable[[_Cells], Iterator[_Check]]]] = {
    "G1": ("alone, AWRT grows with clusters and with p", _grows),
    "G2 (b)": ("search improves every site over alone", partial(_is_lower, mode="b", other="a")),
    "G2 (c)": ("co-allocation improves every site over alone", partial(_is_lower, mode="c", other="a")),
    "G3 (b)": ("search at p 0.4 beats alone at p 0.1", partial(_beats_cheap_splits, mode="b")),
    "G3 (c)": ("co-allocation at p 0.4 beats alone at p 0.1", partial(_beats_cheap_splits, mode="c")),
    "G4 (b)": ("search splits fewer jobs than alone", partial(_falls, mode="b", of=_N_SPLIT)),
    "G4 (c)": ("co-allocation splits fewer jobs than alone", partial(_falls, mode="c", of=_N_SPLIT)),
    "G4 area (b)": ("search makes all splits cost less area", partial(_falls, mode="b", of=_AREA)),
    "G4 area (c)": ("co-allocation makes splits cost less area", partial(_falls, mode="c", of=_AREA)),
    "G5 (b)": ("search evens out the sites", partial(_falls, mode="b", of=_SPREAD)),
    "G5 (c)": ("co-allocation evens out the sites", partial(_falls, mode="c", of=_SPREAD)),
    "G6 over (a)": ("co-allocation beats alone on all sites", partial(_is_lower, mode="c", other="a")),
    "G6 over (b)": ("co-allocation beats search on all sites", partial(_is_lower, mode="c", other="b")),
}

#: Why a claim does not hold everywhere, as far as we understand it.
_WHY = {
    "G2": "sites that need few splits alone share the extra area of the others' splits",
    "G3": "searching does not make up for all of the extra area of splits at p 0.4",
    "G4": "jobs of the site with one cluster, never split alone, may be split elsewhere",
    "G6": "a split pays for its own job by the gain rule, not for the jobs that its extra area delays",
}


def claim_rows(results: Mapping[str, Any], members: Sequence[Cell]) -> list[Row]:
    """Judge the claims for one preset and lambda; a share of 1 means that it holds everywhere."""
    cells = _Cells(results, members)
    group = f"{members[0].preset}, lambda {members[0].gain:g}"
    rows = []
    for name, (what, checks) in CLAIMS.items():
        found = list(checks(cells))
        wrong = [where for where, is_so in found if not is_so]
        note = f"holds {len(found) - len(wrong)} of {len(found)}"
        if wrong:
            more = f" and {len(wrong) - _MOST_NAMED} more" if len(wrong) > _MOST_NAMED else ""
            note += "; not: " + "; ".join(wrong[:_MOST_NAMED]) + more
            note += f". Why: {_WHY[name[:2]]}" if name[:2] in _WHY else ""
        share = 1 - len(wrong) / len(found)
        rows.append(Row(f"{name}, {group}: {what}", share, "share", len(found), None, note=note))
    return rows


# ---- What agreeing costs: with slow messages, at 100 sites of 10,000 processors, and in a scan of the table.

_COST = SplitCost("power", 0.4, 4, 1.0)
_DELAYS_S = (0.005, 0.05, 0.5)
_WIDER = 29
"""Of 338 processors the log's machine had; a site of the scale experiment has 10,000."""
_QUICKER = 0.3
"""Jobs come three times as fast, so that queues form while few jobs are simulated."""


def delay_rows(log: Path, quick: bool, say: Callable[[str], None]) -> Iterator[Row]:
    """Four sites of 338 processors, some days of the log, with ever slower messages."""
    begin, _ = WINDOWS["CTC1"]
    begin += timedelta(days=7)
    jobs = jobs_between(log, begin, begin + timedelta(days=2 if quick else 14))
    for mode in (Mode.SEARCH, Mode.COALLOCATE):
        settings = GridSettings(PRESETS["338"], mode, _COST)
        streams = [jobs] * len(settings.layout)
        plain = simulate_grid(settings, streams)
        figures = figures_of(plain, settings.layout)
        yield observed(f"delay 0 s, {mode.value}: AWRT, mean of sites", figures.mean_awrt_s, "s")
        for delay_s in _DELAYS_S:
            say(f"messages take {delay_s:g} s, {mode.value}")
            run = simulate_messages(settings, streams, LinkSettings(delay_s=delay_s))
            yield from _agreed(f"delay {delay_s:g} s, {mode.value}", settings, run)


def scale_rows(log: Path, quick: bool, say: Callable[[str], None]) -> Iterator[Row]:
    """A hundred sites of ten clusters of 1,000 processors, each with another part of the log."""
    n_sites, n_jobs = (20, 40) if quick else (100, 150)
    jobs = jobs_between(log, *WINDOWS["CTC1"])
    streams = [_part(jobs, site, n_sites, n_jobs) for site in range(n_sites)]
    for mode, fan_out in (
        (Mode.SEARCH, None),
        (Mode.SEARCH, 8),
        (Mode.COALLOCATE, None),
        (Mode.COALLOCATE, 8),
    ):
        asked = "all" if fan_out is None else str(fan_out)
        name = f"{n_sites} sites x 10,000, {mode.value}, {asked} asked"
        say(name)
        settings = GridSettings(((1000,) * 10,) * n_sites, mode, _COST)
        link = LinkSettings(delay_s=0.05, fan_out=fan_out)
        began_s = time.process_time()
        run = simulate_messages(settings, streams, link, clock=time.perf_counter)
        cpu_s = time.process_time() - began_s
        yield from _agreed(name, settings, run)
        yield _time(f"{name}: time of the home site per decision", run.decision_s, len(run.jobs))
        yield _time(f"{name}: time of another site per answer", run.offer_s, len(run.offer_s))
        yield observed(f"{name}: CPU of the simulation per job", 1e3 * cpu_s / len(run.jobs), "ms")


def _part(jobs: Sequence[TraceJob], site: int, n_sites: int, n_jobs: int) -> list[TraceJob]:
    """Some jobs of the log, of another week for each site, so much wider and quicker, from time 0 on."""
    first = site * (len(jobs) - n_jobs) // n_sites
    part = jobs[first : first + n_jobs]
    begin_s = part[0].submit_s
    return [
        job._replace(submit_s=(job.submit_s - begin_s) * _QUICKER, procs=job.procs * _WIDER) for job in part
    ]


def _agreed(name: str, settings: GridSettings, run: GridRun) -> Iterator[Row]:
    """What was agreed, and how: messages between sites and refused confirms."""
    figures = figures_of(run, settings.layout)
    n_jobs = len(run.jobs)
    n_away = sum(site.n_away for site in figures.sites)
    faults = problems(run, settings)
    kinds = ", ".join(f"{kind} {count / n_jobs:.2f}" for kind, count in sorted(run.messages.items()))
    yield observed(f"{name}: AWRT, mean of sites", figures.mean_awrt_s, "s", note=f"{n_jobs:,} jobs")
    yield observed(f"{name}: jobs with blocks at other sites", n_away / n_jobs, "share")
    yield observed(f"{name}: messages per job", sum(run.messages.values()) / n_jobs, "", note=kinds)
    asked = run.messages["confirm"]
    refused = sum(run.refusals.values())
    note = f"{refused:,} refused, {asked:,} confirms sent to other sites, {run.rounds:,} jobs offered anew"
    yield observed(f"{name}: refused confirms per job", refused / n_jobs, "", note=note)
    yield observed(f"{name}: G8, double allocations and other faults", len(faults), "", goal="<= 0")


def _time(what: str, values_s: Sequence[float], n: int) -> Row:
    ms = sorted(1e3 * value for value in values_s)
    note = f"95 %: {ms[int(0.95 * len(ms))]:.2f} ms; mean {statistics.fmean(ms):.2f} ms"
    return replace(observed(what, statistics.median(ms), "ms", note=note), n=n, spread=(ms[0], ms[-1]))


# ---- G7: is a scan of the table linear in the jobs in it? Time of search and insertion over its length

_CAPACITY = 338
_N_JOBS = (1_000, 3_000, 10_000, 30_000, 100_000)
_TIMES = 20


def _filled(n_jobs: int) -> Availability:
    """A table with so many jobs side by side, nowhere with half of it free until its end."""
    table = Availability(_CAPACITY)
    chance = random.Random(n_jobs)
    lanes = [0.0, 0.0]
    for number in range(n_jobs):
        lane = number % 2
        length_s = chance.uniform(1.0, 100.0)
        table.take(chance.randint(100, _CAPACITY // 2), lanes[lane], lanes[lane] + length_s)
        lanes[lane] += length_s
    return table


def scan_rows(quick: bool, series: dict[str, Any]) -> Iterator[Row]:
    """Measure a scan from the first to the last point, and judge the slope in double logarithm."""
    points = []
    for n_jobs in _N_JOBS[:3] if quick else _N_JOBS:
        table = _filled(n_jobs)
        times_s = []
        for _ in range(_TIMES):
            began_s = time.perf_counter()
            start_s = table.earliest(_CAPACITY, 10.0, 0.0)
            table.take(_CAPACITY, start_s, start_s + 10.0)
            times_s.append(time.perf_counter() - began_s)
            table.give_back(_CAPACITY, start_s, start_s + 10.0)
        points.append((n_jobs, table.n_points, min(times_s)))
    series["scan"] = points
    (_, few, few_s), (_, many, many_s) = points[0], points[-1]
    slope = math.log(many_s / few_s) / math.log(many / few)
    note = "; ".join(f"{n:,} points {1e3 * time_s:.2f} ms" for _, n, time_s in points)
    yield observed(
        "G7: exponent of the scan's time over the table's length", slope, "", goal="<= 1.1", note=note
    )


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
            report.add(delay_rows(log, quick, say))
        elif name == "scale":
            report.add(scale_rows(log, quick, say))
        elif name == "formulas":
            _formulas(log, quick, say, report)
        else:
            for preset, gain in GROUPS:
                _group(log, cells_of(preset, gain, _QUICK_DAYS if quick else None), say, report)


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
    from yarn_accel.report.figures import draw_groups

    series = {
        f"site {site + 1}": [results[cell.key]["sites"][site]["awrt_s"] / _HOURS for cell in cells]
        for site in range(len(_COLOURS))
    }
    draw_groups(axes, names, series, _COLOURS)
    axes.set_ylabel("AWRT, hours")
    axes.set_title(title, fontsize="medium")
    axes.legend(fontsize="small", ncols=4)
    axes.set_ylim(top=1.12 * axes.get_ylim()[1])
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)
