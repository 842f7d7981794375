"""What pbs_server leaves to its scheduler, one small example each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures.torque_builders import (
    GIB,
    NOW_S,
    answers,
    gpu_devices,
    job,
    node,
    queue,
    running,
    snapshot,
)
from torque_sched.decide.backfill import AgedReservations, ConservativeBackfill, EasyBackfill
from torque_sched.decide.context import BackOff, Context, Pause, PendingStart, Window
from torque_sched.decide.decide import decide
from torque_sched.decide.placement.plain import FirstFitPlacement
from torque_sched.decide.rules import MemoryRules, NodeRules, QueueRules
from torque_sched.decide.settings import Settings
from torque_sched.model.cluster import Dependency, Job, JobId, NodeName, QueueName, Resources, Server
from torque_sched.model.decisions import Hold, NodeShare, Start
from torque_sched.model.reasons import Reason
from torque_sched.model.request import AccessPolicy, Chunk, GenericResource, Request
from torque_sched.model.snapshot import Reservation
from torque_sched.model.states import HoldType, JobState

FIRST = Settings(placement=FirstFitPlacement())
ON_N1 = "n1:ppn=1"
ONE_GPU = (GenericResource("gpus", 1),)
PLANNERS = pytest.mark.parametrize("backfill", [AgedReservations(), EasyBackfill(), ConservativeBackfill()])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"pvmem_bytes": 900 * GIB}, "1 node with 2 slots and pvmem=900gb: the largest node has"),
        ({"pmem_bytes": 900 * GIB}, "1 node with 2 slots and pmem=900gb: the largest node has"),
        ({"vmem_bytes": 1800 * GIB}, "1 node with 2 slots and vmem=1800gb: the largest node has"),
        ({"pvmem_bytes": GIB, "vmem_bytes": 1800 * GIB}, "and vmem=1800gb"),
    ],
)
def test_memory_is_told_by_the_name_it_was_asked_by(changes: dict[str, Any], words: str) -> None:
    got = answers([node("n1", 4)], [job(1, "1:ppn=2", **changes)], FIRST)
    assert got.reason(1) is Reason.NEVER_FITS
    assert words in got.comment(1)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"hold_types": frozenset({HoldType.USER})}, Reason.JOB_HELD),
        ({"execution_time_s": NOW_S + 1}, Reason.WAITS_FOR_TIME),
        ({"depend": (Dependency("afterok", ("9.head",)),)}, Reason.DEPENDENCY),
        ({"depend": (Dependency("after", ("8.head",)),)}, Reason.DEPENDENCY),
        ({"depend": (Dependency("after", ("9.head",)),)}, ON_N1),
        ({"depend": (Dependency("afterok", ("77.head",)),)}, ON_N1),
        ({"depend": (Dependency("beforeok", ("9.head",)),)}, ON_N1),
        ({"trouble": "nodes=:x"}, Reason.BAD_REQUEST),
        ({"queue": "closed"}, Reason.QUEUE_NOT_STARTED),
        ({"queue": "unknown"}, Reason.QUEUE_NOT_STARTED),
        ({"queue": "route"}, Reason.QUEUE_NOT_EXECUTION),
        ({"queue": "hidden"}, Reason.QUEUE_IGNORED),
        ({"execution_time_s": NOW_S - 1}, ON_N1),
    ],
)
def test_a_job_that_must_not_run(changes: dict[str, Any], reason: Reason | str) -> None:
    queues = [queue(), queue("closed", is_started=False), queue("route", queue_type="Route"), queue("hidden")]
    settings = Settings(queues=QueueRules(ignored=frozenset({QueueName("hidden")})))
    jobs = [running(9, "n2/0"), job(8, hold_types=frozenset({HoldType.USER})), job(1, **changes)]
    assert answers([node("n1"), node("n2")], jobs, settings, queues=queues).told[1] == reason
    off = answers([node("n1"), node("n2")], [job(1)], settings, server=Server(scheduling=False))
    assert off.told == {1: Reason.SCHEDULING_OFF}


@pytest.mark.parametrize(
    ("server", "queue_limits", "reason"),
    [
        ({"max_running": 1}, {}, Reason.SERVER_JOB_LIMIT),
        ({"max_user_run": 1}, {}, Reason.SERVER_USER_LIMIT),
        ({"max_group_run": 1}, {}, Reason.SERVER_GROUP_LIMIT),
        ({}, {"max_running": 1}, Reason.QUEUE_JOB_LIMIT),
        ({}, {"max_user_run": 1}, Reason.QUEUE_USER_LIMIT),
        ({}, {"max_group_run": 1}, Reason.QUEUE_GROUP_LIMIT),
        ({"max_running": 0}, {}, Reason.SERVER_JOB_LIMIT),
        ({"max_running": 2, "max_user_run": 2}, {"max_group_run": 2}, ON_N1),
    ],
)
def test_limits_count_what_runs_and_what_just_started(
    server: dict[str, int], queue_limits: dict[str, int], reason: Reason | str
) -> None:
    limits: dict[str, Any] = {"server": Server(**server), "queues": [queue(**queue_limits)]}  # type: ignore[arg-type]
    pending = Context(pending=(PendingStart(JobId("3.head"), (NodeShare(NodeName("n1"), 1),), NOW_S),))
    assert answers([node("n1")], [running(9, "n1/0"), job(1)], **limits).told == {1: reason}
    assert answers([node("n1")], [job(1), job(2)], **limits).told[2] == reason
    told = answers([node("n1")], [job(3), job(4)], context=pending, **limits).told
    assert told == {3: Reason.START_PENDING, 4: reason}


def test_user_and_group_limits_leave_others_alone() -> None:
    jobs = [running(9, "n1/0"), job(1), job(2, user="bob"), job(3, user="bob")]
    told = answers([node("n1")], jobs, server=Server(max_user_run=1)).told
    assert told == {1: Reason.SERVER_USER_LIMIT, 2: ON_N1, 3: Reason.SERVER_USER_LIMIT}


def test_resources_available_less_assigned() -> None:
    available = Resources({"mem": "8gb", "nodect": "3", "matlab": "1"})
    server = Server(resources_available=available, resources_assigned=Resources({"mem": "5gb"}))
    jobs = [job(1, mem_bytes=4 * GIB), job(2, mem_bytes=2 * GIB), job(3, "3"), job(6, mem_bytes=9 * GIB)]
    jobs += [job(number, gres=(GenericResource("matlab"),)) for number in (4, 5)]
    got = answers([node(f"n{i}") for i in range(8)], jobs, server=server)
    assert got.started == [2, 4]
    assert "Not enough memory available" in got.comment(1)
    assert "Not enough nodes available" in got.comment(3)
    assert (got.reason(5), got.reason(6)) == (Reason.NOT_ENOUGH_RESOURCE, Reason.NEVER_FITS)


def test_array_slot_limit() -> None:
    first, *rest = (f"47[{i}].head" for i in (0, 1, 2))
    member = replace(running(47, "n1/0"), id=JobId(first), array_index=0, array_slot_limit=2)
    jobs = [member, *(job(name, array_slot_limit=2) for name in rest)]
    assert answers([node("n1")], jobs).told == {rest[0]: ON_N1, rest[1]: Reason.ARRAY_SLOT_LIMIT}
    # Where the server holds what is beyond the limit, it may have been raised since (qalter -t %3).
    told = answers([node("n1")], jobs, server=Server(holds_beyond_array_limits=True)).told
    assert told == dict.fromkeys(rest, ON_N1)


@pytest.mark.parametrize(
    ("asks", "spec", "fits"),
    [
        ({"mem_bytes": 48 * GIB}, "1", True),
        ({"mem_bytes": 49 * GIB}, "1", False),
        ({"pmem_bytes": 25 * GIB}, "1:ppn=2", False),
        ({"pmem_bytes": 24 * GIB}, "1:ppn=2", True),
        ({"vmem_bytes": 57 * GIB}, "1", False),
        ({"vmem_bytes": 56 * GIB}, "1", True),
        ({"pvmem_bytes": 30 * GIB}, "1:ppn=2", False),
    ],
)
def test_memory_is_the_sum_of_requests(asks: dict[str, Any], spec: str, fits: bool) -> None:
    one = node("n1", mem=64 * GIB, totmem_bytes=72 * GIB, availmem_bytes=72 * GIB)
    told = answers([one], [running(9, "n1/0", mem_bytes=16 * GIB), job(1, spec, **asks)]).told
    assert told == {1: f"n1:ppn={spec[-1]}" if fits else Reason.NO_FREE_MEMORY}


def test_memory_must_be_free_now_whoever_uses_it() -> None:
    taken = [node("n1", availmem_bytes=4 * GIB)]
    assert answers(taken, [job(1, mem_bytes=5 * GIB)]).reason(1) is Reason.NO_FREE_MEMORY
    assert answers(taken, [job(1, mem_bytes=3 * GIB), job(2, mem_bytes=3 * GIB)]).started == [1]
    lenient = Settings(memory=MemoryRules(check_available=False))
    assert answers(taken, [job(1, mem_bytes=5 * GIB)], lenient).started == [1]
    trusting = Settings(memory=MemoryRules(sum_requests=False))
    full = [running(9, "n1/0", mem_bytes=60 * GIB), job(1, mem_bytes=10 * GIB)]
    assert answers([node("n1")], full, trusting).started == [1]


def test_what_can_never_fit_is_told_and_not_deleted() -> None:
    jobs = [job(1, "1:ppn=5"), job(2, "3"), job(3, "2:ppn=4")]
    got = answers([node("n1", 4), node("n2", 4, state="down")], jobs)
    # A node that is down may come back.
    assert got.told == {1: Reason.NEVER_FITS, 2: Reason.NEVER_FITS, 3: Reason.NODES_UNUSABLE}
    assert "5 slots: the largest node has 4 slots" in got.comment(1)


@pytest.mark.parametrize(
    ("spec", "changes", "where"),
    [
        ("1:big", {}, "n2:ppn=1"),
        ("1:big:gpu", {}, "n3:ppn=1"),
        ("big", {}, "n2:ppn=1"),
        ("n3", {}, "n3:ppn=1"),
        ("n3:ppn=2+n3:ppn=2", {}, "n3:ppn=4"),
        ("1:gpu+1:big", {}, "n3:ppn=1+n2:ppn=1"),
        ("1", {"host": "n2"}, "n2:ppn=1"),
        ("1", {"features": ("gpu",)}, "n3:ppn=1"),
        ("1", {"queue": "big"}, "n2:ppn=1"),
        ("1", {"queue": "needs_gpu"}, "n3:ppn=1"),
        ("1", {"opsys": "linux"}, "n1:ppn=1"),
    ],
)
def test_names_properties_features_hosts_and_queues(spec: str, changes: dict[str, Any], where: str) -> None:
    nodes = [node("n1", values={"opsys": "linux"}), node("n2", properties=("big",))]
    nodes.append(node("n3", properties=("big", "gpu")))
    queues = [queue(), queue("big"), queue("needs_gpu", features_required=("gpu",))]
    settings = replace(FIRST, queues=QueueRules(properties={QueueName("big"): ("big",)}))
    assert answers(nodes, [job(1, spec, **changes)], settings, queues=queues).hosts(1) == where


@pytest.mark.parametrize(
    ("busy", "asked", "told"),
    [
        ([], {"procs": 6}, "n1:ppn=4+n2:ppn=2"),
        ([], {"procs": 9}, Reason.NEVER_FITS),
        ([running(9, "n1/0")], {"procs": 8}, Reason.NO_FREE_SLOTS),
        ([], {"tasks": (Chunk(3, 2, mem_bytes=1 * GIB),)}, "n1:ppn=4+n2:ppn=2"),
    ],
)
def test_procs_go_anywhere_and_tasks_may_share(
    busy: list[Job], asked: dict[str, Any], told: str | Reason
) -> None:
    assert answers([node("n1", 4), node("n2", 4)], [*busy, job(1, **asked)], FIRST).told == {1: told}


@pytest.mark.parametrize("settings", [FIRST, Settings()], ids=["first fit", "projected"])
def test_procs_go_to_one_node_with_room_for_all_whatever_placement_likes_else_to_few(
    settings: Settings,
) -> None:
    held = [running(8, "n1/0-1"), running(9, "n2/0-4"), running(10, "n3/0-2")]
    nodes = [node("n1", 4), node("n2", 8), node("n3", 8)]
    assert answers(nodes, [*held, job(1, procs=5)], settings).hosts(1) == "n3:ppn=5"
    seven = answers(nodes, [*held, job(1, procs=7)], settings).hosts(1)
    assert sorted(seven.split("+")) in (["n1:ppn=2", "n3:ppn=5"], ["n2:ppn=2", "n3:ppn=5"])
    if settings is FIRST:
        assert answers(nodes, [*held, job(1, procs=2)], settings).hosts(1) == "n1:ppn=2"


@pytest.mark.parametrize(
    ("asked", "reason", "words"),
    [
        ({"procs": 20}, Reason.NO_FREE_SLOTS, "20 of 32 processors: 8 down, offline or not reporting, 18 f"),
        ({"procs": 28}, Reason.NODES_UNUSABLE, ""),
        ({"tasks": (Chunk(6, 4),)}, None, "6 of 8 tasks: 2 down, offline or not reporting, 6 full"),
    ],
)
def test_processors_anywhere_are_counted_as_processors_when_it_is_told_why_there_are_too_few(
    asked: dict[str, Any], reason: Reason | None, words: str
) -> None:
    nodes = [node("n1", 8), node("n2", 8), node("n3", 8), node("n4", 8, state="down")]
    busy = [running(7 + i, f"n{i}/0-5", "1:ppn=6") for i in (1, 2, 3)]
    got = answers(nodes, [*busy, job(1, **asked)], FIRST)
    assert words in got.comment(1)
    assert reason in (None, got.reason(1))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"spec": "1"}, "n2:ppn=1:gpus=1"),
        ({"procs": 1}, "n2:ppn=1:gpus=1"),
        ({"procs": 5}, "n2:ppn=4:gpus=1+n1:ppn=1"),
        ({"procs": 4, "gres": (GenericResource("gpus", 3),)}, Reason.NEVER_FITS),
    ],
)
def test_gpus_stored_as_a_generic_resource_are_given(changes: dict[str, Any], told: str | Reason) -> None:
    asked = job(1, **{"gres": ONE_GPU, **changes})
    assert answers([node("n1"), node("n2", gpus=2)], [asked], FIRST).told == {1: told}


@pytest.mark.parametrize(
    "devices", [None, gpu_devices(2, used={0: {"utilization": 0.9, "state": "Exclusive"}})]
)
def test_gpus_in_use_are_counted_from_running_jobs_and_no_dirt(devices: Any) -> None:
    jobs = [running(9, "n1/0+n1-gpu/0", "1:gpus=1"), job(1, "1:gpus=1"), job(2, "1:gpus=1")]
    told = answers([node("n1", gpus=2, devices=devices)], jobs).told
    assert told == {1: "n1:ppn=1:gpus=1", 2: Reason.NO_FREE_GPUS}


@pytest.mark.parametrize(
    "trouble",
    [
        {"utilization": 0.37},
        {"memory_used_bytes": 2 * GIB},
        {"mode": "Prohibited"},
        {"double_bit_ecc_errors": 1},
        {"temperature_c": 99.0},
    ],
)
def test_a_bad_gpu_hides_those_behind_it(trouble: dict[str, Any]) -> None:
    """The server hands out the lowest free index: with GPU 0 bad, nobody can have GPU 1."""
    first_bad, last_bad = ([node("n1", gpus=2, devices=gpu_devices(2, used={i: trouble}))] for i in (0, 1))
    assert answers(first_bad, [job(1, "1:gpus=1")]).reason(1) is Reason.NO_FREE_GPUS
    got = answers(last_bad, [job(1, "1:gpus=1"), job(2, "1:gpus=1")])
    assert got.started == [1]
    assert "stray or sick" in got.comment(2)
    assert answers(last_bad, [job(1, "1:gpus=2")]).reason(1) is Reason.NO_FREE_GPUS


@pytest.mark.parametrize("off_s", [0.0, 600.0, -600.0])
def test_a_node_is_silent_by_the_reports_of_the_others_whatever_our_clock_says(off_s: float) -> None:
    fresh, silent = (node(name, rectime_s=NOW_S + off_s - ago) for name, ago in (("n1", 10), ("n2", 311)))
    assert answers([silent, fresh], [job(1), job(2, "1:ppn=4")]).started == [1]
    assert answers([silent], [job(1)]).started == [1], "there is nobody to judge it by"
    for silent_s, kind in ((300.0, Start), (301.0, Hold)):
        shot = replace(snapshot([fresh], [job(1)]), silent_s=silent_s)
        assert isinstance(decide(shot, Settings(), Context())[0], kind)


def test_cores_are_kept_for_idle_gpus_where_there_was_work_for_them_lately() -> None:
    nodes, three = [node("n1", 4, gpus=2)], [job(i) for i in (1, 2, 3)]
    got = answers(nodes, three, context=Context(gpu_work_s=NOW_S - 599))
    assert got.started == [1, 2]
    assert "slots kept for its idle GPUs" in got.comment(3)
    assert answers(nodes, [job(1, "1:ppn=2"), job(2, "1:ppn=2:gpus=2")]).started == [1, 2]
    assert answers(nodes, three, Settings(nodes=NodeRules(cores_per_idle_gpu=0))).started == [1, 2, 3]
    # One that is too wide to leave any free would otherwise wait for ever.
    assert answers(nodes, [job(1, "1:ppn=4")]).started == [1]


GIVEN_AWAY = NodeRules(keep_suspended_slots=False)
LENIENT, STRICT = NodeRules(avoid_busy=False, dead_after_s=0), NodeRules(avoid_noted=True)


@pytest.mark.parametrize(
    ("changes", "rules", "told"),
    [
        ({"state": "down"}, NodeRules(), Reason.NODES_UNUSABLE),
        ({"state": "offline"}, NodeRules(), Reason.NODES_UNUSABLE),
        ({"state": "reserve"}, NodeRules(), Reason.NODES_UNUSABLE),
        ({"power_saving": "Sleep"}, NodeRules(), Reason.NODES_UNUSABLE),
        ({"state": "busy"}, NodeRules(), Reason.NODES_TOO_LOADED),
        ({"message": "ERROR disk"}, NodeRules(), Reason.NODES_UNUSABLE),
        ({"state": "job-exclusive"}, NodeRules(), Reason.NO_FREE_SLOTS),
        ({"note": "fan"}, NodeRules(), ON_N1),
        ({"state": "busy", "rectime_s": NOW_S - 900}, LENIENT, ON_N1),
        ({"note": "fan"}, STRICT, Reason.NODES_UNUSABLE),
    ],
)
def test_nodes_not_to_be_used(changes: dict[str, Any], rules: NodeRules, told: str | Reason) -> None:
    assert answers([node("n1", **changes)], [job(1)], Settings(nodes=rules)).told == {1: told}


def test_back_off_of_jobs_nodes_and_pairs() -> None:
    pause, one, two, n2 = Pause(NOW_S + 5, "mom hangs"), JobId("1.head"), JobId("2.head"), NodeName("n2")

    def told(**paused: Any) -> dict[int | str, str | Reason]:
        context = Context(back_off=BackOff(**paused))
        return answers([node("n1"), node("n2")], [job(1), job(2), job(3, "2")], FIRST, context).told

    got = told(jobs={one: pause}, pairs={two: {NodeName("n1"): pause}})
    assert (got[1], got[2]) == (Reason.JOB_BACK_OFF, "n2:ppn=1")
    assert told(nodes={n2: pause}) == {1: ON_N1, 2: ON_N1, 3: Reason.NODES_BACK_OFF}
    assert told(nodes={n2: Pause(NOW_S, "")})[3] == "n1:ppn=1+n2:ppn=1", "it is over"


def test_pending_starts_hold_their_nodes_until_the_snapshot_shows_them() -> None:
    context = Context(pending=(PendingStart(JobId("1.head"), (NodeShare(NodeName("n1"), 3, 1),), NOW_S - 1),))
    nodes, two = [node("n1", gpus=1)], job(2, "1:ppn=2")
    jobs = [job(1, "1:ppn=3:gpus=1"), two, job(3), job(4, "1:gpus=1")]
    got = answers(nodes, jobs, context=context)
    assert got.started == [3]
    assert (got.reason(1), got.reason(2)) == (Reason.START_PENDING, Reason.NO_FREE_SLOTS)
    seen = [running(1, "n1/0-2+n1-gpu/0", "1:ppn=3:gpus=1"), job(2)]
    assert answers(nodes, seen, context=context).started == [2]


@pytest.mark.parametrize(("rules", "told"), [(NodeRules(), Reason.NO_FREE_SLOTS), (GIVEN_AWAY, ON_N1)])
def test_suspended_jobs_keep_their_slots(rules: NodeRules, told: str | Reason) -> None:
    jobs = [running(9, "n1/0-3", "1:ppn=4", state=JobState.SUSPENDED), job(1)]
    assert answers([node("n1")], jobs, Settings(nodes=rules)).told == {1: told}


ALONE, OF_USER, UNIQUE = AccessPolicy.SINGLE_JOB, AccessPolicy.SINGLE_USER, AccessPolicy.UNIQUE_USER


@pytest.mark.parametrize(
    ("of_bob", "asked", "told"),
    [
        ({}, {"node_exclusive": True}, "n2:ppn=1"),
        ({}, {"access": ALONE}, "n2:ppn=1"),
        ({"access": ALONE}, {}, "n2:ppn=1"),
        ({}, {"access": OF_USER}, "n2:ppn=1"),
        ({}, {"access": OF_USER, "user": "bob"}, "n1:ppn=1"),
        ({}, {"access": UNIQUE, "user": "bob"}, "n2:ppn=1"),
        ({"access": OF_USER}, {}, "n2:ppn=1"),
    ],
)
def test_nodes_of_their_own(of_bob: dict[str, Any], asked: dict[str, Any], told: str) -> None:
    busy, nodes = running(9, "n1/0", user="bob", **of_bob), [node("n1"), node("n2")]
    assert answers(nodes, [busy, job(1, **asked)], FIRST).told == {1: told}
    if told == "n2:ppn=1":
        full = Reason.NO_EMPTY_NODES if asked else Reason.NO_FREE_SLOTS
        assert answers(nodes[:1], [busy, job(1, **asked)], FIRST).told == {1: full}


def test_reservations_keep_out_what_would_run_into_them() -> None:
    kept = Reservation("service", frozenset({NodeName("n1")}), NOW_S + 100, NOW_S + 200, frozenset({"eve"}))
    jobs = [job(1, walltime_s=99.0), job(2, walltime_s=101.0), job(3), job(4, user="eve")]
    got = answers([node("n1")], jobs, context=Context(reservations=(kept,)))
    assert got.started == [1, 4]
    assert got.reason(2) is Reason.ADVANCE_RESERVATION
    assert "service, which keeps nodes from 1970-01-12 13:48 UTC to 1970-01-12 13:50 UTC" in got.comment(2)
    past = Context(reservations=(replace(kept, start_s=0.0, end_s=NOW_S),))
    assert answers([node("n1")], jobs, context=past).started == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("kept", "n_nodes", "named"),
    [
        # On one node: what ends last of those that prevent it, also where it begins behind another one.
        ({"first": ("n1", 1000, 2000), "last": ("n1", 1500, 9000)}, 1, "last"),
        ({"first": ("n1", 1000, 2000), "last": ("n1", 2500, 9000)}, 1, "last"),
        ({"first": ("n1", 1000, 2000), "beyond": ("n1", 9000, 9900)}, 1, "first"),
        # The job needs one node: the first that is free again counts. It needs both: the last one.
        ({"long": ("n1", 1000, 9000), "short": ("n2", 1000, 2000)}, 1, "short"),
        ({"long": ("n1", 1000, 9000), "short": ("n2", 1000, 2000)}, 2, "long"),
        ({"short": ("n1", 1000, 2000), "long": ("n2", 1000, 9000)}, 2, "long"),
    ],
)
@PLANNERS
def test_the_reservation_that_blocks_is_named(
    kept: dict[str, tuple[str, float, float]], n_nodes: int, named: str, backfill: Any
) -> None:
    reservations = tuple(
        Reservation(name, frozenset({NodeName(node)}), NOW_S + start_s, NOW_S + end_s)
        for name, (node, start_s, end_s) in kept.items()
    )
    reserved = sorted({node for node, _, _ in kept.values()})
    one = job(1, f"{n_nodes}:ppn=1", walltime_s=3000.0)
    settings, context = Settings(backfill=backfill), Context(reservations=reservations)
    nodes = [node(name) for name in reserved]
    comment = answers(nodes, [one], settings, context).comment(1)
    assert named in comment
    assert not any(name in comment for name in kept if name != named)


@pytest.mark.parametrize(
    ("window", "queue_name", "walltime_s", "reason"),
    [
        ((0, 9), "batch", 1.0, Reason.DEDICATED_TIME),
        ((0, 9), "dedi", 8.0, None),
        ((0, 9), "dedi", 9.0, None),
        ((0, 9), "dedi", 10.0, Reason.CROSSES_DEDICATED_TIME),
        ((5, 9), "dedi", 1.0, Reason.DEDICATED_TIME),
        ((5, 9), "batch", 4.0, None),
        ((5, 9), "batch", 5.0, None),
        ((5, 9), "batch", 6.0, Reason.CROSSES_DEDICATED_TIME),
        ((5, 9), "batch", None, Reason.CROSSES_DEDICATED_TIME),
    ],
)
def test_dedicated_time(
    window: tuple[float, float], queue_name: str, walltime_s: float | None, reason: Reason | None
) -> None:
    context = Context(dedicated=(Window(NOW_S + window[0], NOW_S + window[1]),))
    settings = Settings(queues=QueueRules(dedicated_prefix="ded"))
    one = job(1, queue=queue_name, walltime_s=walltime_s)
    got = answers([node("n1")], [one], settings, context, queues=[queue(), queue("dedi")])
    assert got.started == [1] if reason is None else got.reason(1) is reason


@PLANNERS
def test_a_cycle_starts_no_more_than_it_may(backfill: Any) -> None:
    jobs = [job(i, walltime_s=60.0) for i in (1, 2, 3)]
    told = answers([node("n1")], jobs, Settings(backfill=backfill, max_starts=2)).told
    assert told == {1: ON_N1, 2: ON_N1, 3: Reason.CYCLE_FULL}


@pytest.mark.parametrize(("of_c", "told"), [(True, Reason.NOT_ENOUGH_NODES), (False, Reason.NO_FREE_SLOTS)])
def test_words_of_c_where_the_c_daemon_has_words(of_c: bool, told: Reason) -> None:
    jobs = [running(9, "n1/0-3", "1:ppn=4"), job(1)]
    assert answers([node("n1")], jobs, Settings(words_of_c=of_c)).told == {1: told}


@pytest.mark.parametrize(
    ("is_told", "told"), [(False, {1: "n1:ppn=1", 2: "n1:ppn=2"}), (True, {1: "n1:ppn=3", 2: "n2:ppn=2"})]
)
def test_ncpus_gets_one_slot_as_from_pbs_server_or_all_of_them_where_told(
    is_told: bool, told: dict[int, str]
) -> None:
    jobs = [replace(job(1), request=Request(ncpus=3, mem_bytes=GIB)), job(2, "1:ppn=2", ncpus=3)]
    settings = replace(FIRST, queues=QueueRules(ncpus_are_slots=is_told))
    assert answers([node("n1", 4), node("n2", 2)], jobs, settings).told == told


def test_tokens_are_counted_by_the_scheduler_alone() -> None:
    server = Server(tokens=(("matlab", 2.0), ("ansys", 1.0)))
    asked = {
        2: ("matlab", 1.5),
        3: ("matlab", 1.0),
        4: ("matlab", 1.0),
        5: ("nobody's", 1.0),
        6: ("ansys", 1.0),
    }
    jobs = [running(1, "n1/0", tokens=(("matlab", 1.0),))]
    jobs += [job(number, tokens=(tokens,)) for number, tokens in asked.items()]
    told = answers([node("n1", 8)], jobs, server=server).told
    assert told == {n: ON_N1 if n in (3, 6) else Reason.NOT_ENOUGH_RESOURCE for n in asked}


@PLANNERS
@pytest.mark.parametrize(
    "spec", ["4:ppn=1+1:ppn=1", "n3:ppn=4+n3:ppn=4", "n3:ppn=4+big:ppn=4", "3:ppn=4+1:ppn=4"]
)
def test_a_job_whose_pieces_have_to_share_nodes_gets_its_turn(spec: str, backfill: Any) -> None:
    """Nodes are kept for it, and it starts on them when they are free."""
    nodes = [node("n1", 2), node("n2", 4), node("n3", 8, properties=("big",)), node("n4", 4)]
    busy = [running(11, "n1/0-1+n3/0", "1:ppn=2+1", walltime_s=1000.0)]
    busy.append(running(12, "n2/0-3", "1:ppn=4", walltime_s=2000.0))
    settings = Settings(backfill=backfill, nodes=NodeRules(cores_per_idle_gpu=0))
    waiting = job(1, spec, qtime_s=NOW_S - 1e5, walltime_s=600.0)
    kept = answers(nodes, [*busy, waiting, job(2, "1:ppn=8", walltime_s=1e6)], settings)
    allocation = kept.reserved(1).allocation
    assert sum(share.slots for share in allocation) == waiting.request.n_procs
    assert len({share.node for share in allocation}) == len(allocation)
    assert answers(nodes, [waiting], settings).started == [1]


SIZES = st.lists(st.tuples(st.integers(1, 5), st.integers(0, 5), st.integers(0, 2)), min_size=1, max_size=4)
"""Nodes as (slots, used slots, GPUs)."""
PIECES = st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(0, 1)), min_size=2, max_size=4)
"""Elements of a request as (count, ppn, gpus)."""


@given(SIZES, PIECES)
def test_what_the_server_would_start_by_itself_is_started(
    sizes: list[tuple[int, int, int]], elements: list[tuple[int, int, int]]
) -> None:
    """Against first fit, element by element; that a start uses no more than there is hold the properties."""
    free = {f"n{i}": [max(0, np - used), gpus] for i, (np, used, gpus) in enumerate(sizes)}
    nodes = [node(f"n{i}", np, gpus=gpus) for i, (np, _, gpus) in enumerate(sizes)]
    busy = [
        running(90 + i, f"n{i}/0-{min(np, used) - 1}", f"1:ppn={min(np, used)}")
        for i, (np, used, _) in enumerate(sizes)
        if used
    ]
    spec = "+".join(f"{count}:ppn={ppn}:gpus={gpus}" for count, ppn, gpus in elements)
    settings = Settings(nodes=NodeRules(cores_per_idle_gpu=0))
    started = answers(nodes, [*busy, job(1, spec)], settings).started
    assert started or not first_fit(free, elements), (spec, free)


def first_fit(free: dict[str, list[int]], elements: list[tuple[int, int, int]]) -> bool:
    left = {name: list(each) for name, each in free.items()}
    for count, ppn, gpus in elements:
        fitting = [each for each in left.values() if each[0] >= ppn and each[1] >= gpus][:count]
        if len(fitting) < count:
            return False
        for each in fitting:
            each[0] -= ppn
            each[1] -= gpus
    return True
