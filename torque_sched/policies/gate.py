"""Whether a job may be started at all now, before anybody looks for nodes.

qrun itself starts held jobs and jobs of paused users without asking, so every one of these is checked here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime, tzinfo

from torque_sched.core.decisions import Hold
from torque_sched.core.model import Dependency, Job, JobId
from torque_sched.core.reasons import Reason
from torque_sched.core.snapshot import Snapshot
from torque_sched.core.states import JobState
from torque_sched.policies.context import Context, Window
from torque_sched.policies.rules import QueueRules


def time_text(at_s: float, zone: tzinfo) -> str:
    """A point in time for a comment, to the minute.

    >>> from datetime import timezone
    >>> time_text(0.0, timezone.utc)
    '1970-01-01 00:00 UTC'
    """
    try:
        return datetime.fromtimestamp(at_s, zone).strftime("%Y-%m-%d %H:%M %Z")
    except (OverflowError, ValueError, OSError):
        return f"{at_s:.0f} s after 1970"


class Gate:
    """Checks what concerns the job alone, its queue and its time."""

    def __init__(self, snapshot: Snapshot, context: Context, rules: QueueRules, zone: tzinfo) -> None:
        self._snapshot, self._context, self._rules, self._zone = snapshot, context, rules, zone
        self._now_s = snapshot.now_s
        self._pending = frozenset(start.job for start in context.pending)
        self._dedicated = any(w.start_s <= self._now_s < w.end_s for w in context.dedicated)

    def check(self, job: Job) -> Hold | None:
        """What holds the job; None: nothing of this."""
        if not self._snapshot.server.scheduling:
            return Hold(job.id, Reason.SCHEDULING_OFF)
        return self._check_state(job) or self._check_queue(job) or self._check_back_off(job)

    def _check_state(self, job: Job) -> Hold | None:
        if job.id in self._pending:
            return Hold(job.id, Reason.START_PENDING)
        waits_for = self._unmet(job)
        if waits_for:
            return Hold(job.id, Reason.DEPENDENCY, {"depend": waits_for})
        if job.hold_types or job.state is JobState.HELD:
            holds = ", ".join(sorted(hold.name.lower().replace("_", " ") for hold in job.hold_types))
            return Hold(job.id, Reason.JOB_HELD, {"holds": holds or "unnamed"})
        if job.execution_time_s is not None and job.execution_time_s > self._now_s:
            when = time_text(job.execution_time_s, self._zone)
            return Hold(job.id, Reason.WAITS_FOR_TIME, {"time": when})
        if job.state is not JobState.QUEUED or job.is_array_parent:
            return Hold(job.id, Reason.NOT_QUEUED)
        if job.request.trouble:
            return Hold(job.id, Reason.BAD_REQUEST, {"why": job.request.trouble})
        return None

    def _unmet(self, job: Job) -> str:
        """The dependencies not met yet, as text; usually the server holds such a job by itself."""
        if not job.depend:
            return ""
        unmet = [part for part in job.depend if any(self._is_open(part, other) for other in part.jobs)]
        return ", ".join(f"{part.kind}:{':'.join(part.jobs)}" for part in unmet)

    def _is_open(self, part: Dependency, other: str) -> bool:
        if not part.kind.startswith("after"):
            return False
        # A job the server does not list any more has ended.
        parent = self._snapshot.job_by_id.get(JobId(other.partition("@")[0]))
        if parent is None:
            return False
        return parent.state in _NOT_STARTED if part.kind == "after" else not parent.state.is_final

    def _check_queue(self, job: Job) -> Hold | None:
        if job.queue in self._rules.ignored:
            return Hold(job.id, Reason.QUEUE_IGNORED)
        queue = self._snapshot.queue_by_name.get(job.queue)
        if queue is not None and not queue.is_execution:
            return Hold(job.id, Reason.QUEUE_NOT_EXECUTION)
        if queue is None or not queue.is_started:
            return Hold(job.id, Reason.QUEUE_NOT_STARTED)
        return self._check_dedicated(job)

    def _check_dedicated(self, job: Job) -> Hold | None:
        windows = self._context.dedicated
        prefix = self._rules.dedicated_prefix
        is_for_it = bool(prefix) and job.queue.startswith(prefix)
        if is_for_it != self._dedicated and (is_for_it or self._dedicated):
            return Hold(job.id, Reason.DEDICATED_TIME)
        # Without a walltime it may run into any dedicated time ahead (the C daemon's check.c, too).
        end_s = math.inf if job.walltime_s is None else self._now_s + job.walltime_s
        if self._crosses(windows, end_s, is_for_it):
            return Hold(job.id, Reason.CROSSES_DEDICATED_TIME)
        return None

    def _crosses(self, windows: Sequence[Window], end_s: float, is_for_it: bool) -> bool:
        if is_for_it:
            return any(w.start_s <= self._now_s < w.end_s and end_s > w.end_s for w in windows)
        return any(self._now_s < w.start_s < end_s for w in windows)

    def _check_back_off(self, job: Job) -> Hold | None:
        pause = self._context.back_off.jobs.get(job.id)
        if pause is not None and pause.until_s > self._now_s:
            return Hold(job.id, Reason.JOB_BACK_OFF, {"why": pause.why or "-"})
        return None


_NOT_STARTED = frozenset({JobState.QUEUED, JobState.HELD, JobState.WAITING, JobState.TRANSIT})
