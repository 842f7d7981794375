"""Everything the daemon remembers from one cycle to the next, in one class that does no I/O.

The snapshot is the truth; this only holds what no snapshot can show: which starts were asked for and not
seen yet, and what failed. So a lost answer costs a cycle and never a job: whatever is wrong here is
corrected by the next `observe`, and a daemon that begins with nothing goes on where the last one was. What
failed is kept besides (`pauses`, `restore`), so that a restart does not try it all at once again.

The life of a start: `asked` before the order; `answered` with its answer; then each `observe` compares
it with the job. Running (as its node reports) or finished means it worked; back in the queue means that its
node refused it, which no answer says because the order does not wait for nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from torque_sched.batch.system import OrderKind, OrderResult
from torque_sched.daemon.failures import BlackHoleRules, BlackHoles, Failures, Finding, Pauses, Steps
from torque_sched.decide.context import BackOff, Pause, PendingStart
from torque_sched.learn.rows import PauseRow
from torque_sched.model.cluster import Job, JobId, NodeName
from torque_sched.model.decisions import NodeShare
from torque_sched.model.snapshot import Snapshot
from torque_sched.model.states import JobState, StartProgress

_STARTED = frozenset({JobState.SUSPENDED, JobState.EXITING, JobState.COMPLETED})
_PUT_BACK = frozenset({JobState.HELD, JobState.WAITING})
_MOM_FAILED = range(-9, 0)
"""Exit statuses that say the mom could not start the job (-10 and below: it broke a limit)."""
_OFTEN_STARTED = 3
"""A job whose start fails is left alone itself from this start on."""

# What a refusal says: the job is left alone, these nodes are left alone for this job, or nobody is to blame.
_BLAMES_JOB = frozenset(
    {
        OrderKind.WRONG_STATE, OrderKind.ARRAY_PARENT, OrderKind.ARRAY_LIMIT, OrderKind.QUEUE_STOPPED,
        OrderKind.NO_REQUEST, OrderKind.USAGE, OrderKind.OTHER, OrderKind.BAD_ID,
    }
)  # fmt: skip
_BLAMES_NODES = frozenset({OrderKind.NOT_NOW, OrderKind.NEVER})


@dataclass(frozen=True, slots=True)
class BackOffRules:
    """How long what failed is left alone, and how much failing makes a node suspect.

    Attributes:
        job: pauses of a job whose start failed for its own sake.
        pair: pauses of a job on nodes that refused it.
        node: pauses of a node that failed several jobs.
        node_after_jobs: so many different jobs must have failed on a node in a row.
        settle_s: a job may look queued so long after its start was accepted.
    """

    job: Steps = field(default_factory=lambda: Steps(15.0, 900.0))
    pair: Steps = field(default_factory=lambda: Steps(30.0, 1800.0))
    node: Steps = field(default_factory=lambda: Steps(60.0, 3600.0))
    node_after_jobs: int = 2
    settle_s: float = 3.0


@dataclass(frozen=True, slots=True)
class _Asked:
    start: PendingStart
    is_accepted: bool = False
    """qrun said so; False while, or because, there was no answer."""


class PendingOrders:
    """Starts not confirmed and failures not forgiven."""

    def __init__(self, rules: BackOffRules | None = None, black_holes: BlackHoleRules | None = None) -> None:
        self._rules = rules or BackOffRules()
        self._asked: dict[JobId, _Asked] = {}
        self._jobs: Pauses[JobId] = Pauses(self._rules.job)
        self._pairs: Pauses[tuple[JobId, NodeName]] = Pauses(self._rules.pair)
        self._nodes: Pauses[NodeName] = Pauses(self._rules.node)
        self._failed_on: dict[NodeName, set[JobId]] = {}
        self._black_holes = BlackHoles(black_holes or BlackHoleRules())
        self._failure_texts: dict[JobId, str] = {}

    def use(self, rules: BackOffRules, black_holes: BlackHoleRules) -> None:
        """Judge by other rules from now on; what failed before stays known."""
        self._rules = rules
        self._jobs.steps, self._pairs.steps, self._nodes.steps = rules.job, rules.pair, rules.node
        self._black_holes.use(black_holes)

    # -- what a decision may know

    @property
    def pending(self) -> tuple[PendingStart, ...]:
        """Starts asked for and not confirmed."""
        return tuple(asked.start for asked in self._asked.values())

    def back_off(self, now_s: float) -> BackOff:
        """What must not be tried now."""
        pairs: dict[JobId, dict[NodeName, Pause]] = {}
        for (job, node), pause in self._pairs.active(now_s).items():
            pairs.setdefault(job, {})[node] = pause
        nodes = {**self._nodes.active(now_s), **self._black_holes.paused(now_s)}
        return BackOff(self._jobs.active(now_s), nodes, pairs)

    def pauses(self) -> tuple[PauseRow, ...]:
        """All failures not forgiven, to be kept: a daemon started anew goes on with them."""
        rows = [_row("job", job, "", each) for job, each in self._jobs.entries().items()]
        rows += [_row("node", "", node, each) for node, each in self._nodes.entries().items()]
        rows += [_row("pair", job, node, each) for (job, node), each in self._pairs.entries().items()]
        holes = self._black_holes.pauses.entries().items()
        return (*rows, *(_row("black-hole", "", node, each) for node, each in holes))

    def restore(self, rows: Iterable[PauseRow], now_s: float) -> None:
        """Go on with what a daemon before left alone."""
        for row in rows:
            entry = Failures(row.failures, row.until_s, row.why)
            job, node = JobId(row.job), NodeName(row.node)
            if row.kind == "job":
                self._jobs.restore(job, entry, now_s)
            elif row.kind == "node":
                self._nodes.restore(node, entry, now_s)
            elif row.kind == "pair":
                self._pairs.restore((job, node), entry, now_s)
            elif row.kind == "black-hole":
                self._black_holes.pauses.restore(node, entry, now_s)

    def failure_text(self, job: JobId) -> str:
        """What the server said to the job's last start; empty when that worked or was never tried."""
        return self._failure_texts.get(job, "")

    # -- what was done

    def asked(self, job: JobId, allocation: tuple[NodeShare, ...], now_s: float) -> None:
        """A qrun is about to be run."""
        self._asked[job] = _Asked(PendingStart(job, allocation, now_s))

    def answered(self, job: JobId, result: OrderResult, now_s: float) -> list[Finding]:
        """A qrun ended."""
        asked = self._asked.get(job)
        if asked is None:
            return []
        if result.kind is OrderKind.STARTED:
            self._asked[job] = replace(asked, is_accepted=True)
            self._failure_texts.pop(job, None)
            return []
        if result.kind is not OrderKind.OTHER:
            del self._asked[job]
        if result.kind in _BLAMES_JOB:
            self._jobs.failed(job, now_s, result.text)
        if result.kind in _BLAMES_JOB | _BLAMES_NODES:
            self._failure_texts[job] = result.text
        if result.kind in _BLAMES_NODES:
            return self._blame_nodes(job, asked.start.allocation, result, now_s)
        return []

    def _blame_nodes(
        self, job: JobId, allocation: tuple[NodeShare, ...], result: OrderResult, now_s: float
    ) -> list[Finding]:
        for share in allocation:
            self._pairs.failed((job, share.node), now_s, result.text)
        # Of several nodes nobody can say which one it was; and a wrong list is the job's matter.
        if len(allocation) > 1 or result.kind is OrderKind.NEVER:
            return []
        return self._suspect(allocation[0].node, job, now_s, result.text)

    def _suspect(self, node: NodeName, job: JobId, now_s: float, why: str) -> list[Finding]:
        failed = self._failed_on.setdefault(node, set())
        failed.add(job)
        if len(failed) < self._rules.node_after_jobs or node in self._nodes.active(now_s):
            return []
        pause_s = self._nodes.failed(node, now_s, why)
        text = f"failed {len(failed)} jobs, left alone for {pause_s:.0f} s: {why}"
        return [Finding("node-paused", node, text)]

    # -- what became of it

    def observe(self, snapshot: Snapshot) -> list[Finding]:
        """Compare what was asked for with what is; returns what is worth a log line."""
        now_s = snapshot.now_s
        findings: list[Finding] = []
        for asked in tuple(self._asked.values()):
            findings += self._verify(asked, snapshot.job_by_id.get(asked.start.job), now_s)
        findings += self._black_holes.observe(snapshot)
        self._prune(snapshot.job_by_id, now_s)
        return findings

    def _verify(self, asked: _Asked, job: Job | None, now_s: float) -> list[Finding]:
        start = asked.start
        if job is None:
            del self._asked[start.job]
            return []
        if job.state in _STARTED or (job.state is JobState.RUNNING and job.progress is StartProgress.BEGUN):
            del self._asked[start.job]
            if job.exit_status is not None and job.exit_status in _MOM_FAILED:
                return self._fell_back(start, now_s, f"its mom ended it with status {job.exit_status}", job)
            return self._worked(start)
        # A clock that was put back must not keep a start on its way for hours.
        if job.state is JobState.RUNNING or abs(now_s - start.asked_s) < self._rules.settle_s:
            return []  # on its way
        del self._asked[start.job]
        # Held or waiting for a time again: somebody's order, no node's failure.
        if not asked.is_accepted or job.state in _PUT_BACK:
            return []
        if job.array is not None and job.progress is StartProgress.LEFT:
            return self._left(job, now_s)
        return self._fell_back(start, now_s, "its mom did not start it", job)

    def _left(self, job: Job, now_s: float) -> list[Finding]:
        """The array had as many members running as it may, which ``qrun -a`` does not tell."""
        why = "the array slot limit has been reached"
        self._jobs.failed(job.id, now_s, why)
        self._failure_texts[job.id] = why
        return [Finding("start-failed", job.id, why)]

    def _worked(self, start: PendingStart) -> list[Finding]:
        self._jobs.worked(start.job)
        self._failure_texts.pop(start.job, None)
        for share in start.allocation:
            self._nodes.worked(share.node)
            self._failed_on.pop(share.node, None)
            self._pairs.worked((start.job, share.node))
        return [Finding("start-confirmed", start.job, "runs")]

    def _fell_back(self, start: PendingStart, now_s: float, why: str, job: Job) -> list[Finding]:
        nodes = "+".join(share.node for share in start.allocation)
        text = f"{why} ({nodes})"
        self._failure_texts[start.job] = text
        for share in start.allocation:
            self._pairs.failed((start.job, share.node), now_s, why)
        if job.start_count >= _OFTEN_STARTED:
            # On whatever node: OpenPBS holds a job after more than 20 starts that failed.
            self._jobs.failed(start.job, now_s, why)
        findings = [Finding("start-failed", start.job, text)]
        # The first node is the mother superior, which starts the job; of the others nothing is known.
        return findings + self._suspect(start.allocation[0].node, start.job, now_s, why)

    def _prune(self, jobs: Mapping[JobId, Job], now_s: float) -> None:
        def gone(names: Iterable[JobId]) -> list[JobId]:
            return [name for name in names if name not in jobs or jobs[name].state.is_final]

        self._jobs.forget(gone(self._jobs.names()))
        self._pairs.forget([key for key in self._pairs.names() if gone((key[0],))])
        for job in gone(self._failure_texts):
            del self._failure_texts[job]
        self._jobs.prune(now_s)
        self._pairs.prune(now_s)
        self._nodes.prune(now_s)
        for node, names in tuple(self._failed_on.items()):
            names.difference_update(gone(names))
            if not names:
                del self._failed_on[node]


def _row(kind: str, job: str, node: str, entry: Failures) -> PauseRow:
    return PauseRow(kind, job, node, entry.failures, entry.until_s, entry.why)
