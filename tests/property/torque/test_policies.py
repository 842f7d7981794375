"""What must hold of every decision on every cluster."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.unit.torque.policies.builders import GIB, NOW_S, gpu_devices, job, node, running, snapshot
from torque_sched.core.decisions import NodeShare, Reserve, Start
from torque_sched.core.model import Job, JobId, Node, NodeName
from torque_sched.core.request import AccessPolicy, GenericResource
from torque_sched.core.snapshot import Snapshot
from torque_sched.policies.backfill import AgedReservations
from torque_sched.policies.context import Context, KnownPredictions, PendingStart, Prediction
from torque_sched.policies.decide import decide
from torque_sched.policies.load import Load
from torque_sched.policies.needs import demand_of_memory
from torque_sched.policies.order import FcfsOrder
from torque_sched.policies.registry import BACKFILLS, ORDERS, PLACEMENTS
from torque_sched.policies.rules import NodeRules, QueueRules
from torque_sched.policies.settings import Settings

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
]
SPECS += ["1:ppn=4", "n0:ppn=2", "n1+n1:ppn=2"]


@st.composite
def nodes(draw: st.DrawFn) -> list[Node]:
    made = []
    for index in range(draw(st.integers(1, 5))):
        gpus = draw(st.sampled_from([0, 0, 1, 2]))
        dirty: dict[int, dict[str, Any]] = {}
        if gpus and draw(st.booleans()):
            dirty = {draw(st.integers(0, gpus - 1)): {"utilization": 0.5}}
        made.append(
            node(
                f"n{index}",
                draw(st.sampled_from([1, 2, 4, 8])),
                gpus=gpus,
                mem=draw(st.sampled_from([4, 8])) * GIB,
                devices=gpu_devices(gpus, used=dirty) if gpus else None,
                properties=("fast",) if draw(st.booleans()) else (),
                state=draw(st.sampled_from(["", "", "", "offline", "busy"])),
                loadave=float(draw(st.integers(0, 4))),
            )
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
def worlds(draw: st.DrawFn) -> tuple[Snapshot, Settings, Context]:
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
def test_one_decision_per_queued_job_and_equal_input_gives_equal_answers(
    world: tuple[Snapshot, Settings, Context],
) -> None:
    shot, made, context = world
    decisions = decide(shot, made, context)
    assert sorted(decision.job for decision in decisions) == sorted(one.id for one in shot.queued)
    copy = Snapshot(shot.now_s, shot.server, shot.queues, shot.nodes, shot.jobs)
    assert decide(copy, made, context) == decisions


@given(worlds())
def test_starts_never_use_more_than_there_is(world: tuple[Snapshot, Settings, Context]) -> None:
    shot, made, context = world
    slots = {host.name: host.slots_free for host in shot.nodes}
    gpus = {host.name: host.gpus for host in shot.nodes}
    memory = {host.name: host.mem_bytes for host in shot.nodes}
    for one in shot.running:
        for name, n in one.gpus_by_node().items():
            gpus[name] -= n
        for name, n in one.slots_by_node().items():
            memory[name] -= demand_of_memory(one.request, n)[0]
    for start in context.pending:
        for share in start.allocation:
            slots[share.node] -= share.ppn
    for decision in decide(shot, made, context):
        if not isinstance(decision, Start):
            continue
        request = shot.job_by_id[decision.job].request
        assert sum(share.ppn for share in decision.allocation) == request.n_procs
        each = request.procs if made.queues.gpus_per_proc and request.procs else 1
        assert sum(share.gpus for share in decision.allocation) == request.n_gpus * each
        assert len({share.node for share in decision.allocation}) == len(decision.allocation)
        for share in decision.allocation:
            slots[share.node] -= share.ppn
            gpus[share.node] -= share.gpus
            memory[share.node] -= demand_of_memory(request, share.ppn)[0]
            assert slots[share.node] >= 0
            assert gpus[share.node] >= 0
            # Rounding up may cost a byte for each share.
            assert memory[share.node] >= 0 or not request.mem_bytes
            assert shot.node_by_name[share.node].is_up


@given(worlds())
def test_gpu_jobs_land_on_gpu_nodes_only_and_never_on_a_bad_gpu(
    world: tuple[Snapshot, Settings, Context],
) -> None:
    """Claim L3 of the self-learning paper; the server hands out the lowest free GPU."""
    shot, made, context = world
    used = {(slot.node, slot.index) for one in shot.running for slot in one.exec_gpus}
    for decision in decide(shot, made, context):
        for share in decision.allocation if isinstance(decision, Start) else ():
            host = shot.node_by_name[share.node]
            assert share.gpus <= host.gpus
            devices = host.gpu_report.devices if host.gpu_report else ()
            free = [device for device in devices if (share.node, device.index) not in used]
            for device in free[: share.gpus]:
                used.add((share.node, device.index))
                assert not device.utilization


@given(worlds())
def test_jobs_that_want_their_nodes_alone_get_them_alone(world: tuple[Snapshot, Settings, Context]) -> None:
    shot, made, context = world
    users: dict[NodeName, list[str]] = {}
    company: dict[NodeName, list[JobId]] = {}
    for one in shot.running:
        for name in one.slots_by_node():
            users.setdefault(name, []).append(one.user)
            company.setdefault(name, []).append(one.id)
    alone: set[NodeName] = set()
    for decision in decide(shot, made, context):
        if not isinstance(decision, Start):
            continue
        one = shot.job_by_id[decision.job]
        for share in decision.allocation:
            assert share.node not in alone
            if one.request.wants_empty_nodes:
                assert not company.get(share.node)
                alone.add(share.node)
            if one.request.access is AccessPolicy.SINGLE_USER:
                assert set(users.get(share.node, [])) <= {one.user}
            company.setdefault(share.node, []).append(one.id)
            users.setdefault(share.node, []).append(one.user)


@given(worlds())
def test_nothing_long_starts_on_what_is_kept(world: tuple[Snapshot, Settings, Context]) -> None:
    """Once nodes are kept for a job, later starts leave it its share at its time."""
    shot, made, context = world
    decisions = decide(shot, made, context)
    kept: dict[NodeName, tuple[float, int]] = {}
    late: dict[NodeName, int] = {}
    for decision in decisions:
        if isinstance(decision, Reserve):
            for share in decision.allocation:
                kept[share.node] = (decision.start_s, share.ppn)
        if isinstance(decision, Start):
            limit = shot.job_by_id[decision.job].walltime_s
            for share in decision.allocation:
                # What started before is in the plan already, also where nobody knows its end.
                if share.node in kept and (limit is None or shot.now_s + limit > kept[share.node][0]):
                    late[share.node] = late.get(share.node, 0) + share.ppn
    for name, (_, ppn) in kept.items():
        assert ppn + late.get(name, 0) <= shot.node_by_name[name].np


@given(worlds())
def test_what_is_kept_is_enough_for_the_job(world: tuple[Snapshot, Settings, Context]) -> None:
    shot, made, context = world
    made = replace(made, backfill=AgedReservations(after_s=1.0), max_starts=100)
    for decision in decide(shot, made, context):
        if isinstance(decision, Reserve) and decision.allocation:
            request = shot.job_by_id[decision.job].request
            each = request.procs if made.queues.gpus_per_proc and request.procs else 1
            assert sum(share.ppn for share in decision.allocation) >= request.n_procs
            assert sum(share.gpus for share in decision.allocation) >= request.n_gpus * each


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
    hosts = [node(f"n{i}", 2) for i in range(n_nodes)]
    wide = job(1, f"{n_nodes}:ppn=2", qtime_s=NOW_S)
    aged = AgedReservations(after_s=600.0)
    made = Settings(order=FcfsOrder(by_priority=True), backfill=aged, nodes=NodeRules(dead_after_s=0))
    kept: frozenset[JobId] = frozenset()
    runs: list[tuple[float, Job]] = []
    waits: list[Job] = []
    for minute in range(60):
        now_s = NOW_S + 60.0 * minute
        runs = [(end_s, one) for end_s, one in runs if end_s > now_s]
        ppn, length = stream[minute]
        limit = 60.0 * length if has_limits else None
        for copy in range(n_nodes):
            number = 10 + 10 * minute + copy
            waits.append(
                job(number, f"1:ppn={ppn}", qtime_s=now_s, priority=9, walltime_s=limit, user=str(length))
            )
        plain = snapshot(hosts, [*(one for _, one in runs), wide, *waits])
        shot = Snapshot(now_s, plain.server, plain.queues, plain.nodes, plain.jobs)
        decisions = decide(shot, made, Context(kept=kept))
        kept = frozenset(each.job for each in decisions if isinstance(each, Reserve))
        for decision in decisions:
            if not isinstance(decision, Start):
                continue
            if decision.job == wide.id:
                return
            one = shot.job_by_id[decision.job]
            waits.remove(one)
            runs.append((now_s + 60.0 * int(one.user), _running(one, decision, now_s, shot, runs)))
    raise AssertionError("the wide job starved")


def _running(one: Job, start: Start, now_s: float, shot: Snapshot, runs: list[tuple[float, Job]]) -> Job:
    (share,) = start.allocation
    used = {
        slot
        for _, other in runs
        for part in other.exec_host
        if part.node == share.node
        for slot in range(part.first, part.last + 1)
    }
    first = min(slot for slot in range(99) if slot not in used)
    last = first + share.ppn - 1
    return running(
        one.sequence,
        f"{share.node}/{first}-{last}",
        f"1:ppn={share.ppn}",
        since_s=NOW_S - now_s,
        walltime_s=one.walltime_s,
        user=one.user,
    )
