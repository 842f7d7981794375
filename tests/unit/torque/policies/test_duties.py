"""What pbs_server leaves to its scheduler, one small example each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.torque.policies.builders import (
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
from torque_sched.core.decisions import Hold, NodeShare, Start
from torque_sched.core.model import Dependency, JobId, NodeName, QueueName, Resources, Server
from torque_sched.core.reasons import Reason
from torque_sched.core.request import AccessPolicy, Chunk, GenericResource, Request
from torque_sched.core.states import HoldType, JobState
from torque_sched.policies.backfill import AgedReservations, ConservativeBackfill, EasyBackfill
from torque_sched.policies.context import BackOff, Context, Pause, PendingStart, Reservation, Window
from torque_sched.policies.decide import decide
from torque_sched.policies.placement.plain import FirstFitPlacement
from torque_sched.policies.rules import MemoryRules, NodeRules, QueueRules
from torque_sched.policies.settings import Settings

FIRST = Settings(placement=FirstFitPlacement())


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
    assert words in got[1].comment  # type: ignore[union-attr]


def test_scheduling_off_starts_nothing() -> None:
    got = answers([node("n1")], [job(1)], server=Server(scheduling=False))
    assert got.reason(1) is Reason.SCHEDULING_OFF


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"hold_types": frozenset({HoldType.USER})}, Reason.JOB_HELD),
        ({"execution_time_s": NOW_S + 1}, Reason.WAITS_FOR_TIME),
        ({"depend": (Dependency("afterok", ("9.head",)),)}, Reason.DEPENDENCY),
        ({"depend": (Dependency("after", ("8.head",)),)}, Reason.DEPENDENCY),
        ({"depend": (Dependency("after", ("9.head",)),)}, None),
        ({"depend": (Dependency("afterok", ("77.head",)),)}, None),
        ({"depend": (Dependency("beforeok", ("9.head",)),)}, None),
        ({"trouble": "nodes=:x"}, Reason.BAD_REQUEST),
        ({"queue": "closed"}, Reason.QUEUE_NOT_STARTED),
        ({"queue": "unknown"}, Reason.QUEUE_NOT_STARTED),
        ({"queue": "route"}, Reason.QUEUE_NOT_EXECUTION),
        ({"queue": "hidden"}, Reason.QUEUE_IGNORED),
        ({"execution_time_s": NOW_S - 1}, None),
    ],
)
def test_a_job_that_must_not_run(changes: dict[str, Any], reason: Reason | None) -> None:
    queues = [queue(), queue("closed", is_started=False), queue("route", queue_type="Route"), queue("hidden")]
    settings = Settings(queues=QueueRules(ignored=frozenset({QueueName("hidden")})))
    others = [running(9, "n2/0"), job(8, hold_types=frozenset({HoldType.USER}))]
    got = answers([node("n1"), node("n2")], [*others, job(1, **changes)], settings, queues=queues)
    if reason is None:
        assert 1 in got.started
    else:
        assert got.reason(1) is reason


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
        ({"max_running": 2, "max_user_run": 2}, {"max_group_run": 2}, None),
    ],
)
def test_limits_count_what_runs_and_what_just_started(
    server: dict[str, int], queue_limits: dict[str, int], reason: Reason | None
) -> None:
    limits: dict[str, Any] = {"server": Server(**server), "queues": [queue(**queue_limits)]}  # type: ignore[arg-type]
    after_running = answers([node("n1")], [running(9, "n1/0"), job(1)], **limits)
    in_one_cycle = answers([node("n1")], [job(1), job(2)], **limits)
    pending = Context(pending=(PendingStart(JobId("3.head"), (NodeShare(NodeName("n1"), 1),), NOW_S),))
    while_pending = answers([node("n1")], [job(3), job(4)], context=pending, **limits)
    assert while_pending.reason(3) is Reason.START_PENDING
    if reason is None:
        assert (after_running.started, in_one_cycle.started) == ([1], [1, 2])
    else:
        assert after_running.reason(1) is reason
        assert in_one_cycle.reason(2) is reason
        assert while_pending.reason(4) is reason


def test_user_and_group_limits_leave_others_alone() -> None:
    got = answers(
        [node("n1")],
        [running(9, "n1/0"), job(1), job(2, user="bob"), job(3, user="bob")],
        server=Server(max_user_run=1),
    )
    assert got.started == [2]
    assert got.reason(3) is Reason.SERVER_USER_LIMIT


def test_resources_available_less_assigned() -> None:
    available = Resources({"mem": "8gb", "nodect": "3", "matlab": "1"})
    server = Server(resources_available=available, resources_assigned=Resources({"mem": "5gb"}))
    got = answers(
        [node(f"n{i}") for i in range(8)],
        [
            job(1, mem_bytes=4 * GIB),
            job(2, mem_bytes=2 * GIB),
            job(3, "3"),
            job(4, gres=(GenericResource("matlab"),)),
            job(5, gres=(GenericResource("matlab"),)),
            job(6, mem_bytes=9 * GIB),
        ],
        server=server,
    )
    assert got.started == [2, 4]
    assert "Not enough memory available" in got[1].comment  # type: ignore[union-attr]
    assert "Not enough nodes available" in got[3].comment  # type: ignore[union-attr]
    assert got.reason(5) is Reason.NOT_ENOUGH_RESOURCE
    assert got.reason(6) is Reason.NEVER_FITS


def test_queue_resources_and_the_c_daemons_reading_of_resources_max() -> None:
    jobs = [running(9, "n1/0-1", "1:ppn=2"), job(1, "1:ppn=2")]
    limited = [queue(resources_max=Resources({"ncpus": "3"}))]
    c_like = Settings(queues=QueueRules(max_is_total=True))
    assert answers([node("n1")], jobs, queues=limited).started == [1]
    assert answers([node("n1")], jobs, c_like, queues=limited).reason(1) is Reason.NOT_ENOUGH_RESOURCE


def test_licences_that_moms_report_are_shared_by_the_cluster() -> None:
    nodes = [node("n1", gres={"matlab": "1"}), node("n2")]
    wants = (GenericResource("matlab"),)
    got = answers(nodes, [job(1, gres=wants), job(2, gres=wants), job(3, gres=(GenericResource("odd"),))])
    assert got.started == [1, 3]


def test_a_licence_count_that_is_no_number_here_is_none() -> None:
    assert answers([node("n1", gres={"matlab": "\u00b2"})], [job(1)]).started == [1]


def test_array_slot_limit() -> None:
    member = running(47, "n1/0")
    member = replace(member, id=JobId("47[0].head"), array_index=0, array_slot_limit=2)
    waiting = [job(f"47[{i}].head", array_slot_limit=2) for i in (1, 2)]
    got = answers([node("n1")], [member, *waiting])
    assert got.hosts("47[1].head") == "n1:ppn=1"
    assert got.reason("47[2].head") is Reason.ARRAY_SLOT_LIMIT
    # Where the server holds what is beyond the limit, it may have been raised since (qalter -t %3).
    server = Server(moab_array_compatible=True)
    assert answers([node("n1")], [member, *waiting], server=server).hosts("47[2].head") == "n1:ppn=1"


@pytest.mark.parametrize(
    ("asks", "fits"),
    [
        ({"mem_bytes": 48 * GIB}, True),
        ({"mem_bytes": 49 * GIB}, False),
        ({"pmem_bytes": 25 * GIB, "spec": "1:ppn=2"}, False),
        ({"pmem_bytes": 24 * GIB, "spec": "1:ppn=2"}, True),
        ({"vmem_bytes": 57 * GIB}, False),
        ({"vmem_bytes": 56 * GIB}, True),
        ({"pvmem_bytes": 30 * GIB, "spec": "1:ppn=2"}, False),
    ],
)
def test_memory_is_the_sum_of_requests(asks: dict[str, Any], fits: bool) -> None:
    one = node("n1", mem=64 * GIB, totmem_bytes=72 * GIB, availmem_bytes=72 * GIB)
    spec = asks.pop("spec", "1")
    got = answers([one], [running(9, "n1/0", mem_bytes=16 * GIB), job(1, spec, **asks)])
    assert (got.started == [1]) is fits
    if not fits:
        assert got.reason(1) is Reason.NO_FREE_MEMORY


def test_memory_of_a_job_is_divided_among_its_nodes() -> None:
    nodes = [node("n1", mem=10 * GIB), node("n2", mem=10 * GIB)]
    got = answers(nodes, [job(1, "2", mem_bytes=20 * GIB)])
    assert got.hosts(1) == "n1:ppn=1+n2:ppn=1"
    assert answers(nodes, [job(1, "2", mem_bytes=21 * GIB)]).reason(1) is Reason.NEVER_FITS


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
    got = answers(
        [node("n1", 4), node("n2", 4, state="down")], [job(1, "1:ppn=5"), job(2, "3"), job(3, "2:ppn=4")]
    )
    assert got.reason(1) is Reason.NEVER_FITS
    assert "5 slots: the largest node has 4 slots" in got[1].comment  # type: ignore[union-attr]
    assert got.reason(2) is Reason.NEVER_FITS
    # A node that is down may come back.
    assert got.reason(3) is Reason.NODES_UNUSABLE


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
    values = {"opsys": "linux"}
    nodes = [
        node("n1", values=values),
        node("n2", properties=("big",)),
        node("n3", properties=("big", "gpu")),
    ]
    queues = [queue(), queue("big"), queue("needs_gpu", features_required=("gpu",))]
    settings = replace(FIRST, queues=QueueRules(properties={QueueName("big"): ("big",)}))
    assert answers(nodes, [job(1, spec, **changes)], settings, queues=queues).hosts(1) == where


def test_pieces_whose_nodes_cross_are_matched_by_exchange() -> None:
    nodes = [
        node("n1", properties=("c", "a")),
        node("n2", properties=("a", "b")),
        node("n3", properties=("b", "c")),
    ]
    got = answers(nodes, [job(1, "1:a+1:b+1:c")], FIRST)
    assert got.started == [1]
    tight = [*nodes, node("n4", properties=("a",))]
    assert sorted(answers(tight, [job(1, "2:a+1:b+1:c")], FIRST).hosts(1).split("+")) == [
        f"n{i}:ppn=1" for i in (1, 2, 3, 4)
    ]


def test_every_piece_lies_on_a_node_of_its_own() -> None:
    got = answers([node("n1", 8), node("n2", 8)], [job(1, "2:ppn=4"), job(2, "3:ppn=1")])
    assert got.hosts(1) == "n1:ppn=4+n2:ppn=4"
    assert got.reason(2) is Reason.NEVER_FITS


def test_procs_go_anywhere_and_tasks_may_share() -> None:
    nodes = [node("n1", 4), node("n2", 4)]
    assert answers(nodes, [job(1, procs=6)], FIRST).hosts(1) == "n1:ppn=4+n2:ppn=2"
    assert answers(nodes, [job(1, procs=9)], FIRST).reason(1) is Reason.NEVER_FITS
    # One that has room for all, whatever the placement likes best; else as few as possible.
    held = [running(8, "n1/0-1"), running(9, "n2/0-4"), running(10, "n3/0-2")]
    three = [node("n1", 4), node("n2", 8), node("n3", 8)]
    for settings in (FIRST, Settings()):
        assert answers(three, [*held, job(1, procs=5)], settings).hosts(1) == "n3:ppn=5"
        assert answers(three, [*held, job(1, procs=2)], FIRST).hosts(1) == "n1:ppn=2"
        assert sorted(answers(three, [*held, job(1, procs=7)], settings).hosts(1).split("+")) in (
            ["n1:ppn=2", "n3:ppn=5"],
            ["n2:ppn=2", "n3:ppn=5"],
        )
    assert answers(nodes, [running(9, "n1/0"), job(1, procs=8)], FIRST).reason(1) is Reason.NO_FREE_SLOTS
    tasks = (Chunk(3, 2, mem_bytes=1 * GIB),)
    assert answers(nodes, [job(1, tasks=tasks)], FIRST).hosts(1) == "n1:ppn=4+n2:ppn=2"


def test_processors_anywhere_are_counted_as_processors_when_it_is_told_why_there_are_too_few() -> None:
    nodes = [node("n1", 8), node("n2", 8), node("n3", 8), node("n4", 8, state="down")]
    busy = [running(7 + i, f"n{i}/0-5", "1:ppn=6") for i in (1, 2, 3)]
    got = answers(nodes, [*busy, job(1, procs=20)], FIRST)
    assert got.reason(1) is Reason.NO_FREE_SLOTS
    assert "needs 20 of 32 processors: 8 down, offline or not reporting, 18 full" in got[1].comment
    got = answers(nodes, [*busy, job(1, procs=28)], FIRST)
    assert got.reason(1) is Reason.NODES_UNUSABLE
    got = answers(nodes, [*busy, job(1, tasks=(Chunk(6, 4),))], FIRST)
    assert "needs 6 of 8 tasks: 2 down, offline or not reporting, 6 full" in got[1].comment


def test_gpus_that_go_with_processors_anywhere_are_named_when_they_are_what_lacks() -> None:
    nodes = [node("n1", 8, gpus=2), node("n2", 8)]
    busy = running(9, "n1/0+n1-gpu/0+n1-gpu/1", "1:gpus=2")
    got = answers(nodes, [busy, job(1, procs=1, gres=ONE_GPU)], FIRST)
    assert got.reason(1) is Reason.NO_FREE_GPUS
    assert "needs 1 GPUs, 0 are free" in got[1].comment


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"spec": "1"}, "n2:ppn=1:gpus=1"),
        ({"procs": 1}, "n2:ppn=1:gpus=1"),
        ({"procs": 5}, "n2:ppn=4:gpus=1+n1:ppn=1"),
    ],
)
def test_gpus_stored_as_a_generic_resource_are_given(changes: dict[str, Any], where: str) -> None:
    nodes = [node("n1"), node("n2", gpus=2)]
    wanted = (GenericResource("gpus", 1),)
    assert answers(nodes, [job(1, gres=wanted, **changes)], FIRST).hosts(1) == where
    assert answers(nodes, [job(1, gres=(GenericResource("gpus", 3),), procs=4)], FIRST).reason(1) is (
        Reason.NEVER_FITS
    )


ONE_GPU = (GenericResource("gpus", 1),)


def test_processors_go_with_their_gpu_where_one_node_has_room_for_all() -> None:
    """n2 has a GPU and is idler, but cannot take four processors; those on n1 could not use the GPU."""
    nodes = [node("n1"), node("n2", gpus=1), node("n3", gpus=1, loadave=1.0)]
    busy = running(9, "n2/0-1", "1:ppn=2")
    wanted = job(1, procs=4, gres=ONE_GPU)
    assert answers(nodes, [busy, wanted]).hosts(1) == "n3:ppn=4:gpus=1"
    assert answers(nodes[:2], [busy, wanted]).hosts(1) == "n2:ppn=2:gpus=1+n1:ppn=2"


def test_gpus_for_each_processor_as_moab_has_it() -> None:
    nodes = [node("n1"), node("n2", gpus=2), node("n3", gpus=2)]
    each = replace(FIRST, queues=QueueRules(gpus_per_proc=True))
    got = answers(nodes, [job(1, procs=3, gres=ONE_GPU), job(2, procs=5, gres=ONE_GPU)], each)
    assert got.hosts(1) == "n2:ppn=2:gpus=2+n3:ppn=1:gpus=1"
    assert got.reason(2) is Reason.NEVER_FITS
    assert answers(nodes, [job(1, procs=3, gres=ONE_GPU)], FIRST).hosts(1) == "n2:ppn=3:gpus=1"


@pytest.mark.parametrize(
    ("procs", "gpus", "kept", "start_s"),
    [
        (2, 1, {"n2": (1, 1), "n1": (1, 0)}, 300.0),
        (3, 2, {"n2": (1, 1), "n3": (1, 1), "n1": (1, 0)}, 600.0),
    ],
)
def test_an_aged_job_with_processors_and_gpus_anywhere_gets_its_gpus_kept(
    procs: int, gpus: int, kept: dict[str, tuple[int, int]], start_s: float
) -> None:
    """n0 and n1 are free sooner, but have no GPU: keeping only these would leave the job without for ever."""
    nodes = [node("n0", 1), node("n1", 1), node("n2", 1, gpus=1), node("n3", 1, gpus=1)]
    busy = [
        running(6, "n0/0", walltime_s=800.0),
        running(7, "n1/0", walltime_s=700.0),
        running(8, "n2/0+n2-gpu/0", "1:gpus=1", walltime_s=900.0),
        running(9, "n3/0+n3-gpu/0", "1:gpus=1", walltime_s=1200.0),
    ]
    wanted = (GenericResource("gpus", gpus),)
    old = job(1, procs=procs, gres=wanted, qtime_s=NOW_S - 100_000, walltime_s=60.0)
    found = answers(nodes, [*busy, old]).reserved(1)
    assert {share.node: (share.ppn, share.gpus) for share in found.allocation} == kept
    assert found.start_s == NOW_S + start_s


def test_gpus_in_use_are_counted_from_running_jobs() -> None:
    nodes = [node("n1", gpus=2)]
    got = answers(nodes, [running(9, "n1/0+n1-gpu/0", "1:gpus=1"), job(1, "1:gpus=1"), job(2, "1:gpus=1")])
    assert got.started == [1]
    assert got.reason(2) is Reason.NO_FREE_GPUS


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
    first_bad = node("n1", gpus=2, devices=gpu_devices(2, used={0: trouble}))
    last_bad = node("n1", gpus=2, devices=gpu_devices(2, used={1: trouble}))
    assert answers([first_bad], [job(1, "1:gpus=1")]).reason(1) is Reason.NO_FREE_GPUS
    got = answers([last_bad], [job(1, "1:gpus=1"), job(2, "1:gpus=1")])
    assert got.started == [1]
    assert "stray or sick" in got[2].comment  # type: ignore[union-attr]
    assert answers([last_bad], [job(1, "1:gpus=2")]).reason(1) is Reason.NO_FREE_GPUS


def test_a_busy_gpu_of_a_job_is_not_dirty() -> None:
    devices = gpu_devices(2, used={0: {"utilization": 0.9, "state": "Exclusive"}})
    nodes = [node("n1", gpus=2, devices=devices)]
    jobs = [running(9, "n1/0+n1-gpu/0", "1:gpus=1"), job(1, "1:gpus=1")]
    assert answers(nodes, jobs).started == [1]


@pytest.mark.parametrize("off_s", [0.0, 600.0, -600.0])
def test_a_node_is_silent_by_the_reports_of_the_others_whatever_our_clock_says(off_s: float) -> None:
    fresh, silent = (node(name, rectime_s=NOW_S + off_s - ago) for name, ago in (("n1", 10), ("n2", 311)))
    assert answers([silent, fresh], [job(1), job(2, "1:ppn=4")]).started == [1]
    assert answers([silent], [job(1)]).started == [1]  # There is nobody to judge it by.
    for silent_s, started in ((300.0, [1]), (301.0, [])):
        shot = replace(snapshot([fresh], [job(1)]), silent_s=silent_s)
        assert [each.job[:1] for each in decide(shot, Settings(), Context()) if isinstance(each, Start)] == [
            str(number) for number in started
        ]


def test_a_day_without_gpu_jobs_loses_no_slot() -> None:
    nodes = [node("n1", 12, gpus=2), node("n2", 12)]
    jobs = [job(i) for i in range(1, 25)]
    assert len(answers(nodes, jobs).started) == 24
    long_ago, rules = Context(gpu_work_s=NOW_S - 601), NodeRules(gpu_work_recent_s=600)
    assert len(answers(nodes, jobs, Settings(nodes=rules), long_ago).started) == 24
    # A clock that was set back is no reason to keep slots for as long as it was ahead.
    assert len(answers(nodes, jobs, Settings(nodes=rules), Context(gpu_work_s=NOW_S + 5)).started) == 24
    for work in (running(99, "n1/11+n1-gpu/0", "1:gpus=1"), job(99, "1:gpus=3")):
        assert len(answers(nodes, [work, *jobs]).started) == 22


def test_cores_are_kept_for_idle_gpus_where_there_was_work_for_them_lately() -> None:
    nodes = [node("n1", 4, gpus=2)]
    got = answers(nodes, [job(i) for i in (1, 2, 3)], context=Context(gpu_work_s=NOW_S - 599))
    assert got.started == [1, 2]
    assert "slots kept for its idle GPUs" in got[3].comment  # type: ignore[union-attr]
    assert answers(nodes, [job(1, "1:ppn=2"), job(2, "1:ppn=2:gpus=2")]).started == [1, 2]
    none_kept = Settings(nodes=NodeRules(cores_per_idle_gpu=0))
    assert answers(nodes, [job(i) for i in (1, 2, 3)], none_kept).started == [1, 2, 3]
    # One that is too wide to leave any free would otherwise wait for ever.
    assert answers(nodes, [job(1, "1:ppn=4")]).started == [1]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"state": "down"}, Reason.NODES_UNUSABLE),
        ({"state": "offline"}, Reason.NODES_UNUSABLE),
        ({"state": "reserve"}, Reason.NODES_UNUSABLE),
        ({"power_state": "Sleep"}, Reason.NODES_UNUSABLE),
        ({"state": "busy"}, Reason.NODES_TOO_LOADED),
        ({"message": "ERROR disk"}, Reason.NODES_UNUSABLE),
        ({"state": "job-exclusive"}, Reason.NO_FREE_SLOTS),
        ({"note": "fan"}, None),
    ],
)
def test_nodes_not_to_be_used(changes: dict[str, Any], reason: Reason | None) -> None:
    got = answers([node("n1", **changes)], [job(1)])
    assert got.started == [1] if reason is None else got.reason(1) is reason


def test_rules_about_nodes_can_be_set() -> None:
    lenient = Settings(nodes=NodeRules(avoid_busy=False, dead_after_s=0))
    assert answers([node("n1", state="busy", rectime_s=NOW_S - 900)], [job(1)], lenient).started == [1]
    strict = Settings(nodes=NodeRules(avoid_noted=True))
    assert answers([node("n1", note="fan")], [job(1)], strict).reason(1) is Reason.NODES_UNUSABLE


def test_back_off_of_jobs_nodes_and_pairs() -> None:
    pause = Pause(NOW_S + 5, "mom hangs")
    n1, n2 = NodeName("n1"), NodeName("n2")
    nodes = [node("n1"), node("n2")]
    jobs = [job(1), job(2), job(3, "2")]
    backed = Context(
        back_off=BackOff(jobs={JobId("1.head"): pause}, pairs={JobId("2.head"): {n1: pause}}, nodes={})
    )
    got = answers(nodes, jobs, FIRST, backed)
    assert got.reason(1) is Reason.JOB_BACK_OFF
    assert got.hosts(2) == "n2:ppn=1"
    got = answers(nodes, jobs, FIRST, Context(back_off=BackOff(nodes={n2: pause})))
    assert (got.hosts(1), got.reason(3)) == ("n1:ppn=1", Reason.NODES_BACK_OFF)
    over = Pause(NOW_S, "")
    assert answers(nodes, jobs, FIRST, Context(back_off=BackOff(nodes={n2: over}))).started == [1, 2, 3]


def test_pending_starts_hold_their_nodes_until_the_snapshot_shows_them() -> None:
    share = (NodeShare(NodeName("n1"), 3, 1),)
    context = Context(pending=(PendingStart(JobId("1.head"), share, NOW_S - 1),))
    nodes = [node("n1", gpus=1)]
    got = answers(
        nodes, [job(1, "1:ppn=3:gpus=1"), job(2, "1:ppn=2"), job(3), job(4, "1:gpus=1")], context=context
    )
    assert got.reason(1) is Reason.START_PENDING
    assert got.started == [3]
    assert got.reason(2) is Reason.NO_FREE_SLOTS
    seen = [running(1, "n1/0-2+n1-gpu/0", "1:ppn=3:gpus=1"), job(2)]
    assert answers(nodes, seen, context=context).started == [2]


def test_suspended_jobs_keep_their_slots() -> None:
    jobs = [running(9, "n1/0-3", "1:ppn=4", state=JobState.SUSPENDED), job(1)]
    assert answers([node("n1")], jobs).reason(1) is Reason.NO_FREE_SLOTS
    given = Settings(nodes=NodeRules(keep_suspended_slots=False))
    assert answers([node("n1")], jobs, given).started == [1]


@pytest.mark.parametrize(("held", "n_started"), [("0", 0), ("1", 1), ("2", 2)])
def test_a_gpu_is_not_shared_with_a_suspended_job(held: str, n_started: int) -> None:
    """Real servers give away the first GPU that no running job holds, though a suspended one has it."""
    asleep = running(9, f"n1/0+n1-gpu/{held}", "1:gpus=1", state=JobState.SUSPENDED)
    jobs = [asleep, *(job(number, "1:gpus=1") for number in (1, 2, 3))]
    assert len(answers([node("n1", 8, gpus=3)], jobs).started) == n_started
    # The server knows that a running job has it, whoever else does.
    both = [asleep, running(8, f"n1/1+n1-gpu/{held}", "1:gpus=1"), *jobs[1:]]
    assert len(answers([node("n1", 8, gpus=3)], both).started) == 2


def test_a_running_job_counts_though_pbsnodes_does_not_show_it_yet() -> None:
    shot = snapshot([node("n1")], [job(1)])
    late = replace(shot, jobs=(running(9, "n1/0-3", "1:ppn=4"), job(1)))
    (decision,) = decide(late, Settings(), Context())
    assert isinstance(decision, Hold)


def test_nodes_of_their_own() -> None:
    nodes = [node("n1"), node("n2")]
    busy = running(9, "n1/0")
    got = answers(nodes, [busy, job(1, node_exclusive=True), job(2)])
    assert (got.hosts(1), got.hosts(2)) == ("n2:ppn=1", "n1:ppn=1")
    got = answers(nodes[:1], [busy, job(1, access=AccessPolicy.SINGLE_JOB)])
    assert got.reason(1) is Reason.NO_EMPTY_NODES
    alone = running(9, "n1/0", access=AccessPolicy.SINGLE_JOB)
    assert answers(nodes[:1], [alone, job(1)]).reason(1) is Reason.NO_FREE_SLOTS


def test_single_user_and_unique_user() -> None:
    nodes = [node("n1"), node("n2")]
    of_bob = running(9, "n1/0", user="bob")
    single, unique = AccessPolicy.SINGLE_USER, AccessPolicy.UNIQUE_USER
    assert answers(nodes, [of_bob, job(1, access=single)], FIRST).hosts(1) == "n2:ppn=1"
    assert answers(nodes, [of_bob, job(1, access=single, user="bob")], FIRST).hosts(1) == "n1:ppn=1"
    assert answers(nodes, [of_bob, job(1, access=unique, user="bob")], FIRST).hosts(1) == "n2:ppn=1"
    bobs_own = replace(of_bob, request=replace(of_bob.request, access=single))
    assert answers(nodes, [bobs_own, job(1)], FIRST).hosts(1) == "n2:ppn=1"


def test_reservations_keep_out_what_would_run_into_them() -> None:
    kept = Reservation("service", frozenset({NodeName("n1")}), NOW_S + 100, NOW_S + 200, frozenset({"eve"}))
    context = Context(reservations=(kept,))
    jobs = [job(1, walltime_s=99.0), job(2, walltime_s=101.0), job(3), job(4, user="eve")]
    got = answers([node("n1")], jobs, context=context)
    assert got.started == [1, 4]
    assert got.reason(2) is Reason.ADVANCE_RESERVATION
    assert "service, which keeps nodes from 1970-01-12 13:48 UTC to 1970-01-12 13:50 UTC" in got[2].comment
    past = Context(reservations=(replace(kept, start_s=0.0, end_s=NOW_S),))
    assert answers([node("n1")], jobs, context=past).started == [1, 2, 3, 4]


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


def test_a_cycle_starts_no_more_than_it_may() -> None:
    got = answers([node("n1")], [job(i) for i in (1, 2, 3)], Settings(max_starts=2))
    assert got.started == [1, 2]
    assert got.reason(3) is Reason.CYCLE_FULL


def test_words_of_c_where_the_c_daemon_has_words() -> None:
    jobs = [running(9, "n1/0-3", "1:ppn=4"), job(1)]
    assert answers([node("n1")], jobs, Settings(words_of_c=True)).reason(1) is Reason.NOT_ENOUGH_NODES
    assert answers([node("n1")], jobs).reason(1) is Reason.NO_FREE_SLOTS


def test_ncpus_gets_one_slot_as_from_pbs_server_or_all_of_them_where_told() -> None:
    nodes = [node("n1", 4), node("n2", 2)]
    jobs = [replace(job(1), request=Request(ncpus=3, mem_bytes=GIB)), job(2, "1:ppn=2", ncpus=3)]
    plain = answers(nodes, jobs, FIRST)
    assert (plain.hosts(1), plain.hosts(2)) == ("n1:ppn=1", "n1:ppn=2")
    told = answers(nodes, jobs, replace(FIRST, queues=QueueRules(ncpus_are_slots=True)))
    assert (told.hosts(1), told.hosts(2)) == ("n1:ppn=3", "n2:ppn=2")


def test_tokens_are_counted_by_the_scheduler_alone() -> None:
    server = Server(tokens=(("matlab", 2.0), ("ansys", 1.0)))
    jobs = [
        running(1, "n1/0", tokens=(("matlab", 1.0),)),
        job(2, tokens=(("matlab", 1.5),)),
        job(3, tokens=(("matlab", 1.0),)),
        job(4, tokens=(("matlab", 1.0),)),
        job(5, tokens=(("nobody's", 1.0),)),
        job(6, tokens=(("ansys", 1.0),)),
    ]
    got = answers([node("n1", 8)], jobs, server=server)
    assert got.started == [3, 6]
    assert {got.reason(n) for n in (2, 4, 5)} == {Reason.NOT_ENOUGH_RESOURCE}


@pytest.mark.parametrize("backfill", [AgedReservations(), EasyBackfill(), ConservativeBackfill()])
def test_a_node_whose_memory_is_overdrawn_takes_jobs_that_ask_for_none(backfill: Any) -> None:
    """pbs_sched starts whatever asks for memory anywhere, so it is so on the evening of the swap."""
    settings = Settings(backfill=backfill)
    greedy = running(9, "n1/0", mem_bytes=900 * GIB, walltime_s=3600.0)
    asks = [job(1, "1:ppn=2", walltime_s=60.0), job(2, procs=1, walltime_s=60.0)]
    asks.append(job(3, mem_bytes=1 * GIB, walltime_s=60.0))
    got = answers([node("n1", 4)], [greedy, *asks], settings)
    assert got.started == [1, 2]
    assert "waits longer" not in got[3].comment  # type: ignore[union-attr]


def test_pieces_of_different_elements_may_lie_on_one_node() -> None:
    """As the server itself has it: only the nodes of one element are apart."""
    busy = [running(11, "n1/0-1"), running(12, "n2/0-3"), running(13, "n3/0-2")]
    nodes = [node("n1", 2), node("n2", 4), node("n3", 8), node("n4", 4, gpus=2)]
    two_and_a_gpu = job(1, "2:ppn=2+1:gpus=1")
    assert answers(nodes, [*busy, two_and_a_gpu]).hosts(1) == "n3:ppn=2+n4:ppn=3:gpus=1"
    got = answers(nodes, [job(2, "4:ppn=1+1:ppn=1"), job(3, "5:ppn=1"), job(4, "4:ppn=2+3:ppn=4")])
    assert sum(share.ppn for share in got[2].allocation) == 5  # type: ignore[union-attr]
    assert len(got[2].allocation) == 4  # type: ignore[union-attr]
    assert (got.reason(3), got.reason(4)) == (Reason.NEVER_FITS, Reason.NEVER_FITS)


@pytest.mark.parametrize("backfill", [AgedReservations(), EasyBackfill(), ConservativeBackfill()])
@pytest.mark.parametrize(
    "spec", ["4:ppn=1+1:ppn=1", "n3:ppn=4+n3:ppn=4", "n3:ppn=4+big:ppn=4", "3:ppn=4+1:ppn=4"]
)
def test_a_job_whose_pieces_have_to_share_nodes_gets_its_turn(spec: str, backfill: Any) -> None:
    """Nodes are kept for it, and it starts on them when they are free."""
    nodes = [node("n1", 2), node("n2", 4), node("n3", 8, properties=("big",)), node("n4", 4)]
    busy = [running(11, "n1/0-1+n3/0", "1:ppn=2+1", walltime_s=1000.0), running(12, "n2/0-3", "1:ppn=4")]
    settings = Settings(backfill=backfill, nodes=NodeRules(cores_per_idle_gpu=0))
    waiting = job(1, spec, qtime_s=NOW_S - 1e5, walltime_s=600.0)
    busy[1] = replace(busy[1], request=replace(busy[1].request, walltime_s=2000.0))
    kept = answers(nodes, [*busy, waiting, job(2, "1:ppn=8", walltime_s=1e6)], settings)
    allocation = kept.reserved(1).allocation
    assert sum(share.ppn for share in allocation) == sum(c.count * c.ppn for c in waiting.request.chunks)
    assert len({share.node for share in allocation}) == len(allocation)
    assert answers(nodes, [waiting], settings).started == [1]


@st.composite
def requests_in_worlds(draw: st.DrawFn) -> tuple[list[tuple[int, int, int]], list[tuple[int, int, int]]]:
    """Nodes as (slots, used slots, GPUs), and elements of a request as (count, ppn, gpus)."""
    slots = st.integers(1, 5)
    nodes = draw(st.lists(st.tuples(slots, st.integers(0, 5), st.integers(0, 2)), min_size=1, max_size=4))
    pieces = st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(0, 1))
    return nodes, draw(st.lists(pieces, min_size=2, max_size=4))


@given(requests_in_worlds())
def test_what_the_server_would_start_by_itself_is_started(
    world: tuple[list[tuple[int, int, int]], list[tuple[int, int, int]]],
) -> None:
    """Against first fit, element by element; and never more than a node has."""
    sizes, elements = world
    free = {f"n{i}": [max(0, np - used), gpus] for i, (np, used, gpus) in enumerate(sizes)}
    nodes = [node(f"n{i}", np, gpus=gpus) for i, (np, _, gpus) in enumerate(sizes)]
    busy = [
        running(90 + i, f"n{i}/0-{min(np, used) - 1}", f"1:ppn={min(np, used)}")
        for i, (np, used, _) in enumerate(sizes)
        if used
    ]
    spec = "+".join(f"{count}:ppn={ppn}:gpus={gpus}" for count, ppn, gpus in elements)
    settings = Settings(nodes=NodeRules(cores_per_idle_gpu=0))
    decision = answers(nodes, [*busy, job(1, spec)], settings)[1]
    if isinstance(decision, Start):
        for share in decision.allocation:
            assert (share.ppn <= free[share.node][0], share.gpus <= free[share.node][1]) == (True, True)
        asked = [sum(count * each[i] for count, *each in elements) for i in range(2)]
        given_ = [sum(getattr(share, name) for share in decision.allocation) for name in ("ppn", "gpus")]
        assert given_ == asked
    else:
        assert not first_fit(free, elements), (spec, free)


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
