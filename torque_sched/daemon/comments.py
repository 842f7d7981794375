"""Which comment each job is to have, and the few qalter calls that bring it there.

Level-triggered: the comment a job has is in the snapshot, the one it should have follows from the decision;
only differences are written, so a call that was lost is simply due again next time. A comment that differs in
its figures only is renewed at the pace of `Renewal`: each costs the server a request, and with thousands of
planned starts they all move a little with every job that ends.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

from torque_sched.model.cluster import Job, JobId
from torque_sched.model.decisions import Decision, Hold, Reserve, Start
from torque_sched.model.reasons import Reason, run_failure_comment
from torque_sched.model.snapshot import Snapshot
from torque_sched.model.states import JobState

IDS_PER_CALL = 2000
"""Far below the kernel's limit for an argument list: an id takes at most some 100 bytes."""

_VALUE = re.compile(r",(\s*[A-Za-z_][\w.]*=)")
_DETAIL = re.compile(r"\([^()]*\)|[0-9]+")
_MOMENT = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}")
_WAITING = "Not Running"
_STARTED = "Job started on "
_SET_ASIDE = frozenset({JobState.HELD, JobState.WAITING})


@dataclass(frozen=True, slots=True)
class CommentCall:
    """One comment for many jobs."""

    text: str
    jobs: tuple[JobId, ...]


@dataclass(slots=True)
class CommentPace:
    """For how many jobs one call may be, so that it does not hold up the next cycle.

    Attributes:
        call_s: how long a call is to take.
        n_jobs: so many jobs are taken by the next call.
    """

    call_s: float = 0.2
    n_jobs: int = 64

    def took(self, n_jobs: int, wall_s: float) -> None:
        """Learn from a call; after a full one it grows to the double at most, and it shrinks at once."""
        fitting = int(self.call_s / max(wall_s, 1e-4) * n_jobs)
        most = 2 * n_jobs if n_jobs >= self.n_jobs else self.n_jobs
        self.n_jobs = max(1, min(fitting, most, IDS_PER_CALL))


@dataclass(frozen=True, slots=True)
class Renewal:
    """How often comments are written again that differ in figures only.

    Attributes:
        every_s: figures of one comment are renewed so often.
        moved: a planned start counts as another one when it moved by more than this share of what is left.
        timer_s: none is renewed for so long after the last ones.
        per_s: comments written per second, in the long run: what other ones leave is for these.
    """

    every_s: float = 60.0
    moved: float = 0.1
    timer_s: float = 30.0
    per_s: float = 5.0

    def share_moved(self, present: str, text: str, left_s: float) -> float:
        """How far the moments in a comment moved, as a share of what is left; 0.0 where it has none.

        Args:
            present: the comment that the job has; its moments are minutes of the same zone.
            text: the one it is to have, which differs in figures only.
            left_s: until the planned start.
        """
        before, now = _moments(present), _moments(text)
        if not before or len(before) != len(now):
            return 0.0
        moves_s = [(new - was).total_seconds() for was, new in zip(before, now, strict=True)]
        return max(map(abs, moves_s)) / max(left_s - moves_s[0], 1.0)


def _moments(text: str) -> list[datetime]:
    moments = []
    for found in _MOMENT.findall(text):
        with suppress(ValueError):
            moments.append(datetime.fromisoformat(found))
    return moments


def plain_comment(text: str) -> str:
    """The comment in a form that survives qalter's ``name=value,name=value``.

    >>> plain_comment('wants "x", ppn=2')
    "wants 'x'; ppn=2"
    """
    return _VALUE.sub(r";\1", text.replace('"', "'"))


def with_an_old_comment(snapshot: Snapshot) -> list[Job]:
    """Jobs that were held, or put off, after a scheduler had written something else.

    Those without a comment are left out: their state says it, and there may be thousands. So is a job held
    without a hold type, for any change may make the server queue it.
    """
    return [
        job
        for job in snapshot.jobs
        if job.state in _SET_ASIDE and job.comment.startswith((_WAITING, _STARTED))
        if not job.is_array_parent and (job.hold_types or job.state is JobState.WAITING)
    ]


class CommentPlan:
    """Plans the comments of each cycle.

    Args:
        renewal: how often comments are written again that differ in figures only.
    """

    def __init__(self, renewal: Renewal | None = None) -> None:
        self.renewal = renewal or Renewal()
        self._written_s: dict[JobId, float] = {}
        self._renewed_s = -math.inf
        self._n_written = 0

    def plan(
        self,
        snapshot: Snapshot,
        decisions: Iterable[Decision],
        started: Mapping[JobId, float],
        failure_text: Callable[[JobId], str],
        started_comment: Callable[[float], str],
    ) -> list[CommentCall]:
        """What is to be written: newly started jobs first, then those without a comment, the newest first.

        Last come those whose figures alone are renewed, as far as `Renewal` lets them.

        Args:
            snapshot: with the comments the jobs have.
            decisions: one for each queued job, and what keeps others whose comment is out of date.
            started: when each job of this cycle was started, seconds since the epoch.
            failure_text: the server's words to a job's last start; empty: it did not fail.
            started_comment: the comment of a job started then.
        """
        groups = _of_started(snapshot, started, started_comment)
        untold: dict[str, list[JobId]] = {}
        others: dict[str, list[JobId]] = {}
        renewed: list[tuple[float, float, str, JobId]] = []
        for decision in decisions:
            found = snapshot.job_by_id.get(decision.job)
            if found is None or decision.job in started:
                continue
            text = _wanted(decision, failure_text(decision.job))
            present = found.comment.rstrip()
            # qalter leaves a blank in the place of the closing quote, where a text had to be quoted.
            if not text or present == text.rstrip():
                continue
            if _DETAIL.sub("", present) != _DETAIL.sub("", text):
                (others if found.comment else untold).setdefault(text, []).append(decision.job)
            elif (moved := self._moved(found, decision, text, snapshot.now_s)) is not None:
                renewed.append((-moved, self._written_s.get(found.id, 0.0), text, found.id))
        for gone in self._written_s.keys() - snapshot.job_by_id.keys():
            del self._written_s[gone]
        for text, job in self._renewed(renewed, snapshot.now_s):
            others.setdefault(text, []).append(job)
        calls = (*groups.items(), *((text, jobs[::-1]) for text, jobs in untold.items()), *others.items())
        return [
            CommentCall(text, tuple(jobs[at : at + IDS_PER_CALL]))
            for text, jobs in calls
            for at in range(0, len(jobs), IDS_PER_CALL)
        ]

    def written(self, call: CommentCall, now_s: float) -> None:
        """The call was made."""
        self._written_s.update(dict.fromkeys(call.jobs, now_s))
        self._n_written += len(call.jobs)

    def _moved(self, job: Job, decision: Decision, text: str, now_s: float) -> float | None:
        """How far the start of a comment moved whose figures are to be renewed; None: they are not."""
        present = job.comment.rstrip()
        if isinstance(decision, Reserve) and _MOMENT.sub("", present) == _MOMENT.sub("", text.rstrip()):
            moved = self.renewal.share_moved(present, text, decision.start_s - now_s)
            return moved if moved > self.renewal.moved else None
        return 0.0 if now_s - self._written_s.get(job.id, 0.0) >= self.renewal.every_s else None

    def _renewed(
        self, due: list[tuple[float, float, str, JobId]], now_s: float
    ) -> Iterator[tuple[str, JobId]]:
        """Of those that are due the ones that moved most, then the oldest, at the pace of the timer."""
        if not due or 0.0 <= now_s - self._renewed_s < self.renewal.timer_s:
            return
        self._renewed_s = now_s
        n_jobs = max(1, int(self.renewal.per_s * self.renewal.timer_s) - max(0, self._n_written))
        self._n_written = -min(n_jobs, len(due))
        for _, _, text, job in sorted(due)[:n_jobs]:
            yield text, job


def _of_started(
    snapshot: Snapshot, started: Mapping[JobId, float], started_comment: Callable[[float], str]
) -> dict[str, list[JobId]]:
    """Comments of jobs that run, by text."""
    groups: dict[str, list[JobId]] = {}
    for job, started_s in started.items():
        groups.setdefault(started_comment(started_s), []).append(job)
    # Started in a cycle, or by a daemon, that ended before it could say so.
    for running in snapshot.running:
        has_a_comment = running.comment and not running.comment.startswith(_WAITING)
        if running.state is JobState.RUNNING and not has_a_comment:
            at_s = running.start_s if running.start_s is not None else snapshot.now_s
            groups.setdefault(started_comment(at_s), []).append(running.id)
    return groups


def _wanted(decision: Decision, failure: str) -> str:
    """The comment for a job that was not started; empty: leave what it has."""
    if isinstance(decision, Start):
        return plain_comment(run_failure_comment(failure)) if failure else ""
    if isinstance(decision, Hold):
        if decision.reason in {Reason.START_PENDING, Reason.SCHEDULING_OFF}:
            return ""
        # As the C daemon has it: the server's words stay until the next try.
        if decision.reason in {Reason.JOB_BACK_OFF, Reason.START_FAILED} and failure:
            return plain_comment(run_failure_comment(failure))
    return plain_comment(decision.comment)
