"""When jobs were expected to start, and when they did: what an expected start is worth.

Of each job that waits the first expectation is kept; when it starts, it tells an error. Like `PromiseBook`
this does no I/O: it hands out what is to be written until `saved` says that it was.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from torque_sched.learn.promises import started_s
from torque_sched.learn.rows import Expectation, JobKey
from torque_sched.model.cluster import Job, JobId
from torque_sched.model.snapshot import Snapshot

_COMPARED = 1000
_MAX_WAITING = 50_000


@dataclass(frozen=True, slots=True)
class ErrorSeen:
    """Real starts less expected ones, in seconds; above 0: later than expected.

    Attributes:
        n: jobs compared.
        low_s: a quarter of them came not later than this; `high_s`: three quarters.
    """

    n: int
    median_s: float
    low_s: float
    high_s: float


def error_seen(errors_s: Sequence[float]) -> ErrorSeen | None:
    """Median and quartiles; None without any.

    >>> error_seen([1.0, -5.0, 9.0])
    ErrorSeen(n=3, median_s=1.0, low_s=-5.0, high_s=9.0)
    """
    if not errors_s:
        return None
    ordered = sorted(errors_s)
    last = len(ordered) - 1
    low, middle, high = (ordered[round(share * last)] for share in (0.25, 0.5, 0.75))
    if len(ordered) < 4:
        low, high = ordered[0], ordered[-1]
    return ErrorSeen(len(ordered), middle, low, high)


class ExpectationBook:
    """The first expectation of each job that waits, and the errors of those that started.

    Args:
        rows: what a file holds, the jobs that started last at the end.
    """

    def __init__(self, rows: Iterable[Expectation] = ()) -> None:
        self._waiting: dict[JobKey, Expectation] = {}
        self._errors_s: deque[float] = deque(maxlen=_COMPARED)
        self._changed: dict[JobKey, Expectation] = {}
        self._gone: dict[JobKey, None] = {}
        for row in rows:
            if row.start_s is None:
                self._waiting[row.key] = row
            else:
                self._errors_s.append(row.start_s - row.expected_s)

    @property
    def error(self) -> ErrorSeen | None:
        """Of the last jobs that started; None: none did that had an expectation."""
        return error_seen(tuple(self._errors_s))

    def reported(self, snapshot: Snapshot, expected: Mapping[JobId, float]) -> None:
        """Keep what is expected of jobs of which nothing was before."""
        for job_id, at_s in expected.items():
            job = snapshot.job_by_id.get(job_id)
            if job is not None and _key(job) not in self._waiting and len(self._waiting) < _MAX_WAITING:
                self._put(Expectation(_key(job), snapshot.now_s, at_s))

    def observe(self, snapshot: Snapshot, ended: Mapping[JobKey, float | None]) -> None:
        """Compare the jobs that started, and drop those that are gone.

        Args:
            snapshot: now.
            ended: starts of jobs that ended and may be missing in the snapshot, by accounting.
        """
        for key, row in tuple(self._waiting.items()):
            job = snapshot.job_by_id.get(JobId(key[0]))
            if job is not None and _key(job) != key:
                job = None
            began_s = started_s(job, snapshot.now_s) if job is not None else ended.get(key)
            if began_s is not None:
                self._errors_s.append(began_s - row.expected_s)
                self._put(replace(row, start_s=began_s))
                del self._waiting[key]
            elif job is None or job.state.is_final:
                del self._waiting[key]
                self._changed.pop(key, None)
                self._gone[key] = None

    def _put(self, row: Expectation) -> None:
        if row.start_s is None:
            self._waiting[row.key] = row
        self._changed[row.key] = row
        self._gone.pop(row.key, None)

    def facts(self) -> tuple[tuple[Expectation, ...], tuple[JobKey, ...]]:
        """Rows that changed, and those that go, since `saved`."""
        return tuple(self._changed.values()), tuple(self._gone)

    def saved(self) -> None:
        """What `facts` said is written."""
        self._changed.clear()
        self._gone.clear()


def _key(job: Job) -> JobKey:
    return job.id, job.ctime_s or 0.0
