"""Have faults happen to a site, one after the other, while a job runs; what came of each."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from benchmarks.yarn_site.faults import FAULTS
from benchmarks.yarn_site.job import Batch, Result, RunningJob
from benchmarks.yarn_site.scene import Scene, Strike, calling, scene_of, watch
from benchmarks.yarn_site.site import Site
from yarn_accel.testbed.plan import NetworkMode

__all__ = ["Performed", "Struck", "perform", "why_not"]

#: When this share of its records is done, all its mappers are at work.
_EARLY = 0.2
#: A job that is further than this share of its records may end before a fault has its consequences.
_LATE = 0.6


@dataclass(frozen=True)
class Struck:
    """One fault that has happened.

    Attributes:
        name: in `FAULTS`.
        seconds: from the fault to each of its consequences, by name.
        n_done: records that the job had done when it happened; 0 without one.
        n_failed: calls of the watching mappers that failed because of it.
        n_answers: their calls that were answered meanwhile.
        gap_s: the longest that the client's mapper was without an answer.
        whole_s: from its end until every server served and every node was bound.
    """

    name: str
    seconds: Mapping[str, float]
    n_done: int
    n_failed: int
    n_answers: int
    gap_s: float
    whole_s: float

    def __str__(self) -> str:
        times = ", ".join(f"{what} {value:.2f} s" for what, value in self.seconds.items())
        return (
            f"{FAULTS[self.name].title} (record {self.n_done}): {times}; whole again {self.whole_s:.2f} s; "
            f"{self.n_answers} calls answered, {self.n_failed} failed, longest gap {self.gap_s:.2f} s"
        )


@dataclass(frozen=True)
class Performed:
    """What came of some faults and of the jobs during which they happened: one, seldom more, or none."""

    struck: tuple[Struck, ...]
    results: tuple[Result, ...]


def why_not(site: Site, name: str) -> str:
    """Why a fault cannot happen to a site; empty when it can."""
    if FAULTS[name].needs_links and site.cluster.plan.mode is not NetworkMode.NETNS:
        return "nodes share one network in loopback mode: they have no links of their own"
    if name == "join" and not site.late:
        return "no accelerator node is left that could join"
    return ""


def perform(
    site: Site, names: Sequence[str], batch: Batch | None, say: Callable[[str], None] = lambda line: None
) -> Performed:
    """Have faults happen while a job runs, and wait for its end; another one is begun when it ends too soon.

    Args:
        names: in `FAULTS`; one begins when the consequences of the one before are over.
        batch: the job's records; None: no job runs.
        say: gets a line for each fault.

    Raises:
        ClusterError: a consequence did not come, or the site does not become whole again.
        JobError: a job failed.
    """
    struck, results = [], []
    with calling(site) as callers, ExitStack() as after_job:
        for name in names:
            FAULTS[name].prepare(scene_of(site, callers))
        job = _under_way(site, batch, names[0]) if batch is not None else None
        for name in names:
            if batch is not None and job is not None and job.n_done() > _LATE * batch.n_records:
                results.append(job.result())
                job = _under_way(site, batch, name)
            struck.append(_strike(scene_of(site, callers, job), name, job, after_job))
            say(str(struck[-1]))
        if job is not None:
            results.append(job.result())
    site.until("the site is whole after the job", site.is_whole)
    return Performed(tuple(struck), tuple(results))


def _under_way(site: Site, batch: Batch, name: str) -> RunningJob:
    job = batch.begin(name)
    n_records = 1 if FAULTS[name].is_early else int(_EARLY * batch.n_records)
    site.until("the job is under way", lambda: job.is_under_way(n_records))
    return job


def _strike(here: Scene, name: str, job: RunningJob | None, after_job: ExitStack) -> Struck:
    n_done = job.n_done() if job is not None else 0
    strike = FAULTS[name].strike(here)
    with ExitStack() as afterwards:
        (after_job if FAULTS[name].is_lasting else afterwards).callback(strike.heal)
        seconds = watch(here.site, strike)
    return _struck(here, name, strike, seconds, n_done, _whole(here.site))


def _whole(site: Site) -> float:
    began_s = time.monotonic()
    site.until("the site is whole", site.is_whole)
    return time.monotonic() - began_s


def _struck(
    here: Scene, name: str, strike: Strike, seconds: Mapping[str, float], n_done: int, whole_s: float
) -> Struck:
    late = [each for caller in here.callers.values() for each in caller.answers if each["at"] > strike.at]
    return Struck(
        name=name,
        seconds=seconds,
        n_done=n_done,
        n_failed=sum(each["failed"] for each in late),
        n_answers=len(late),
        gap_s=here.caller.longest_gap_s(strike.at),
        whole_s=whole_s,
    )
