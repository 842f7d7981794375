"""When a job starts: planned, guaranteed or past, as text and as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from datetime import timezone, tzinfo
from typing import Any

from torque_sched.batch.documents import hosts_text, plain
from torque_sched.decide.context import PendingStart
from torque_sched.decide.expected import EXPECTED_JOBS, LOOKED_AT, expected_starts
from torque_sched.decide.explain import PlannedStart
from torque_sched.decide.explain import showstart as planned_start
from torque_sched.decide.settings import BACKFILLS
from torque_sched.errors import ConfigError
from torque_sched.learn.expectations import ErrorSeen
from torque_sched.learn.promises import KeptPromise, Outcome
from torque_sched.model.cluster import Job
from torque_sched.model.decisions import Hold, Start
from torque_sched.model.states import JobState
from torque_sched.model.texts import expected_words, guaranteed_words
from torque_sched.report.picture import Picture
from torque_sched.report.promised import outcome_of_job, outcome_words, promise_words
from torque_sched.report.tables import clock, job_line
from torque_sched.report.words import span

_MORE_JOBS = 1000
"""Planned for a job that is not among the first ones."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """What there is to say about one job's start.

    Attributes:
        planned: of a job that waits; None: it has started, or has ended.
        kept: its reservation with history.
        outcome: what became of the guaranteed start, of a job that started.
        expected_s: when it is expected to start by the run times of ended jobs; None: not known.
        error: how far off such expectations were; None: there is nothing to compare.
        why_none: why no start is guaranteed to a job that waits.
        why_not_expected: why nothing is expected of it.
        zone: of the times that its comment has, too.
        under_way: its start, ordered and not seen in a look at the server yet.
    """

    job: Job
    now_s: float
    planned: PlannedStart | None
    kept: KeptPromise | None
    outcome: Outcome | None
    expected_s: float | None = None
    error: ErrorSeen | None = None
    why_none: str = ""
    why_not_expected: str = ""
    zone: tzinfo = timezone.utc
    under_way: PendingStart | None = None

    def lines(self) -> list[str]:
        """For people."""
        lines = [job_line(self.job)]
        if self.under_way is not None:
            nodes = hosts_text(self.under_way.allocation)
            ordered = clock(self.under_way.asked_s)
            lines.append(
                f"start: it started just now on {nodes}: ordered {ordered}, not confirmed yet by a look"
            )
            return lines
        if self.planned is None:
            lines.append(self._past())
            return lines
        if self.planned.start_s is not None and self.planned.start_s <= self.now_s:
            lines.append(f"start: now{_on(self.planned)}")
        else:
            lines += [self._guaranteed(self.planned), self._expected()]
        if self.kept is not None:
            lines += promise_words(self.kept)[0 if self.kept.is_withdrawn else 1 :]
        lines += [f"because: {each}" for each in self.planned.evidence]
        return lines

    def _past(self) -> str:
        if self.outcome is not None:
            return outcome_words(self.outcome)
        if self.job.start_s is None:
            return f"start: none; the job is {self.job.state.name.lower()}"
        return f"start: it started {clock(self.job.start_s)}; no start had been guaranteed"

    def _guaranteed(self, planned: PlannedStart) -> str:
        """By walltimes: it starts then at the latest."""
        if planned.start_s is None or not planned.is_promise:
            kept = "" if planned.start_s is None else f"; nodes are kept for it{_on(planned)}"
            return f"guaranteed: none{kept}: {self.why_none}"
        # The last cycle's, as the job's comment has it; the plan of now may be sooner, and the next cycle's.
        kept_s = self.kept.promise.start_s if self.kept is not None and not self.kept.is_withdrawn else 0.0
        latest_s = max(planned.start_s, kept_s)
        text = f"guaranteed: {guaranteed_words(latest_s, self.zone)}"
        return f"{text}, in {span(latest_s - self.now_s)}{_on(planned)}"

    def _expected(self) -> str:
        """By the run times of ended jobs, with the error seen so far."""
        if self.expected_s is None:
            return f"expected: not known: {self.why_not_expected}"
        text = expected_words(self.expected_s, self.zone).removeprefix("expected ")
        return f"expected: {text}, in {span(self.expected_s - self.now_s)}; {error_words(self.error)}"

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
            "start_s": self._start_s(),
            "is_under_way": self.under_way is not None,
            "expected_start_s": self.expected_s,
            "expected_error": asdict(self.error) if self.error is not None else None,
            "is_guaranteed": planned is not None and planned.is_promise,
            "nodes": [plain(each) for each in (planned.allocation if planned is not None else ())],
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

    def _start_s(self) -> float | None:
        if self.under_way is not None:
            return self.under_way.asked_s
        return self.planned.start_s if self.planned is not None else self.job.start_s


def _first_s(kept: KeptPromise | None, promise: Any, outcome: Outcome | None) -> float | None:
    if kept is not None:
        return kept.promise.first_s
    if outcome is not None:
        return outcome.first_s
    return promise.first_s if promise is not None else None


def error_words(error: ErrorSeen | None) -> str:
    """What an expected start is worth, by those before it."""
    if error is None:
        return "no past starts to compare"
    return (
        f"of {error.n} past starts half came between {_late(error.low_s)} and {_late(error.high_s)} than "
        f"expected, the middle one {_late(error.median_s)}"
    )


def _late(error_s: float) -> str:
    return f"{span(abs(error_s))} {'earlier' if error_s < 0 else 'later'}"


def _on(planned: PlannedStart) -> str:
    nodes = hosts_text(planned.allocation)
    return f" on {nodes}" if nodes else ""


_PAST = frozenset({JobState.RUNNING, JobState.EXITING, JobState.COMPLETED, JobState.SUSPENDED})


def outlook_of(picture: Picture, job: Job) -> Outlook:
    """What is known about the start of a job, which may be unknown to the server."""
    snapshot, settings = picture.snapshot, picture.settings
    if job.state in _PAST:
        return Outlook(job, snapshot.now_s, None, None, outcome_of_job(picture, job))
    for start in picture.context.pending:
        if start.job == job.id:
            return Outlook(job, snapshot.now_s, None, None, None, zone=settings.zone, under_way=start)
    planned = planned_start(snapshot, settings, picture.context, job)
    expected_s, why_not = _expected_start(picture, planned, job)
    return Outlook(
        job, snapshot.now_s, planned, picture.history.promises.about(job), None, expected_s,
        picture.history.expectations.error, _why_none(picture, planned), why_not, settings.zone,
    )  # fmt: skip


def _why_none(picture: Picture, planned: PlannedStart) -> str:
    backfill = picture.settings.backfill
    if backfill.ahead is not None and isinstance(planned.decision, Hold):
        return _holds(planned.decision)
    name = next((name for name, kind in BACKFILLS.items() if kind is type(backfill)), "this one")
    return f"backfill {name} guarantees no start"


def _expected_start(picture: Picture, planned: PlannedStart, job: Job) -> tuple[float | None, str]:
    """As the daemon expects it, so that the job's comment says the same; else why nothing is."""
    snapshot = picture.snapshot
    if isinstance(planned.decision, Start):
        return None, ""
    if job.id not in snapshot.job_by_id:
        snapshot = replace(snapshot, jobs=(*snapshot.jobs, job))
    if picture.context.predictions.expect(job) is None:
        return None, "no job has ended yet"
    for n_jobs in (EXPECTED_JOBS, _MORE_JOBS):
        try:
            found = expected_starts(snapshot, picture.settings, picture.context, planned.starts, n_jobs)
        except ConfigError as error:
            return None, error.message
        at_s = found.get(job.id)
        if at_s is not None:
            guaranteed_s = planned.start_s if planned.is_promise and planned.start_s is not None else at_s
            return min(at_s, guaranteed_s), ""
        if len(snapshot.queued) <= n_jobs:
            break
    held = planned.decision if isinstance(planned.decision, Hold) else None
    if held is not None:
        return None, _holds(held)
    n_most = LOOKED_AT * _MORE_JOBS
    is_far = len(snapshot.queued) > n_most
    return None, f"more than {n_most} jobs wait" if is_far else "too little is known of how long jobs run"


def _holds(decision: Hold) -> str:
    return decision.comment.removeprefix("Not Running: ")
