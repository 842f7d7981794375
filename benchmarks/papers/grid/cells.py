"""The cells of the grid experiment: preset x lambda x window x mode x p; a cell is one simulation.

Four sites get the same jobs: the log's of July to October 1996 (CTC1) or of November 1996 to February 1997
(CTC2), in the zone the log begins in (UTC-4); those that ran, at most 336 processors wide (the widest of them
all), with exact run times.
"""

from __future__ import annotations

import functools
import time
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from torque_sched.core.grid.formulas import SplitCost
from torque_sched.core.grid.model import Mode
from torque_sched.errors import ConfigError
from torque_sched.sim.grid.check import problems
from torque_sched.sim.grid.layout import PRESETS
from torque_sched.sim.grid.metrics import figures_of
from torque_sched.sim.grid.simulator import GridSettings, simulate_grid
from torque_sched.sim.workload import Choice, Overrun, TraceJob, read_trace, workload_of

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
    choice = Choice(procs=_WIDEST, overrun=Overrun.EXTEND, cap_width=True)
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
