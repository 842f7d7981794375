"""The Standard Workload Format of the Parallel Workloads Archive: one job a line, 18 numbers, -1 for unknown.

https://www.cs.huji.ac.il/labs/parallel/workload/swf.html. Lines with ``;`` are the header, ``; Key: value``.
A job that was swapped out has a summary line, and one more line of its number for each part it ran in.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from torque_sched.errors import RecordError

_N_FIELDS = 18
_MAX_PROBLEMS = 1000
_MOST = float(1 << 40)
"""Larger numbers are no times, sizes or counts of a machine; sums of smaller ones are exact."""
_PARTIAL = frozenset({2, 3, 4})
_SIZES = ("MaxProcs", "MaxNodes")
_SIZE = re.compile(
    r"([0-9]{1,3}(?:[,'_][0-9]{3})+|[0-9]{1,12})"
    # Behind it words in plenty, and no more of the number: no sum, product, or number of nodes.
    r"(?=[;,.]?(?:\s*$|\s+(?![-+*/x]\s*[0-9]|nodes?\b)[^0-9\s]|\())",
    re.ASCII | re.IGNORECASE,
)
_UNKNOWN = re.compile(r"$|-1\b|unknown|n/?a\b|\?", re.IGNORECASE)


class SwfJob(NamedTuple):
    """One line; -1 where the log does not know. Times count from the log's start."""

    number: int
    submit_s: float
    wait_s: float
    run_s: float
    procs: int
    """Allocated processors."""
    cpu_s: float
    """Mean CPU time of a processor."""
    memory_kb: float
    """Mean memory of a processor, in KiB."""
    requested_procs: int
    requested_s: float
    """Requested run time: the user's estimate."""
    requested_kb: float
    status: int
    user: int
    group: int
    executable: int
    queue: int
    partition: int
    preceding: int
    think_s: float

    @property
    def width(self) -> int:
        """Processors it needs: those requested, else those it got (CTC requests are all unknown)."""
        return self.requested_procs if self.requested_procs > 0 else self.procs

    @property
    def end_s(self) -> float:
        """When it ended in the log's own schedule."""
        return self.submit_s + max(self.wait_s, 0.0) + max(self.run_s, 0.0)


@dataclass(frozen=True, slots=True)
class SwfTrace:
    """A log: n_lines == len(jobs) + n_partial + n_problems."""

    header: dict[str, str]
    jobs: tuple[SwfJob, ...]
    n_problems: int = 0
    problems: tuple[RecordError, ...] = field(default_factory=tuple)
    """The first thousand of them."""
    n_partial: int = 0
    """Lines of parts (status 2, 3 or 4) of a job whose summary line is there; they are no jobs."""

    @property
    def n_lines(self) -> int:
        """Lines that should be jobs."""
        return len(self.jobs) + self.n_partial + self.n_problems

    @property
    def max_procs(self) -> int | None:
        """Processors of the machine, as the header says; None when it does not.

        Raises:
            RecordError: the header says it in a form that is not understood.
        """
        given = {key.lower(): text for key, text in reversed(self.header.items())}
        for key in _SIZES:
            text = given.get(key.lower(), "")
            found = _SIZE.match(text)
            if found is not None:
                size = int(re.sub(r"[^0-9]", "", found.group(1)))
                if key == "MaxNodes":
                    self._check_nodes(size)
                return size
            if not _UNKNOWN.match(text):
                raise RecordError(f"{key}: {text[:60]!r} is no number of processors", cure="give --procs N")
        return None

    def _check_nodes(self, n_nodes: int) -> None:
        """See that nodes are processors in this log, as its header names no number of processors.

        Raises:
            RecordError: a job got more processors than there are nodes.
        """
        widest = max(self.jobs, key=lambda job: job.procs, default=None)
        if widest is not None and widest.procs > n_nodes:
            raise RecordError(
                f"MaxNodes: {n_nodes} nodes have more than a processor each, as job {widest.number} got "
                f"{widest.procs}, and there is no MaxProcs",
                cure="give --procs N",
            )


def parse_swf(lines: Iterable[str]) -> SwfTrace:
    """Read a log in the order of its lines, which need not be that of submission.

    A damaged line becomes a problem that names it; the others are read.
    """
    header: dict[str, str] = {}
    jobs: list[SwfJob] = []
    problems: list[RecordError] = []
    n_problems = 0
    for number, line in enumerate(lines, start=1):
        if number == 1:
            line = line.removeprefix("\ufeff")
        if line.startswith(";"):
            key, colon, value = line.lstrip("; \t").partition(":")
            if colon:
                header.setdefault(key.strip(), value.strip())
        elif line.strip():
            try:
                jobs.append(_job(_words(line)))
            except (ValueError, OverflowError) as error:
                n_problems += 1
                if len(problems) < _MAX_PROBLEMS:
                    problems.append(_damaged(number, line, error))
    whole = _without_parts(jobs)
    return SwfTrace(header, tuple(whole), n_problems, tuple(problems), len(jobs) - len(whole))


def _without_parts(jobs: list[SwfJob]) -> list[SwfJob]:
    """The jobs less the parts of those that have a summary line, of the same number."""
    if not any(job.status in _PARTIAL for job in jobs):
        return jobs
    summaries = {job.number for job in jobs if job.status not in _PARTIAL}
    return [job for job in jobs if job.status not in _PARTIAL or job.number not in summaries]


def _words(line: str) -> list[str]:
    words = line.split()
    # Python reads more as numbers than other readers of this format do.
    if "_" in line or not line.isascii():
        for word in words[:_N_FIELDS]:
            if "_" in word or not word.isascii():
                raise ValueError(f"{word[:20]!r} is no number")
    return words


def _job(words: list[str]) -> SwfJob:
    if len(words) < _N_FIELDS:
        raise ValueError(f"{len(words)} numbers instead of {_N_FIELDS}")
    a = list(map(float, words[:_N_FIELDS]))
    # One check for all: the sum is finite when its terms are; NaN and infinity minus themselves are not 0.
    total = sum(a)
    if total - total != 0:
        raise ValueError("a number that is not finite")
    if max(a) > _MOST or min(a) < -_MOST:
        raise ValueError(f"{max(a, key=abs):g} is no number of a log")
    if not (a[4].is_integer() and a[7].is_integer()):
        raise ValueError("a part of a processor")
    return SwfJob(
        int(a[0]), a[1], a[2], a[3], int(a[4]), a[5], a[6], int(a[7]), a[8], a[9], int(a[10]),
        int(a[11]), int(a[12]), int(a[13]), int(a[14]), int(a[15]), int(a[16]), a[17],
    )  # fmt: skip


def _damaged(number: int, line: str, error: Exception) -> RecordError:
    return RecordError(
        f"line {number} is no job ({error}): {line.strip()[:60]!r}",
        cure="the other lines are used; a job is a line of 18 numbers",
    )
