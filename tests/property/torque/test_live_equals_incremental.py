"""`decide` on snapshots, with promises carried, answers as one long-lived policy that is told events."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.property.torque.live_cluster import LiveCluster
from tests.unit.torque.policies.builders import GIB, NOW_S, job, node
from torque_sched.core.decisions import Reserve
from torque_sched.core.model import Job, JobId, Node
from torque_sched.policies.backfill import ConservativeBackfill
from torque_sched.policies.backfilling.conservative import Conservative
from torque_sched.policies.backfilling.events import BatchJob, Ended, Event, Submitted
from torque_sched.policies.backfilling.node_steps import N_AMOUNTS
from torque_sched.policies.backfilling.node_table import NodeNeed, NodeSpot, NodeTable, Part
from torque_sched.policies.placement.plain import FirstFitPlacement
from torque_sched.policies.rules import NodeRules
from torque_sched.policies.settings import Settings

SPECS = [
    "1",
    "1:ppn=2",
    "1:ppn=4",
    "2",
    "2:ppn=2",
    "2:ppn=3",
    "3:ppn=2",
    "1:gpus=1",
    "2:gpus=2",
    "1:fast:ppn=2",
]


class LongLived:
    """The policy object over a table of its own, from the first instant to the last."""

    def __init__(self, nodes: list[Node]) -> None:
        self.nodes = nodes
        capacity = np.zeros((len(nodes), N_AMOUNTS), np.int64)
        for index, host in enumerate(nodes):
            capacity[index, :4] = host.np, host.gpus, host.mem_bytes, host.mem_bytes
        table = NodeTable(tuple(n.name for n in nodes), capacity, NOW_S, resolution_s=1.0)
        self.policy: Conservative[NodeNeed, NodeSpot] = Conservative(table)

    def batch(self, one: Job) -> BatchJob[NodeNeed]:
        (chunk,) = one.request.chunks
        mem = (one.request.mem_bytes or 0) // chunk.count
        indices = [
            index
            for index, host in enumerate(self.nodes)
            if set(chunk.properties) <= set(host.properties)
            and host.np >= chunk.ppn
            and host.gpus >= chunk.gpus
            and host.mem_bytes >= mem
        ]
        indices.sort(key=lambda index: (bool(self.nodes[index].gpus) and not chunk.gpus, index))
        part = Part(np.array(indices, np.intp), chunk.ppn, chunk.gpus, chunk.count, mem, mem)
        return BatchJob(one.id, NodeNeed((part,)), one.walltime_s or 0.0, one.sequence)


@st.composite
def workloads(draw: st.DrawFn) -> tuple[list[Node], list[tuple[float, Job]], dict[JobId, float]]:
    nodes = []
    n_nodes = draw(st.integers(2, 4))
    for index in range(n_nodes):
        gpus = 2 if index == n_nodes - 1 else 0
        fast = ("fast",) if draw(st.booleans()) else ()
        nodes.append(
            node(f"n{index}", draw(st.sampled_from([2, 4])), gpus=gpus, mem=4 * GIB, properties=fast)
        )
    jobs, run_s = [], {}
    for number in range(1, draw(st.integers(3, 14))):
        changes: dict[str, Any] = {"mem_bytes": draw(st.sampled_from([None, None, 4 * GIB]))}
        one = job(
            number,
            draw(st.sampled_from(SPECS)),
            walltime_s=float(draw(st.integers(1, 40)) * 100),
            **changes,
        )
        part = draw(st.integers(1, 10)) / 10
        run_s[one.id] = (one.walltime_s or 0.0) * part if part < 1 else one.walltime_s or 0.0
        jobs.append((NOW_S + 37.0 * number * draw(st.integers(1, 3)), one))
    jobs.sort(key=lambda each: each[0])
    return nodes, jobs, run_s


@settings(deadline=None, max_examples=examples(60))
@given(workloads())
def test_decide_answers_as_the_policy_told_events(
    workload: tuple[list[Node], list[tuple[float, Job]], dict[JobId, float]],
) -> None:
    nodes, jobs, run_s = workload
    made = Settings(
        placement=FirstFitPlacement(),
        backfill=ConservativeBackfill(slack_s=0.0, resolution_s=1.0, window_s=1e9),
        nodes=NodeRules(cores_per_idle_gpu=0, dead_after_s=0),
    )
    cluster, long = LiveCluster(nodes, made, run_s), LongLived(nodes)
    wake_s = float("inf")
    todo = list(jobs)
    for _ in range(400):
        ends = sorted((run.end_s, run.job.sequence, run) for run in cluster.runs)
        now_s = min([wake_s, *(at for at, _ in todo[:1]), *(end for end, _, _ in ends[:1])])
        if now_s == float("inf"):
            break
        over = [run for end, _, run in ends if end <= now_s]
        early = [run for run in over if run.end_s < run.start_s + (run.job.walltime_s or 0.0)]
        new = [one for at, one in todo if at <= now_s]
        if len(early) > 1:
            return  # The long-lived object compresses after each, decide once: both are right.
        todo = [(at, one) for at, one in todo if at > now_s]
        fitting = [one for one in new if _fits(long, one)]
        cluster.waiting += fitting
        events: list[Event[NodeNeed]] = [Ended(run.job.id) for run in over]
        events += [Submitted(long.batch(one)) for one in fitting]
        outcome = long.policy.apply(events, now_s)
        wake_s = min((promise.start_s for promise in long.policy.promises), default=float("inf"))
        cluster.freed = bool(early)
        decisions = cluster.cycle(now_s)
        starts = {str(start.key): start.spot for start in outcome.starts}
        assert starts.keys() == {name for name, run in cluster.started.items() if run.start_s == now_s}
        elsewhere = [
            name
            for name, spot in starts.items()
            if {s.node for s in spot.shares}
            != {s.node for s in cluster.started[JobId(name)].start.allocation}
        ]
        if elsewhere and early and len(starts) > 1:
            return  # The first chooses once more after all have moved, or before: both are right.
        assert not elsewhere
        told = {d.job: d.start_s for d in decisions.values() if isinstance(d, Reserve)}
        assert told == {promise.key: promise.start_s for promise in long.policy.promises}
        assert outcome.broken == ()
    assert not cluster.waiting


def _fits(long: LongLived, one: Job) -> bool:
    part = long.batch(one).need.parts[0]
    return len(part.nodes) >= part.count
