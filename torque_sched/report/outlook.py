"""When a job starts: planned, guaranteed or past, as text and as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torque_sched.core.decisions import NodeShare, Reserve
from torque_sched.core.model import Job, JobState
from torque_sched.learning.promises import KeptPromise, Outcome
from torque_sched.policies.backfilling.show import PlannedStart
from torque_sched.policies.backfilling.show import showstart as planned_start
from torque_sched.report.picture import Picture
from torque_sched.report.promised import outcome_of_job, outcome_words, promise_words
from torque_sched.report.replay import words
from torque_sched.report.tables import clock, job_line
from torque_sched.report.words import span

__all__ = ["Outlook", "outlook_of"]


@dataclass(frozen=True, slots=True)
class Outlook:
    """What there is to say about one job's start.

    Attributes:
        planned: of a job that waits; None: it has started, or has ended.
        kept: its reservation with history.
        outcome: what became of the guaranteed start, of a job that started.
    """

    job: Job
    now_s: float
    planned: PlannedStart | None
    kept: KeptPromise | None
    outcome: Outcome | None

    def lines(self) -> list[str]:
        """For people."""
        told = [job_line(self.job)]
        if self.planned is None:
            told.append(self._past())
            return told
        told.append(self._start(self.planned))
        if self.kept is not None:
            told += promise_words(self.kept)
        elif self.planned.promise is not None:
            told.append(f"guaranteed start: it would be {clock(self.planned.promise.start_s)}")
        told += [f"because: {each}" for each in self.planned.evidence]
        return told

    def _past(self) -> str:
        if self.outcome is not None:
            return outcome_words(self.outcome)
        if self.job.start_s is None:
            return f"start: none; the job is {self.job.state.name.lower()}"
        return f"start: it started {clock(self.job.start_s)}; no start had been guaranteed"

    def _start(self, planned: PlannedStart) -> str:
        if planned.start_s is None:
            # What holds a job is the evidence's first line.
            is_plan = isinstance(planned.decision, Reserve)
            return "start: not known" + (f": {words(planned.decision)}" if is_plan else "")
        nodes = "+".join(_share(each) for each in planned.allocation)
        on = f" on {nodes}" if nodes else ""
        if planned.start_s <= self.now_s:
            return f"start: now{on}"
        sure = "guaranteed" if planned.is_promise else "estimated"
        return f"start: {clock(planned.start_s)}, in {span(planned.start_s - self.now_s)}{on} ({sure})"

    def document(self) -> dict[str, Any]:
        """For programs; times in seconds since the epoch, None: not known."""
        planned, kept, outcome = self.planned, self.kept, self.outcome
        promise = kept.promise if kept is not None and not kept.is_withdrawn else None
        if promise is None and planned is not None:
            promise = planned.promise
        return {
            "job": str(self.job.id),
            "state": self.job.state.value,
            "now_s": self.now_s,
            "start_s": planned.start_s if planned is not None else self.job.start_s,
            "is_guaranteed": planned is not None and planned.is_promise,
            "nodes": [
                {"node": each.node, "ppn": each.ppn, "gpus": each.gpus}
                for each in (planned.allocation if planned is not None else ())
            ],
            "guaranteed_start_s": promise.start_s
            if promise is not None
            else outcome.last_s
            if outcome
            else None,
            "first_guaranteed_start_s": _first_s(kept, promise, outcome),
            "n_better": kept.n_better if kept is not None else outcome.n_better if outcome else 0,
            "n_broken": kept.n_broken if kept is not None else outcome.n_broken if outcome else 0,
            "evidence": list(planned.evidence) if planned is not None else [],
        }


def _first_s(kept: KeptPromise | None, promise: Any, outcome: Outcome | None) -> float | None:
    if kept is not None:
        return kept.promise.first_s
    if outcome is not None:
        return outcome.first_s
    return promise.first_s if promise is not None else None


def _share(each: NodeShare) -> str:
    return f"{each.node}:ppn={each.ppn}" + (f":gpus={each.gpus}" if each.gpus else "")


_PAST = frozenset({JobState.RUNNING, JobState.EXITING, JobState.COMPLETED, JobState.SUSPENDED})


def outlook_of(picture: Picture, job: Job) -> Outlook:
    """What is known about the start of a job, which may be unknown to the server."""
    snapshot = picture.snapshot
    if job.state in _PAST:
        return Outlook(job, snapshot.now_s, None, None, outcome_of_job(picture, job))
    planned = planned_start(snapshot, picture.settings, picture.context, job)
    return Outlook(job, snapshot.now_s, planned, picture.history.promises.about(job), None)
