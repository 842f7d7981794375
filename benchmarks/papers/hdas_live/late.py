"""Late binding: two streaming jobs of stock MapReduce at once, whose mappers ask their agents, or do not.

Without late binding a mapper takes a GPU of its node where one is free, and computes on its core otherwise;
YARN starts three on a node. With it YARN starts some more, and the node's agent decides by ``hdas+`` which of
them computes where, three at once. It measures first how long mappers of a new name take; of names that ran
before agents know it and tell each other. All read their splits from HDFS over the limited links.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.papers.hdas_live.setting import LINK_MB_S, SLOWNESS, SPLIT_DIVISOR
from benchmarks.papers.hdas_paper.paper import SETS
from benchmarks.result import Row, measured

#: Times of the paper are divided by so much; splits are the same share of a link's bytes per second.
LATE_SLOWNESS = 6.0
#: A mode -> how the rows call it. `learned` runs the names of the `agent` run of the same repeat once more.
MODES: Mapping[str, str] = {"first": "without", "agent": "with", "learned": "with, figures learned"}
_APPS = ("KNN", "NB")
N_MAPPERS = 12


@dataclass(frozen=True)
class LateApp:
    """One job: its mappers' bytes, and what each computes after it has read them."""

    name: str
    split_bytes: int
    read_s: float
    cpu_s: float
    gpu_s: float

    def alone_s(self, form: str) -> float:
        """T_base of a form."""
        return self.read_s + (self.gpu_s if form == "gpu" else self.cpu_s)


@dataclass(frozen=True)
class LateKey:
    """Which run: one of `MODES`, and its repeat."""

    mode: str
    repeat: int

    @property
    def choose(self) -> str:
        """``--choose`` of the mapper."""
        return "first" if self.mode == "first" else "agent"

    def job_name(self, app: str) -> str:
        """Of a repeat its own, so that nothing is known of it when it is first run."""
        return f"{app}-{self.repeat}"

    def __str__(self) -> str:
        return f"late binding, {MODES[self.mode]}, run {self.repeat + 1}"


@dataclass(frozen=True)
class LateRun:
    """One run of both jobs.

    Attributes:
        makespan_s: from the first mapper's start to the last one's end.
        mean_delay: of reading and computing against those alone.
        mean_wait_s: of a mapper for its answer.
        n_gpu, n_cpu: mappers by form.
        n_undecided: mappers that asked and chose by themselves.
    """

    key: LateKey
    makespan_s: float
    mean_delay: float
    mean_wait_s: float
    n_gpu: int
    n_cpu: int
    n_undecided: int
    load_average: float

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> LateRun:
        """What `asdict` gave."""
        return cls(**{**values, "key": LateKey(**values["key"])})


def late_apps() -> list[LateApp]:
    """Both jobs, scaled."""
    found = []
    for name in _APPS:
        app = SETS["S2"].apps[name]
        read_s = max(app.gpu_read_s, app.split_mb / LINK_MB_S) / LATE_SLOWNESS
        split_bytes = round(app.split_mb * 1e6 / (SPLIT_DIVISOR / SLOWNESS * LATE_SLOWNESS))
        cpu_s, gpu_s = app.cpu_s / LATE_SLOWNESS - read_s, app.gpu_compute_s / LATE_SLOWNESS
        found.append(LateApp(name, split_bytes, read_s, cpu_s, gpu_s))
    return found


def late_run(
    key: LateKey,
    apps: Sequence[LateApp],
    mappers: Iterable[Mapping[str, Any]],
    load_average: float,
    n_mappers: int = N_MAPPERS,
) -> LateRun:
    """Put the lines of all mappers together.

    Args:
        n_mappers: of each job.

    Raises:
        ValueError: a mapper is missing.
    """
    listed = list(mappers)
    if len(listed) != len(apps) * n_mappers:
        raise ValueError(f"{key}: {len(listed)} mappers, {len(apps) * n_mappers} are expected")
    alone_s = {app.name: app.alone_s for app in apps}
    delays = [
        (each["end_s"] - each["start_s"] - each["waited_s"]) / alone_s[each["job"]](each["form"])
        for each in listed
    ]
    n_gpu = sum(each["form"] == "gpu" for each in listed)
    return LateRun(
        key,
        max(each["end_s"] for each in listed) - min(each["start_s"] for each in listed),
        statistics.fmean(delays),
        statistics.fmean(each["waited_s"] for each in listed),
        n_gpu,
        len(listed) - n_gpu,
        sum(key.choose == "agent" and not each["is_decided"] for each in listed),
        load_average,
    )


def late_rows(runs: Sequence[LateRun]) -> Iterator[Row]:
    """The figures of both modes."""
    for mode, name in MODES.items():
        these = [run for run in runs if run.key.mode == mode]
        if not these:
            continue
        forms = f"{sum(r.n_gpu for r in these)} mappers on GPUs, {sum(r.n_cpu for r in these)} on cores"
        undecided = sum(run.n_undecided for run in these)
        note = f"{forms}; {undecided} chose by themselves" if mode != "first" else forms
        yield measured(f"late binding, {name}: time", [run.makespan_s for run in these], "s", note=note)
        yield measured(f"late binding, {name}: mean delay", [run.mean_delay for run in these], "x")
        yield measured(f"late binding, {name}: mean wait", [run.mean_wait_s for run in these], "s")
