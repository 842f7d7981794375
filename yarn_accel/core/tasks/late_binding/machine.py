"""One node's late binding: which of the mappers that wait gets a core, which a GPU, and for how long.

The policies of the task service decide, by a table of tasks that has no journal here: the node is its one
worker, a job of one user an application, and a claim a task. Applications are named by user and job id, so
whoever claims another user's job id only makes an application of his own. Figures are kept by user and job
name.

A place is leased. Its holder renews it; a lease that is not renewed in time, or whose connection closes, ends
at once. Time in which the agent itself stood still does not count against anybody.

*#Alloc and start of an application* are the cluster's: what this node dispatched, and what the master last
said of the others, unless that is too old.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from typing import Any

from yarn_accel.core.tasks.commands import Candidate, StartTask
from yarn_accel.core.tasks.events import EndReason, IoSampled, TaskMeasurement
from yarn_accel.core.tasks.late_binding.records import (
    ClaimRecord,
    JobRecord,
    LateDecision,
    candidate_document,
    claim_document,
)
from yarn_accel.core.tasks.late_binding.values import (
    ClaimCommand,
    ClaimEnded,
    ClaimEvent,
    ClaimId,
    ClaimLost,
    ClaimOpened,
    ClaimRenewed,
    ClaimTimerTicked,
    ClusterCountsReceived,
    ClusterFiguresReceived,
    ExpireClaim,
    GrantClaim,
    IoMeasured,
    LateBindingSettings,
    PlacesChanged,
    RefuseClaim,
)
from yarn_accel.core.tasks.learning import FigureStore
from yarn_accel.core.tasks.policies import SETTINGS, make
from yarn_accel.core.tasks.records import ServedTask
from yarn_accel.core.tasks.table import TaskTable
from yarn_accel.core.tasks.values import AppId, AppSpec, Form, FormDemand, ResourceId, ResourceSpec, TaskId

#: Jobs do not say how many tasks they have; none has as many.
_MANY_TASKS = 2**31
#: Between two events passes no more while there are claims, or this agent stood still.
_STALL_S = 1.5
_MOST_DECISIONS = 50
_NO_GPU = "this node has no GPU for mappers"
_MOST_JOBS = 256


class LateBinder:
    """The claims of one node.

    Args:
        figures: what is believed of jobs from before; it learns into it.
        grants_from_s: until then nobody gets a place, so that those who hold one from an agent before can
            say so.

    Raises:
        ConfigError: the policy or a setting of it is unknown.
    """

    def __init__(
        self, settings: LateBindingSettings, figures: FigureStore | None = None, grants_from_s: float = 0.0
    ) -> None:
        self.settings = settings
        self.figures = figures if figures is not None else FigureStore()
        options = {**settings.policy_settings, "tasks_per_heartbeat": "one"}
        if "measure_wait_s" in SETTINGS.get(settings.policy, ()):
            options.setdefault("measure_wait_s", settings.max_wait_s / 2)
        self._policy = make(settings.policy, options)
        self.table = TaskTable()
        self._policy.follow(self.table)
        self._gpus = settings.gpus
        self._accelerator = settings.accelerator
        self._grants_from_s = grants_from_s
        self._last_s = grants_from_s - settings.lease_s
        self._worker = self.table.add_worker(ResourceId(settings.node))
        self.table.join(self._worker, self._spec())
        self.claims: dict[ClaimId, ClaimRecord] = {}
        self._jobs: dict[AppId, JobRecord] = {}
        self._counted_s: float | None = None
        self._decisions: deque[LateDecision] = deque(maxlen=_MOST_DECISIONS)
        #: How claims went on: gpu, cpu, late, resumed, ended, failed, lost, expired, refused.
        self.outcomes = Counter[str]()
        self._handlers: dict[type, Callable[[Any], list[ClaimCommand]]] = {
            ClaimOpened: self._opened,
            ClaimRenewed: self._renewed,
            ClaimEnded: self._ended,
            ClaimLost: self._lost,
            IoMeasured: self._io_measured,
            ClusterCountsReceived: self._counts_received,
            ClusterFiguresReceived: self._figures_received,
            PlacesChanged: self._places_changed,
            ClaimTimerTicked: self._time_passed,
        }

    def apply(self, event: ClaimEvent) -> tuple[ClaimCommand, ...]:
        """Take one fact in; returns what to do, in this order. An event about an unknown claim is of none."""
        gap_s = event.now_s - self._last_s
        if gap_s > _STALL_S:
            for claim in self.claims.values():
                claim.renewed_s += gap_s
        self._last_s = max(self._last_s, event.now_s)
        commands = self._handlers[type(event)](event)
        return tuple(commands + self._decide(event.now_s))

    # Claims.

    def _opened(self, event: ClaimOpened) -> list[ClaimCommand]:
        request = event.request
        commands: list[ClaimCommand] = []
        if (refusal := self._refusal(event)) is not None:
            self.outcomes["refused"] += 1
            return [refusal]
        for former in self._of_attempt(event):
            self._forget(former, EndReason.LOST, event.now_s)
            commands.append(ExpireClaim(former.claim, "its mapper connected again"))
        job = self._job(event)
        claim = ClaimRecord(event.claim, event.user, request, job, event.now_s, event.now_s)
        self.claims[event.claim] = claim
        job.n_claims += 1
        self.table.add_tasks(self.table.apps[job.app], [TaskId(claim.claim)])
        self.table.announce(event.now_s)
        if event.resumed is not None:
            self._adopt(claim, event.resumed.form, event.resumed.gpus, event.now_s)
            claim.is_resumed = True
            self.outcomes["resumed"] += 1
            grant = GrantClaim(claim.claim, claim.held_form, claim.gpus, "held before this agent knew of it")
            return [*commands, grant]
        return commands

    def _refusal(self, event: ClaimOpened) -> RefuseClaim | None:
        """Why this claim is not taken; None: it is."""
        settings, request = self.settings, event.request
        own = [claim for claim in self.claims.values() if claim.user == event.user]
        app = _app_of(event)
        job = self._jobs.get(app)
        jobs = {claim.job.app for claim in own} | {app}

        def refuse(code: str, message: str) -> RefuseClaim:
            return RefuseClaim(event.claim, code, message)

        former = [] if event.resumed is not None else self._of_attempt(event)
        if event.claim in self.claims or former:
            return refuse("already-claimed", f"attempt {request.attempt} has a claim on this node")
        if len(self.claims) >= settings.max_claims:
            return refuse("node-full", f"this node has {len(self.claims)} claims already")
        if len(own) >= settings.max_claims_per_user:
            return refuse("too-many-claims", f"{event.user} has {len(own)} claims on this node already")
        if len(jobs) > settings.max_jobs_per_user:
            return refuse(
                "too-many-jobs", f"{event.user} has claims of {len(jobs) - 1} jobs on this node already"
            )
        if job is not None and job.demands_of != (request.forms, request.gpus, request.name):
            return refuse("other-forms", f"other mappers of {request.job} named other forms, GPUs or names")
        if (resumed := event.resumed) is not None:
            n_gpus = request.gpus if resumed.form is Form.GPU else 0
            if resumed.form in request.forms and len(resumed.gpus) == n_gpus:
                return None
            return refuse("bad-resume", "it held a place in another form, or with other GPUs")
        if Form.CPU not in request.forms and request.gpus > len(self._gpus):
            return refuse("no-gpu", f"{request.gpus} GPUs wanted, {len(self._gpus)} on this node")
        return None

    def _of_attempt(self, event: ClaimOpened) -> list[ClaimRecord]:
        key = (event.user, event.request.job, event.request.attempt)
        return [
            claim
            for claim in self.claims.values()
            if (claim.user, claim.request.job, claim.request.attempt) == key
        ]

    def _renewed(self, event: ClaimRenewed) -> list[ClaimCommand]:
        claim = self.claims.get(event.claim)
        if claim is not None:
            claim.renewed_s = event.now_s
            if claim.form is not None:
                self._set_reading(claim, event.is_reading)
        return []

    def _set_reading(self, claim: ClaimRecord, is_reading: bool) -> None:
        if is_reading and not claim.is_reading:
            others = [each for each in self.claims.values() if each.is_reading]
            for each in (claim, *others) if others else ():
                each.is_alone = False
        claim.is_reading = is_reading

    def _ended(self, event: ClaimEnded) -> list[ClaimCommand]:
        claim = self.claims.get(event.claim)
        if claim is None:
            return []
        if claim.form is None or not event.is_done:
            self.outcomes["failed"] += 1
            self._forget(claim, EndReason.FAILED, event.now_s)
            return []
        self.outcomes["ended"] += 1
        held_s = max(0.0, event.now_s - claim.granted_s)
        read_s = min(event.read_s, held_s) if event.read_bytes else 0.0
        measured = TaskMeasurement(event.read_bytes, read_s, held_s - read_s, claim.is_alone)
        is_whole = not claim.is_resumed
        self._forget(claim, EndReason.DONE, event.now_s, measured if is_whole else None)
        return []

    def _lost(self, event: ClaimLost) -> list[ClaimCommand]:
        claim = self.claims.get(event.claim)
        if claim is not None:
            self.outcomes["lost"] += 1
            self._forget(claim, EndReason.LOST, event.now_s)
        return []

    def _forget(
        self,
        claim: ClaimRecord,
        reason: EndReason,
        now_s: float,
        measured: TaskMeasurement | None = None,
    ) -> None:
        """Its place is free, or it waits no more."""
        del self.claims[claim.claim]
        claim.job.n_claims -= 1
        claim.job.used_s = now_s
        table, task = self.table, self._task(claim)
        if task.assignment is not None:
            if measured is not None:
                held = task.assignment
                self._policy.learn(table, self.figures, held, measured, now_s - held.since_s)
            table.settle(task.assignment, reason, now_s)
        table.remove_task(task)

    def _task(self, claim: ClaimRecord) -> ServedTask:
        return self.table.tasks[TaskId(claim.claim)]

    def _time_passed(self, event: ClaimTimerTicked) -> list[ClaimCommand]:
        now_s, commands = event.now_s, list[ClaimCommand]()
        for claim in list(self.claims.values()):
            silent_s = now_s - claim.renewed_s
            if silent_s > self.settings.lease_s:
                self.outcomes["expired"] += 1
                self._forget(claim, EndReason.LOST, now_s)
                commands.append(ExpireClaim(claim.claim, f"not renewed for {silent_s:.1f} s"))
        for app, job in list(self._jobs.items()):
            if not job.n_claims and now_s - job.used_s > self.settings.keep_apps_s:
                self._forget_job(app, now_s)
        return commands

    # Jobs.

    def _job(self, event: ClaimOpened) -> JobRecord:
        """The job of a claim, which the policy knows from now on."""
        app, request = _app_of(event), event.request
        job = self._jobs.get(app)
        if job is None:
            demands = {
                form: FormDemand(gpus=request.gpus if form is Form.GPU else 0) for form in request.forms
            }
            spec = AppSpec(app, f"{event.user}/{request.name}", 0, _MANY_TASKS, demands)
            job = JobRecord(app, spec, (request.forms, request.gpus, request.name), event.now_s, event.now_s)
            self._make_space(event.now_s)
            self._jobs[app] = job
            self.table.submit(spec, event.now_s)
        job.used_s = event.now_s
        return job

    def _make_space(self, now_s: float) -> None:
        idle = [job for job in self._jobs.values() if not job.n_claims]
        if len(self._jobs) >= _MOST_JOBS and idle:
            self._forget_job(min(idle, key=lambda job: job.used_s).app, now_s)

    def _forget_job(self, app: AppId, now_s: float) -> None:
        del self._jobs[app]
        self.table.remove_app(self.table.apps[app])

    # What is known of node and cluster.

    def _io_measured(self, event: IoMeasured) -> list[ClaimCommand]:
        n_readers = sum(claim.is_reading for claim in self.claims.values())
        sample = IoSampled(self._worker.id, event.io_bytes_per_s, n_readers, event.sampled_s, event.now_s)
        self.table.sample(self._worker, sample)
        return []

    def _counts_received(self, event: ClusterCountsReceived) -> list[ClaimCommand]:
        self._counted_s = event.now_s
        for app, job in self._jobs.items():
            job.elsewhere = event.counts.get(app)
            if job.elsewhere is not None:
                job.start_s = min(job.start_s, event.now_s - job.elsewhere.age_s)
        return []

    def _figures_received(self, event: ClusterFiguresReceived) -> list[ClaimCommand]:
        self.table.open_all()
        return []

    def _places_changed(self, event: PlacesChanged) -> list[ClaimCommand]:
        if (event.gpus, event.accelerator) == (self._gpus, self._accelerator):
            return []
        self._gpus, self._accelerator = event.gpus, event.accelerator
        self.table.forget_worker(self._worker)
        self._worker = self.table.add_worker(self._worker.id)
        self.table.join(self._worker, self._spec())
        for claim in self.claims.values():
            if claim.form is not None:
                self.table.adopt(self._task(claim), self._worker, claim.form, event.now_s)
        return []

    def _spec(self) -> ResourceSpec:
        settings = self.settings
        return ResourceSpec(
            ResourceId(settings.node),
            settings.node,
            settings.cores,
            len(self._gpus),
            0,
            settings.bandwidth_bytes_per_s,
            self._accelerator,
        )

    def counts_age_s(self, now_s: float) -> float | None:
        """Age of what the master said of the cluster; None: nothing yet."""
        return None if self._counted_s is None else max(0.0, now_s - self._counted_s)

    def _count(self, now_s: float) -> None:
        """Have the policy know the cluster's #Alloc and starts."""
        age_s = self.counts_age_s(now_s)
        is_fresh = age_s is not None and age_s <= self.settings.counts_max_age_s
        for job in self._jobs.values():
            n_alloc, n_gpu = job.n_alloc, job.n_gpu
            if is_fresh and job.elsewhere is not None:
                n_alloc, n_gpu = n_alloc + job.elsewhere.n_alloc, n_gpu + job.elsewhere.n_gpu
            self.table.set_counts(self.table.apps[job.app], n_alloc, n_gpu, job.start_s)

    def own_counts(self, now_s: float) -> dict[AppId, tuple[int, int, float]]:
        """#Alloc, those on GPUs and age in seconds of this node's jobs, for the master."""
        return {
            job.app: (job.n_alloc, job.n_gpu, max(0.0, now_s - job.start_s)) for job in self._jobs.values()
        }

    # Decisions.

    def _decide(self, now_s: float) -> list[ClaimCommand]:
        if now_s < self._grants_from_s or not any(claim.form is None for claim in self.claims.values()):
            return []
        commands: list[ClaimCommand] = []
        self._count(now_s)
        while (decided := self._decide_once(now_s)) is not None:
            commands.append(decided)
            if all(claim.form is not None for claim in self.claims.values()):
                break
        return commands + self._late(now_s)

    def _decide_once(self, now_s: float) -> GrantClaim | None:
        table, started = self.table, None
        candidates = {form: self._candidates(form, now_s) for form in Form}
        for command in self._policy.plan(table, self.figures, now_s):
            table.enact(command, now_s)
            started = command if isinstance(command, StartTask) else started
        if started is None:
            return None
        claim = self.claims[ClaimId(started.task)]
        self._hold(claim, started.form, self._free_gpus(claim, started.form), now_s)
        assignment = self._task(claim).assignment
        assert assignment is not None
        table.begin(assignment, now_s, now_s)
        shown = {form: tuple(map(candidate_document, each)) for form, each in candidates.items()}
        return self._granted(claim, started.reason, now_s, shown)

    def _candidates(self, form: Form, now_s: float) -> tuple[Candidate, ...]:
        return self._policy.candidates(self.table, self.figures, now_s, self._worker.id, form)

    def _late(self, now_s: float) -> list[ClaimCommand]:
        """Those that have waited long enough go on without what they wait for; without GPUs all at once."""
        commands: list[ClaimCommand] = []
        for claim in list(self.claims.values()):
            waited_s = now_s - claim.opened_s
            is_late = waited_s >= self.settings.max_wait_s
            if claim.form is not None or not (is_late or not self._gpus):
                continue
            if Form.CPU in claim.request.forms:
                self._adopt(claim, Form.CPU, (), now_s)
                self.outcomes["late"] += is_late
                reason = f"no place came free for it in {waited_s:.1f} s" if self._gpus else _NO_GPU
                commands.append(self._granted(claim, reason, now_s, {}))
            elif is_late:
                self.outcomes["refused"] += 1
                self._forget(claim, EndReason.LOST, now_s)
                commands.append(
                    RefuseClaim(claim.claim, "no-gpu-in-time", f"no GPU came free in {waited_s:.1f} s")
                )
        return commands

    def _adopt(self, claim: ClaimRecord, form: Form, gpus: tuple[int, ...], now_s: float) -> None:
        """It has a place that the policy did not choose."""
        self._hold(claim, form, gpus, now_s)
        self.table.adopt(self._task(claim), self._worker, form, now_s)

    def _hold(self, claim: ClaimRecord, form: Form, gpus: tuple[int, ...], now_s: float) -> None:
        claim.form, claim.gpus, claim.granted_s = form, gpus, now_s
        claim.job.n_alloc += 1
        claim.job.n_gpu += form is Form.GPU
        self._set_reading(claim, is_reading=True)

    def _free_gpus(self, claim: ClaimRecord, form: Form) -> tuple[int, ...]:
        """Those with the fewest holders; after an agent was replaced one may have two."""
        if form is Form.CPU:
            return ()
        held = Counter(gpu for each in self.claims.values() for gpu in each.gpus)
        free = sorted(self._gpus, key=lambda gpu: (held[gpu], gpu))
        return tuple(sorted(free[: claim.request.gpus]))

    def _granted(
        self,
        claim: ClaimRecord,
        reason: str,
        now_s: float,
        candidates: dict[Form, tuple[dict[str, Any], ...]],
    ) -> GrantClaim:
        claim.reason = reason
        self.outcomes[claim.held_form.value] += 1
        age_s = self.counts_age_s(now_s)
        self._decisions.append(LateDecision.of(claim, now_s, age_s, candidates))
        return GrantClaim(claim.claim, claim.held_form, claim.gpus, reason)

    # For people and tests.

    def explain(self, now_s: float) -> dict[str, Any]:
        """What is held and waits, what was decided and why, what is believed; ages instead of times."""
        settings, age_s = self.settings, self.counts_age_s(now_s)
        is_used = age_s is not None and age_s <= settings.counts_max_age_s
        return {
            "policy": settings.policy,
            "max_wait_s": settings.max_wait_s,
            "lease_s": settings.lease_s,
            "cores": settings.cores,
            "gpus": list(self._gpus),
            "counts_age_s": None if age_s is None else round(age_s, 3),
            "are_counts_used": is_used,
            "claims": [claim_document(claim, now_s) for claim in self.claims.values()],
            "jobs": {
                job.app: {
                    "n_alloc": job.n_alloc,
                    "n_gpu": job.n_gpu,
                    "n_alloc_elsewhere": job.elsewhere.n_alloc if job.elsewhere and is_used else 0,
                    "age_s": round(now_s - job.start_s, 3),
                }
                for job in self._jobs.values()
            },
            "outcomes": dict(self.outcomes),
            "candidates": {
                form.value: [candidate_document(each) for each in self._candidates(form, now_s)]
                for form in Form
            },
            "decisions": [each.document(now_s) for each in reversed(self._decisions)],
        }

    def validate(self) -> None:
        """Check every invariant.

        Raises:
            AssertionError: naming what is broken.
        """
        table = self.table
        table.validate()
        waiting = {ClaimId(task) for app in table.apps.values() for task in app.ready}
        placed = {ClaimId(task) for app in table.apps.values() for task in app.placed}
        held = {claim.claim for claim in self.claims.values() if claim.form is not None}
        assert waiting == self.claims.keys() - held, "claims that wait and tasks that are ready differ"
        assert placed == held, "claims that hold a place and tasks that are placed differ"
        assert set(table.apps) == set(self._jobs), "jobs and applications differ"
        for job in self._jobs.values():
            n = sum(claim.job is job for claim in self.claims.values())
            assert job.n_claims == n, f"{job.app}: {job.n_claims} claims counted, {n} there"
        for user, n in Counter(claim.user for claim in self.claims.values()).items():
            assert n <= self.settings.max_claims_per_user, f"{user} has {n} claims"
        for claim in self.claims.values():
            n_gpus = claim.request.gpus if claim.form is Form.GPU else 0
            assert len(claim.gpus) == n_gpus, f"{claim.claim}: {claim.gpus} for {n_gpus} GPUs"
            assert claim.form is not None or not claim.is_reading, f"{claim.claim}: reads while it waits"
        assert len(self.claims) <= self.settings.max_claims, "too many claims"


def _app_of(event: ClaimOpened) -> AppId:
    return AppId(f"{event.user}/{event.request.job}")
