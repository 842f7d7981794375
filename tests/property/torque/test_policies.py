"""What must hold of every decision on every cluster."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.fixtures.torque_builders import GIB, NOW_S, gpu_devices, job, node, running, snapshot
from tests.property.torque.live_cluster import LiveCluster
from torque_sched.decide.backfill import AgedReservations
from torque_sched.decide.context import Context, KnownPredictions, Load, PendingStart, Prediction
from torque_sched.decide.decide import decide
from torque_sched.decide.needs import demand_of_memory
from torque_sched.decide.order import FcfsOrder
from torque_sched.decide.rules import NodeRules, QueueRules
from torque_sched.decide.settings import BACKFILLS, ORDERS, PLACEMENTS, Settings
from torque_sched.model.cluster import Job, JobId, Node, NodeName
from torque_sched.model.decisions import NodeShare, Reserve, Start
from torque_sched.model.request import AccessPolicy, GenericResource, Request
from torque_sched.model.snapshot import Snapshot

SPECS = [
    "1",
    "1:ppn=2",
    "2",
    "2:ppn=2",
    "1:gpus=1",
    "1:ppn=2:gpus=2",
    "2:gpus=1",
    "3",
    "1:fast",
    "1:fast+2:ppn=2",
    "1:ppn=4",
]
SPECS += ["n0:ppn=2", "n1+n1:ppn=2"]
World = tuple[Snapshot, Settings, Context]


@st.composite
def nodes(draw: st.DrawFn) -> list[Node]:
    made = []
    for index in range(draw(st.integers(1, 5))):
        gpus = draw(st.sampled_from([0, 0, 1, 2]))
        dirty: dict[int, dict[str, Any]] = {}
        if gpus and draw(st.booleans()):
            dirty = {draw(st.integers(0, gpus - 1)): {"utilization": 0.5}}
        np, mem = draw(st.sampled_from([1, 2, 4, 8])), draw(st.sampled_from([4, 8])) * GIB
        changes: dict[str, Any] = {"properties": ("fast",) if draw(st.booleans()) else ()}
        changes["state"] = draw(st.sampled_from(["", "", "", "offline", "busy"]))
        changes["devices"] = gpu_devices(gpus, used=dirty) if gpus else None
        made.append(
            node(f"n{index}", np, gpus=gpus, mem=mem, loadave=float(draw(st.integers(0, 4))), **changes)
        )
    return made


@st.composite
def queued(draw: st.DrawFn, number: int) -> Job:
    changes: dict[str, Any] = {"user": draw(st.sampled_from(["ann", "bob"]))}
    kind = draw(st.sampled_from(["nodes", "nodes", "nodes", "procs", "gres", "procs with gres"]))
    if kind.startswith("procs"):
        changes["procs"] = draw(st.integers(1, 9))
    if kind.endswith("gres"):
        changes["gres"] = (GenericResource("gpus", draw(st.integers(1, 3))),)
    changes["mem_bytes"] = draw(st.sampled_from([None, None, 2 * GIB, 6 * GIB]))
    changes["walltime_s"] = draw(st.sampled_from([None, 60.0, 5000.0]))
    changes["access"] = draw(st.sampled_from([None, None, None, *AccessPolicy]))
    changes["qtime_s"] = NOW_S - draw(st.sampled_from([5, 10_000]))
    return job(number, draw(st.sampled_from(SPECS)), **changes)


@st.composite
def worlds(draw: st.DrawFn) -> World:
    hosts = draw(nodes())
    jobs: list[Job] = []
    for host in hosts:
        if draw(st.booleans()):
            gpu = f"+{host.name}-gpu/0" if host.gpus and draw(st.booleans()) else ""
            wall = draw(st.sampled_from([None, 700.0, 9000.0]))
            mem = draw(st.sampled_from([None, 2 * GIB]))
            where = f"{host.name}/0{gpu}"
            jobs.append(running(100 + len(jobs), where, walltime_s=wall, mem_bytes=mem, user="bob"))
    waiting = [draw(queued(number)) for number in range(1, draw(st.integers(1, 12)))]
    known = {
        one.id: Prediction(Load(draw(st.floats(0, 4)), draw(st.floats(0, 8)) * GIB))
        for one in waiting
        if draw(st.booleans())
    }
    pending = ()
    if waiting and draw(st.booleans()):
        pending = (PendingStart(waiting[0].id, (NodeShare(hosts[0].name, 1),), NOW_S),)
    made = Settings(
        order=ORDERS[draw(st.sampled_from(sorted(ORDERS)))](),
        placement=PLACEMENTS[draw(st.sampled_from(sorted(PLACEMENTS)))](),
        backfill=BACKFILLS[draw(st.sampled_from(sorted(BACKFILLS)))](),
        nodes=NodeRules(cores_per_idle_gpu=draw(st.integers(0, 2))),
        queues=QueueRules(gpus_per_proc=draw(st.booleans())),
        max_starts=draw(st.sampled_from([1, 100])),
    )
    context = Context(pending=pending, predictions=KnownPredictions(known))
    return snapshot(hosts, [*jobs, *waiting]), made, context


@given(worlds())
def test_one_decision_per_queued_job_and_equal_input_gives_equal_answers(world: World) -> None:
    shot, made, context = world
    decisions = decide(shot, made, context)
    assert sorted(decision.job for decision in decisions) == sorted(one.id for one in shot.queued)
    copy = Snapshot(shot.now_s, shot.server, shot.queues, shot.nodes, shot.jobs)
    assert decide(copy, made, context) == decisions


def started(world: World) -> list[tuple[Job, Start]]:
    """The jobs that start, in their order."""
    shot, made, context = world
    starts = [each for each in decide(shot, made, context) if isinstance(each, Start)]
    return [(shot.job_by_id[each.job], each) for each in starts]


def asked(request: Request, made: Settings) -> tuple[int, int]:
    """Processors and GPUs in all."""
    each = request.procs if made.queues.gpus_per_proc and request.procs else 1
    return request.n_procs, request.n_gpus * each


def given_to(decision: Start | Reserve) -> tuple[int, int]:
    shares = decision.allocation
    return sum(share.slots for share in shares), sum(share.gpus for share in shares)


@given(worlds())
def test_starts_never_use_more_than_there_is_nor_a_bad_gpu(world: World) -> None:
    """Claim L3 of the self-learning paper; the server hands out the lowest free GPU."""
    shot, made, context = world
    slots = {host.name: host.slots_free for host in shot.nodes}
    memory = {host.name: host.mem_bytes for host in shot.nodes}
    used = {(slot.node, slot.index) for one in shot.running for slot in one.allocated_gpus}
    for one in shot.running:
        for name, n in one.slots_by_node().items():
            memory[name] -= demand_of_memory(one.request, n)[0]
    for pending in context.pending:
        for share in pending.allocation:
            slots[share.node] -= share.slots
    for one, start in started(world):
        assert given_to(start) == asked(one.request, made)
        assert len({share.node for share in start.allocation}) == len(start.allocation)
        for share in start.allocation:
            host = shot.node_by_name[share.node]
            slots[share.node] -= share.slots
            memory[share.node] -= demand_of_memory(one.request, share.slots)[0]
            assert slots[share.node] >= 0
            # Rounding up may cost a byte for each share.
            assert memory[share.node] >= 0 or not one.request.mem_bytes
            assert host.is_up
            devices = host.gpu_report.devices if host.gpu_report else ()
            free = [device for device in devices if (share.node, device.index) not in used]
            assert share.gpus <= len(free)
            for device in free[: share.gpus]:
                used.add((share.node, device.index))
                assert not device.utilization


@given(worlds())
def test_jobs_that_want_their_nodes_alone_get_them_alone(world: World) -> None:
    company: dict[NodeName, list[Job]] = {}
    for one in world[0].running:
        for name in one.slots_by_node():
            company.setdefault(name, []).append(one)
    for one, start in started(world):
        for share in start.allocation:
            others = company.setdefault(share.node, [])
            assert not any(other.request.wants_empty_nodes for other in others)
            assert not (one.request.wants_empty_nodes and others)
            if one.request.access is AccessPolicy.SINGLE_USER:
                assert {other.user for other in others} <= {one.user}
            others.append(one)


@given(worlds())
def test_nothing_long_starts_on_what_is_kept(world: World) -> None:
    """Once nodes are kept for a job, later starts leave it its share at its time."""
    shot, made, context = world
    kept: dict[NodeName, tuple[float, int]] = {}
    late: dict[NodeName, int] = {}
    for decision in decide(shot, made, context):
        if isinstance(decision, Reserve):
            kept |= {share.node: (decision.start_s, share.slots) for share in decision.allocation}
        if isinstance(decision, Start):
            limit = shot.job_by_id[decision.job].walltime_s
            for share in decision.allocation:
                # What started before is in the plan already, also where nobody knows its end.
                if share.node in kept and (limit is None or shot.now_s + limit > kept[share.node][0]):
                    late[share.node] = late.get(share.node, 0) + share.slots
    for name, (_, ppn) in kept.items():
        assert ppn + late.get(name, 0) <= shot.node_by_name[name].slots


@given(worlds())
def test_what_is_kept_is_enough_for_the_job(world: World) -> None:
    shot, made, context = world
    made = replace(made, backfill=AgedReservations(after_s=1.0), max_starts=100)
    for decision in decide(shot, made, context):
        if isinstance(decision, Reserve) and decision.allocation:
            ppn, gpus = asked(shot.job_by_id[decision.job].request, made)
            assert given_to(decision)[0] >= ppn
            assert given_to(decision)[1] >= gpus


@settings(max_examples=examples(60))
@given(
    st.lists(st.tuples(st.sampled_from([1, 2]), st.integers(1, 20)), min_size=60, max_size=60),
    st.integers(1, 3),
    st.booleans(),
)
def test_aging_prevents_starvation(stream: list[tuple[int, int]], n_nodes: int, has_limits: bool) -> None:
    """Small jobs of higher priority never stop coming and always fit first; the wide job starts all the same.

    After it is aged (10 minutes) it waits at most for what runs then: 20 minutes.
    """
    wide, aged = job(1, f"{n_nodes}:ppn=2", qtime_s=NOW_S), AgedReservations(after_s=600.0)
    made = Settings(order=FcfsOrder(by_priority=True), backfill=aged, nodes=NodeRules(dead_after_s=0))
    cluster = LiveCluster([node(f"n{i}", 2) for i in range(n_nodes)], made, {wide.id: 1.0}, [wide])
    kept: frozenset[JobId] = frozenset()
    for minute, (ppn, length) in enumerate(stream):
        now_s, limit = NOW_S + 60.0 * minute, 60.0 * length if has_limits else None
        for number in range(10 + 10 * minute, 10 + 10 * minute + n_nodes):
            small = job(number, f"1:ppn={ppn}", qtime_s=now_s, priority=9, walltime_s=limit)
            cluster.waiting.append(small)
            cluster.run_s[small.id] = 60.0 * length
        decisions = cluster.cycle(now_s, Context(kept=kept))
        kept = frozenset(name for name, each in decisions.items() if isinstance(each, Reserve))
        if wide.id in cluster.started:
            return
    raise AssertionError("the wide job starved")
