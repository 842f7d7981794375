"""A small cluster that lives through cycles: jobs start where `decide` says, end early, and nodes fail."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from tests.fixtures.torque_builders import snapshot
from torque_sched.decide.context import Context, starting
from torque_sched.decide.decide import decide
from torque_sched.decide.settings import Settings
from torque_sched.model.cluster import GpuSlot, HostSlots, Job, JobId, Node, NodeName
from torque_sched.model.decisions import Decision, GuaranteedStart, Hold, Reserve, Start
from torque_sched.model.snapshot import Snapshot
from torque_sched.model.states import JobState, NodeState


@dataclass(frozen=True)
class Run:
    """A job on its nodes, from when to when."""

    job: Job
    start: Start
    start_s: float
    end_s: float


@dataclass
class LiveCluster:
    """Nodes, waiting jobs and running ones; checks capacity at every cycle.

    Attributes:
        run_s: how long each job really runs.
        nodes_s: ``pbsnodes`` answers so much later than ``qstat``.
        decide: makes the decisions.
        unseen: jobs that started after ``qstat`` answered; its nodes show them.
    """

    nodes: list[Node]
    settings: Settings
    run_s: dict[JobId, float]
    waiting: list[Job] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    promises: dict[JobId, GuaranteedStart] = field(default_factory=dict)
    first: dict[JobId, float] = field(default_factory=dict)
    started: dict[JobId, Run] = field(default_factory=dict)
    down: set[NodeName] = field(default_factory=set)
    nodes_s: float = 0.0
    unseen: set[JobId] = field(default_factory=set)
    decide: Callable[[Snapshot, Settings, Context], tuple[Decision, ...]] = decide

    def shot(self, now_s: float) -> Snapshot:
        """The cluster as the server would show it."""
        slots: dict[NodeName, int] = {}
        gpus: dict[NodeName, int] = {}
        jobs = []
        for run in self.runs:
            hosts, devices = [], []
            for share in run.start.allocation:
                first, gpu = slots.get(share.node, 0), gpus.get(share.node, 0)
                slots[share.node], gpus[share.node] = first + share.slots, gpu + share.gpus
                hosts.append(HostSlots(share.node, first, first + share.slots - 1))
                devices += [GpuSlot(share.node, gpu + i) for i in range(share.gpus)]
            began = replace(run.job, state=JobState.RUNNING, start_s=run.start_s)
            jobs.append(replace(began, allocated_slots=tuple(hosts), allocated_gpus=tuple(devices)))
        states = {n.name: frozenset({NodeState.DOWN} if n.name in self.down else ()) for n in self.nodes}
        nodes = [
            replace(n, states=states[n.name], status=n.status and replace(n.status, rectime_s=now_s))
            for n in self.nodes
        ]
        plain = snapshot(nodes, jobs)
        ended = {run.job.id for run in self.runs if run.end_s <= now_s + self.nodes_s}
        listed = (
            replace(n, jobs=tuple(part for part in n.jobs if part.job not in ended)) for n in plain.nodes
        )
        running_now = [one for one in jobs if one.id not in self.unseen]
        queued_yet = [run.job for run in self.runs if run.job.id in self.unseen]
        return replace(
            plain, now_s=now_s, nodes=tuple(listed), jobs=(*running_now, *queued_yet, *self.waiting)
        )

    def cycle(self, now_s: float, context: Context | None = None) -> dict[JobId, Decision]:
        """End what is over, decide, start."""
        self.runs = [run for run in self.runs if run.end_s > now_s]
        base = context or Context()
        shot = self.shot(now_s)
        pending = starting(shot)
        decisions = self.decide(shot, self.settings, replace(base, promises=self.promises, pending=pending))
        assert sorted(d.job for d in decisions) == sorted(job.id for job in shot.queued)
        self.unseen.clear()
        self.promises = {}
        for decision in decisions:
            if isinstance(decision, Start):
                job = shot.job_by_id[decision.job]
                run = Run(job, decision, now_s, now_s + self.run_s[job.id])
                self.runs.append(run)
                self.started[job.id] = run
                self.waiting = [one for one in self.waiting if one.id != job.id]
            elif isinstance(decision, Reserve) and decision.promise is not None:
                self.promises[decision.job] = decision.promise
                self.first.setdefault(decision.job, decision.promise.start_s)
            else:
                assert isinstance(decision, Hold | Reserve)
        self._check_capacity()
        return {decision.job: decision for decision in decisions}

    def _check_capacity(self) -> None:
        for host in self.nodes:
            shares = [share for run in self.runs for share in run.start.allocation if share.node == host.name]
            assert sum(share.slots for share in shares) <= host.slots
            assert sum(share.gpus for share in shares) <= host.gpus

    def fail(self, name: NodeName) -> None:
        """The node is down, and what ran there is lost."""
        self.down.add(name)
        self.runs = [run for run in self.runs if all(s.node != name for s in run.start.allocation)]
