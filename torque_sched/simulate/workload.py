"""From a log to the jobs of an experiment: which lines count, and with which width, run time and limit.

Rules (those of the referee schedules; every one is counted: lines in = simulated + rejected + ignored):

* a job that never ran (run time 0 or -1), has no width, no time of submission, or is wider than the machine
  is rejected; a damaged line is, too;
* parts of a job that has a summary line (status 2, 3, 4) are ignored: its summary is the job;
* width is what was asked for, else (-1: CTC, SDSC-Par) what the job got;
* a limit of -1 or 0 is unknown: the run time stands in for it;
* a job that ran longer than its limit ends at the limit (``kill``), or runs on (``extend``);
* order of arrival is (submit, number), whatever the order of the lines.

Times are plain numbers of whatever unit the log has; where all are whole they are integers, so that no sum of
them is ever rounded.
"""

from __future__ import annotations

import codecs
import enum
import gzip
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from torque_sched.errors import ConfigError, DocumentError, RecordError
from torque_sched.simulate.swf import SwfJob, SwfTrace, parse_swf


class Overrun(enum.Enum):
    """What becomes of a job at its limit."""

    KILL = "kill"
    EXTEND = "extend"


class Rejected(enum.Enum):
    """Why a line of the log is no job of the experiment."""

    DAMAGED = "damaged line"
    NO_SUBMIT = "no time of submission"
    NEVER_RAN = "run time 0 or unknown"
    NO_WIDTH = "no processors"
    TOO_WIDE = "wider than the machine"
    NOT_CHOSEN = "beyond --max-jobs"
    OTHER_TIME = "outside of --from and --to"
    NEVER_STARTED = "never started"


class TraceJob(NamedTuple):
    """A job of the experiment; times in the log's unit, seconds unless it says otherwise."""

    number: int
    submit_s: float
    procs: int
    run_s: float
    """As long as it will run: cut at the limit where overruns are killed."""
    limit_s: float
    """What its user asked for."""
    user: int
    group: int
    executable: int
    queue: int


@dataclass(frozen=True, slots=True)
class LogSelection:
    """What of a log is simulated.

    Attributes:
        procs: processors of the machine; None: as the log's header says.
        overrun: what becomes of jobs that ran longer than their limit.
        max_jobs: only the first so many that count, by submission; None: all.
        cap_width: run jobs wider than the machine on all of it, in place of rejecting them.
        allocated: width is what a job got, where the log knows it, in place of what it asked for.
    """

    procs: int | None = None
    overrun: Overrun = Overrun.KILL
    max_jobs: int | None = None
    cap_width: bool = False
    allocated: bool = False


@dataclass(frozen=True, slots=True)
class Workload:
    """Jobs in order of arrival; ``n_lines == len(jobs) + sum(rejected) + n_ignored``."""

    procs: int
    jobs: tuple[TraceJob, ...]
    n_lines: int
    rejected: Mapping[Rejected, int] = field(default_factory=dict)
    n_overran: int = 0
    """Jobs that the log has running past their limit."""
    n_without_limit: int = 0
    n_ignored: int = 0
    """Lines of parts of jobs that have a summary line."""


def read_trace(path: Path) -> SwfTrace:
    """A log in the Standard Workload Format, compressed (``.gz``) or not.

    Raises:
        DocumentError: it cannot be read, or holds no single job.
    """
    opened = gzip.open if path.suffix == ".gz" else open
    troubles: list[str] = []
    try:
        with opened(path, "rb") as begin:
            encoding = "utf-16" if begin.read(2) in {codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE} else "utf-8"
        with opened(path, "rt", encoding=encoding, errors="replace") as lines:
            trace = parse_swf(_until_damaged(lines, troubles))
    except (OSError, EOFError, zlib.error) as error:
        troubles.append(getattr(error, "strerror", None) or str(error))
        raise DocumentError(f"{path}: {troubles[0]}", cure="give a log FILE.swf or FILE.swf.gz") from None
    if troubles:
        # The jobs before that place count.
        damage = RecordError(f"{path.name} is damaged: {troubles[0]}", cure="get the file anew")
        problems = (*trace.problems, damage)
        trace = replace(trace, n_problems=trace.n_problems + 1, problems=problems)
    if not trace.jobs:
        first = f"; {trace.problems[0]}" if trace.problems else ""
        raise DocumentError(f"{path} holds no job{first}", cure="a job is a line of 18 numbers")
    return trace


def _until_damaged(lines: Iterable[str], troubles: list[str]) -> Iterator[str]:
    """The lines up to where a compressed file cannot be read on, and why it cannot."""
    try:
        yield from lines
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        troubles.append(str(error))


def workload_of(trace: SwfTrace, choice: LogSelection) -> Workload:
    """The jobs that count.

    Raises:
        ConfigError: neither the choice nor the log's header says how large the machine is.
        RecordError: the header says it in a form that is not understood.
    """
    procs = choice.procs if choice.procs is not None else trace.max_procs
    if not procs or procs < 1:
        raise ConfigError("the log does not say how many processors there are", cure="give --procs N")
    rejected: Counter[Rejected] = Counter()
    if trace.n_problems:
        rejected[Rejected.DAMAGED] = trace.n_problems
    kept: list[SwfJob] = []
    for job in trace.jobs:
        width = job.procs if choice.allocated and job.procs > 0 else job.width
        if job.run_s > 0 and job.submit_s >= 0 and width > 0 and (width <= procs or choice.cap_width):
            kept.append(job)
        else:
            rejected[_refusal(job, width)] += 1
    # By submission, then number.
    kept.sort(key=attrgetter("number"))
    kept.sort(key=attrgetter("submit_s"))
    if choice.max_jobs is not None and len(kept) > choice.max_jobs:
        rejected[Rejected.NOT_CHOSEN] = len(kept) - choice.max_jobs
        del kept[choice.max_jobs :]
    return Workload(
        procs,
        tuple(_jobs(kept, procs, choice)),
        trace.n_lines,
        dict(rejected),
        sum(1 for job in kept if 0 < job.requested_s < job.run_s),
        sum(1 for job in kept if job.requested_s <= 0),
        trace.n_partial,
    )


def _refusal(job: SwfJob, width: int) -> Rejected:
    if job.run_s <= 0:
        return Rejected.NEVER_RAN
    if job.submit_s < 0:
        return Rejected.NO_SUBMIT
    return Rejected.NO_WIDTH if width <= 0 else Rejected.TOO_WIDE


def _jobs(kept: list[SwfJob], procs: int, choice: LogSelection) -> list[TraceJob]:
    times = (map(attrgetter(name), kept) for name in ("submit_s", "run_s", "requested_s"))
    number = int if all(map(float.is_integer, chain.from_iterable(times))) else float
    is_killed, by_allocation = choice.overrun is Overrun.KILL, choice.allocated
    jobs: list[TraceJob] = []
    for job in kept:
        run_s, limit_s = job.run_s, job.requested_s
        if limit_s <= 0:
            limit_s = run_s
        elif is_killed and run_s > limit_s:
            run_s = limit_s
        width = job.procs if by_allocation and job.procs > 0 else job.width
        made = TraceJob(
            job.number, number(job.submit_s), min(width, procs), number(run_s), number(limit_s), job.user,
            job.group, job.executable, job.queue,
        )  # fmt: skip
        jobs.append(made)
    return jobs
