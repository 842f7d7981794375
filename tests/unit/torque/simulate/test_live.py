"""Small sites under the live scheduler's decisions, each start worked out by hand."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from tests.fixtures.torque_builders import GIB, NOW_S, node, queue
from tests.unit.torque.simulate.worlds import coming, rules, simulated, site, starts
from torque_sched.decide.context import Window
from torque_sched.decide.order import FairShareOrder
from torque_sched.decide.rules import RunningLimits, Throttling
from torque_sched.decide.settings import Settings
from torque_sched.model.cluster import Job, JobId, Node, NodeName, QueueName, Server
from torque_sched.model.decisions import NodeShare
from torque_sched.model.snapshot import Reservation
from torque_sched.simulate.cluster import SimulatedCluster
from torque_sched.simulate.site import Outage

N1 = NodeName("n1")


@pytest.mark.parametrize(
    ("backfill", "expected"),
    [
        # Job 2 wants both nodes, job 3 is short, job 4 would still run when job 1 ends.
        ("none", {1: 0, 2: 500, 3: 2, 4: 53}),
        ("fcfs", {1: 0, 2: 200, 3: 300, 4: 300}),
        ("easy", {1: 0, 2: 200, 3: 2, 4: 300}),
        ("conservative", {1: 0, 2: 200, 3: 2, 4: 300}),
    ],
)
def test_who_goes_ahead_is_as_the_backfill_says(backfill: str, expected: dict[int, float]) -> None:
    world = site(2, [coming(1, 0, 200), coming(2, 1, 100, "2"), coming(3, 2, 51), coming(4, 3, 447)])
    values: dict[str, Any] = {"slack_s": 0.0, "resolution_s": 1.0} if backfill not in {"none"} else {}
    assert starts(world, rules(backfill, **values)) == expected


def test_a_job_past_its_walltime_ends_there() -> None:
    world = site(1, [coming(1, 0, 500, limit_s=100), coming(2, 0, 10)])
    assert starts(world) == {1: 0, 2: 100}
    assert world.workload.jobs[0].run_s == 100


def test_nobody_waits_who_fits_and_equal_input_gives_an_equal_hash() -> None:
    world = site([node("n1", 4)], [coming(n, 10 * n, 25, "1:ppn=2") for n in range(1, 7)])
    first, again = simulated(world), simulated(world)
    assert first.digest == again.digest
    assert first.starts == [10, 20, 35, 45, 60, 70]
    assert first.took is not None
    assert first.took.n_cycles == 11, "two of the twelve events are in one instant"


@pytest.mark.parametrize(
    ("nodes", "spec", "changes", "expected"),
    [
        ([node("n1", 8, gpus=1)], "1:gpus=1", {}, [0, 50]),
        ([node("n1", 8, gpus=2)], "1:gpus=1", {}, [0, 0]),
        ([node("n1", 8, mem=4 * GIB)], "1", {"mem_bytes": 3 * GIB}, [0, 50]),
        ([node("n1", 8, mem=8 * GIB)], "1", {"mem_bytes": 3 * GIB}, [0, 0]),
        ([node("n1", 8), node("n2", 8, properties=("big",))], "1:ppn=8:big", {}, [0, 50]),
        ([node("n1", 1), node("n2", 1)], "n2", {}, [0, 50]),
    ],
)
def test_what_a_job_asks_of_nodes_decides(
    nodes: list[Node], spec: str, changes: dict[str, Any], expected: list[float]
) -> None:
    world = site(nodes, [coming(1, 0, 50, spec, **changes), coming(2, 0, 50, spec, **changes)])
    assert simulated(world).starts == expected


def test_limits_of_queues_users_and_arrays_hold() -> None:
    nodes = [node("n1", 8)]
    two_of_ann = [coming(1, 0, 50), coming(2, 0, 50), coming(3, 0, 50, user="bob")]
    limited = [queue("batch", max_user_run=1)]
    assert starts(site(nodes, two_of_ann, queues=limited)) == {1: 0, 2: 50, 3: 0}
    stopped = [queue("batch", is_started=False)]
    assert starts(site(nodes, two_of_ann, queues=stopped)) == {}
    one_each = [coming(f"7[{i}].head", 0, 50, array_slot_limit=1) for i in range(3)]
    assert starts(site(nodes, one_each)) == {700: 0, 701: 50, 702: 100}
    assert starts(site(nodes, two_of_ann, server=Server(name="head", max_running=2))) == {1: 0, 2: 0, 3: 50}


@pytest.mark.parametrize("backfill", ["aged", "conservative"])
def test_limits_of_the_settings_hold(backfill: str) -> None:
    """Jobs 1 to 3 are of a group that may have one while others wait, and two at once."""
    chem = [coming(n, 0, 100, group="chem") for n in (1, 2, 3)]
    wide = [coming(4, 10, 100, "1:ppn=2"), coming(5, 150, 100)]
    limits = RunningLimits(soft_max_jobs=1, max_jobs=2)
    settings = Settings(throttling=Throttling(groups={"chem": limits}))
    found = starts(site([node("n1", 3)], [*chem, *wide]), rules(backfill, settings))
    assert {number: found[number] for number in (1, 2, 4)} == {1: 0, 2: 0, 4: 100}
    assert found[3] >= 100, "two at once"


def test_standing_reservations_are_kept_for_their_group() -> None:
    def standing(from_s: float, until_s: float, jobs: Iterable[Job]) -> tuple[Reservation, ...]:
        assert from_s == NOW_S < until_s
        users = frozenset(job.user for job in jobs if job.group == "chem")
        return (Reservation("course", frozenset({N1}), NOW_S + 50, NOW_S + 250, users),)

    world = site(
        [node("n1", 1)],
        [
            coming(1, 0, 40),
            coming(2, 0, 20),
            coming(3, 10, 100, user="cid", group="chem"),
            coming(4, 10, 100),
        ],
    )
    assert starts(world, replace(rules(), standing=standing)) == {1: 0, 2: 250, 3: 40, 4: 270}


def test_who_used_less_goes_first_by_fair_share() -> None:
    jobs = [coming(1, 0, 100, user="ann"), coming(2, 1, 10, user="ann"), coming(3, 2, 10, user="bob")]
    assert starts(site(1, jobs)) == {1: 0, 2: 100, 3: 110}
    fair = rules(settings=Settings(order=FairShareOrder()))
    assert starts(site(1, jobs), fair) == {1: 0, 2: 110, 3: 100}


def test_what_an_ended_job_used_counts_for_its_account_too() -> None:
    by_account = rules(settings=Settings(order=FairShareOrder(user_weight=0.0, account_weight=1.0)))
    jobs = [
        coming(1, 0, 100, user="ann", account="lab"), coming(2, 1, 10, user="bob", account="lab"),
        coming(3, 1, 30, user="eve"), coming(4, 2, 10, user="joe", account="other"),
    ]  # fmt: skip
    # At 100 job 1 has ended, and the account `lab` is charged for it.
    assert starts(site(1, jobs), by_account)[2] == 140


def test_reservations_and_dedicated_time_are_kept_free() -> None:
    jobs = [coming(1, 0, 100), coming(2, 1, 30)]
    kept = Reservation("service", frozenset({N1}), NOW_S + 50, NOW_S + 300)
    assert starts(site(1, jobs), replace(rules(), reservations=(kept,))) == {1: 300, 2: 1}
    closed = Window(NOW_S + 50, NOW_S + 300)
    assert starts(site(1, jobs), replace(rules(), dedicated=(closed,))) == {1: 300, 2: 1}


def test_a_node_that_fails_loses_its_jobs_which_start_again() -> None:
    down = Outage(N1, NOW_S + 40, NOW_S + 60)
    world = site(1, [coming(1, 0, 100), coming(2, 0, 10)], outages=[down])
    assert starts(world) == {1: 60, 2: 160}


def test_what_can_never_start_is_named_and_the_rest_goes_on() -> None:
    schedule = simulated(site(2, [coming(1, 0, 10, "3"), coming(2, 0, 10)]))
    assert [number for number, _ in schedule.never] == [1]
    assert "never" in schedule.never[0][1].lower() or "right type" in schedule.never[0][1]
    assert schedule.workload.n_lines == len(schedule.starts) + sum(schedule.workload.rejected.values())


def test_a_cycle_that_is_full_is_followed_by_another() -> None:
    few = rules(settings=Settings(max_starts=2))
    schedule = simulated(site(5, [coming(n, 0, 10) for n in range(1, 6)]), few)
    assert schedule.starts == [0] * 5


def test_an_early_end_moves_a_promise_forward_and_is_told() -> None:
    world = site(1, [coming(1, 0, 40, limit_s=600), coming(2, 1, 10)])
    schedule = simulated(world, rules("conservative", slack_s=0.0, resolution_s=1.0))
    assert schedule.starts == [0, 40]
    assert schedule.first_promises == [None, 600]
    assert schedule.broken == ()


def test_other_settings_come_into_force_by_the_clock() -> None:
    paused = Settings(queues=replace(Settings().queues, ignored=frozenset({QueueName("batch")})))
    by_clock = {False: paused, True: Settings()}
    how = replace(rules(), at=lambda now_s: by_clock[now_s >= NOW_S + 600], changes_with_time=True)
    (start_s,) = starts(site(1, [coming(1, 0, 10)]), how).values()
    assert 600 <= start_s < 660


# -- snapshots


def test_what_did_not_change_is_the_same_object_in_the_next_snapshot() -> None:
    world = site(
        [node("n1", 4, gpus=2), node("n2", 4)], [coming(1, 0, 10, "1:ppn=2:gpus=1"), coming(2, 0, 10)]
    )
    cluster = SimulatedCluster(world)
    for job in world.jobs:
        cluster.submit(job)
    before = cluster.snapshot(NOW_S)
    assert cluster.snapshot(NOW_S + 1).nodes is before.nodes
    started = cluster.start(JobId("1.head"), [NodeShare(N1, 2, 1)], NOW_S + 1)
    after = cluster.snapshot(NOW_S + 1)
    assert after.nodes[1] is before.nodes[1]
    assert after.job_by_id["2.head"] is before.job_by_id["2.head"]
    assert [(part.job, part.first, part.last) for part in after.nodes[0].jobs] == [("1.head", 0, 1)]
    assert started.gpus_by_node() == {"n1": 1}
    ended = cluster.end(JobId("1.head"), NOW_S + 11)
    assert cluster.snapshot(NOW_S + 11).nodes[0] == before.nodes[0]
    assert ended.comp_s == NOW_S + 11


def test_a_node_shows_the_load_and_memory_of_its_jobs() -> None:
    used = coming(1, 0, 100, "1:ppn=2", cput_s=150.0, used_bytes=GIB)
    cluster = SimulatedCluster(site([node("n1", 4, mem=4 * GIB)], [used]))
    cluster.submit(used)
    cluster.start(JobId("1.head"), [NodeShare(N1, 2)], NOW_S)
    status = cluster.snapshot(NOW_S).nodes[0].status
    assert status is not None
    assert (status.loadave, status.availmem_bytes) == (1.5, 3 * GIB)
    assert cluster.end(JobId("1.head"), NOW_S + 100).used.cput_s == 150.0
