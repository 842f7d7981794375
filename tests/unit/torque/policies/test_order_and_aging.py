"""Who goes first, and that nobody starves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.torque.policies.builders import GIB, NOW_S, answers, gpu_devices, job, node, queue, running
from torque_sched.core.decisions import NodeShare
from torque_sched.core.model import Job, JobId, NodeName
from torque_sched.core.reasons import Reason
from torque_sched.errors import ConfigError
from torque_sched.policies.backfill import AgedReservations, DrainForStarving, NoReservations
from torque_sched.policies.context import BackOff, Context, KnownPredictions, Pause, Prediction
from torque_sched.policies.fair_share import Share, decayed, entitlements
from torque_sched.policies.load import NO_LOAD
from torque_sched.policies.order import SORT_KEYS, COrder, FairShareOrder, FcfsOrder, ShortestFirstOrder
from torque_sched.policies.registry import (
    BACKFILLS,
    ORDERS,
    PLACEMENTS,
    new_backfill,
    new_order,
    new_placement,
)
from torque_sched.policies.rules import QueueRules
from torque_sched.policies.settings import Settings

OLD_S = NOW_S - 7200


def order_of(order: Any, jobs: list[Job], context: Context | None = None, **changes: Any) -> list[int]:
    """In which order jobs start when there is room for all."""
    return answers([node("n1", 32)], jobs, Settings(order=order), context, **changes).started


def test_first_come_first_served_skips_what_does_not_fit() -> None:
    got = answers([node("n1", 4)], [job(1, "1:ppn=3"), job(2, "1:ppn=2"), job(3)])
    assert got.started == [1, 3]
    assert order_of(FcfsOrder(by_priority=True), [job(1), job(2, priority=5), job(3)]) == [2, 1, 3]


def test_orders_of_the_c_daemon() -> None:
    queues = [queue("low", priority=1), queue("high", priority=9)]
    jobs = [job(1, queue="low"), job(2, queue="high"), job(3, queue="low"), job(4, queue="high")]
    by = {"queues": queues}
    assert order_of(COrder(), jobs, **by) == [2, 4, 1, 3]
    assert order_of(COrder(sort_queues=False), jobs, **by) == [1, 3, 2, 4]
    assert order_of(COrder(round_robin=True), jobs, **by) == [2, 1, 4, 3]
    assert order_of(COrder(by_queue=False, keys=("no_sort",)), jobs, **by) == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (("shortest_job_first",), [2, 3, 1]),
        (("longest_job_first",), [1, 3, 2]),
        (("smallest_memory_first",), [3, 1, 2]),
        (("largest_memory_first",), [2, 1, 3]),
        (("high_priority_first",), [3, 1, 2]),
        (("low_priority_first",), [1, 2, 3]),
        (("large_walltime_first",), [2, 1, 3]),
        (("short_walltime_first",), [1, 3, 2]),
        (("low_priority_first", "shortest_job_first"), [2, 1, 3]),
        (("no_sort",), [1, 2, 3]),
    ],
)
def test_sort_keys(keys: tuple[str, ...], expected: list[int]) -> None:
    jobs = [
        job(1, cput_s=30.0, mem_bytes=2 * GIB, priority=0, walltime_s=10.0),
        job(2, cput_s=10.0, mem_bytes=3 * GIB, priority=0, walltime_s=20.0),
        job(3, cput_s=20.0, mem_bytes=1 * GIB, priority=7, walltime_s=10.0),
    ]
    assert order_of(COrder(keys=keys), jobs) == expected
    assert set(keys) <= set(SORT_KEYS)


def test_strict_fifo_blocks_the_rest_of_its_queue_only() -> None:
    settings = Settings(order=COrder(strict_fifo=True), queues=QueueRules(strict=True))
    jobs = [
        job(1, "1:ppn=4", qtime_s=NOW_S - 10),
        job(2, qtime_s=NOW_S - 20),
        job(3, qtime_s=NOW_S - 5),
        job(4, queue="other", qtime_s=NOW_S - 1),
    ]
    got = answers([node("n1", 4)], jobs, settings, queues=[queue(), queue("other")])
    assert got.started == [2, 4]
    assert got.reason(1) is Reason.NO_FREE_SLOTS
    assert got.reason(3) is Reason.STRICT_FIFO


def test_fair_share_lets_the_least_served_go_first_and_counts_each_start() -> None:
    order = FairShareOrder((Share("ann", 1), Share("bob", 3)), unknown_shares=0)
    jobs = [job(i, walltime_s=100.0) for i in (1, 2, 3)]
    jobs += [job(i, walltime_s=100.0, user="bob") for i in (4, 5, 6)]
    assert order_of(order, jobs) == [1, 4, 5, 6, 2, 3]
    assert order_of(order, jobs, Context(usage={"ann": 1000.0})) == [4, 5, 6, 1, 2, 3]
    assert order_of(FairShareOrder(), jobs) == [1, 4, 2, 5, 3, 6]
    assert order_of(order, [job(9, user="eve"), *jobs])[-1] == 9


def test_fair_share_counts_what_started_not_what_waits() -> None:
    got = answers(
        [node("n1", 2)],
        [job(1, "1:ppn=2"), job(2, user="bob"), job(3, user="bob")],
        Settings(order=FairShareOrder((Share("ann", 1), Share("bob", 1)))),
        Context(usage={"ann": 1.0}),
    )
    assert got.started == [2, 3]


def test_trees_of_shares() -> None:
    assert entitlements([], 10) == {"unknown": 1.0}
    assert decayed({"ann": 1.0}, 0.0, 10.0) == {"ann": 1.0}
    for tree in (
        [Share("a", 1), Share("a", 2)],
        [Share("a", 1, "nobody")],
        [Share("a", -1)],
        [Share("a", 1, "b"), Share("b", 1, "a")],
    ):
        with pytest.raises(ConfigError):
            entitlements(tree, 1)


def test_an_aged_job_is_kept_nodes_that_drain_for_it() -> None:
    """n1 is free sooner; until then only what ends in time, or is left over, may start there."""
    nodes = [node("n1", 4), node("n2", 4)]
    busy = [
        running(8, "n1/0-1", "1:ppn=2", walltime_s=700.0),
        running(9, "n2/0-3", "1:ppn=4", walltime_s=9000.0),
    ]
    aged = job(1, "1:ppn=4", qtime_s=OLD_S)
    small = [job(2, walltime_s=99.0), job(3, walltime_s=200.0), job(4)]
    got = answers(nodes, [*busy, aged, *small])
    kept = got.reserved(1)
    assert (kept.start_s, kept.allocation) == (NOW_S + 100, (NodeShare(NodeName("n1"), 4),))
    assert "estimated start 1970-01-12" in kept.comment
    assert got.started == [2]
    assert got.reason(3) is Reason.RESERVED_FOR_OTHERS
    assert "1.head" in got[4].comment  # type: ignore[union-attr]
    young = answers(nodes, [*busy, replace(aged, qtime_s=NOW_S - 5), *small])
    assert young.started == [2, 3]
    assert answers(nodes, [*busy, aged, *small], Settings(backfill=NoReservations())).started == [2, 3]


def test_what_an_aged_job_leaves_over_may_be_used_for_long() -> None:
    busy = [running(9, "n1/0-1", "1:ppn=2", walltime_s=700.0)]
    got = answers([node("n1", 4)], [*busy, job(1, "1:ppn=3", qtime_s=OLD_S), job(2), job(3)])
    assert got.started == [2]
    assert got.reason(3) is Reason.RESERVED_FOR_OTHERS


def test_without_walltimes_the_nodes_drain_from_now_on() -> None:
    busy = [running(9, "n1/0", "1")]
    got = answers([node("n1", 4)], [*busy, job(1, "1:ppn=4", qtime_s=OLD_S), job(2, walltime_s=1.0)])
    assert "unknown" in got.reserved(1).comment
    assert got.started == []


def test_an_aged_job_goes_before_all_others() -> None:
    order = COrder(keys=("short_walltime_first",))
    jobs = [job(1, walltime_s=5.0), job(2, "1:ppn=4", walltime_s=900.0, qtime_s=OLD_S)]
    assert answers([node("n1", 4)], jobs, Settings(order=order)).started == [2]


def test_nodes_are_kept_for_as_many_aged_jobs_as_set() -> None:
    nodes = [node(f"n{i}", 2) for i in (1, 2, 3)]
    busy = [running(20 + i, f"n{i}/0", walltime_s=1000.0) for i in (1, 2, 3)]
    aged = [job(i, "1:ppn=2", qtime_s=OLD_S) for i in (1, 2, 3)]
    got = answers(nodes, [*busy, *aged], Settings(backfill=AgedReservations(depth=2)))
    assert {share.node for i in (1, 2) for share in got.reserved(i).allocation} == {"n1", "n2"}
    assert got.reason(3) is Reason.NO_FREE_SLOTS


def test_help_starving_jobs_drains_the_whole_cluster() -> None:
    settings = Settings(backfill=DrainForStarving(max_starve_s=3600))
    busy = running(9, "n1/0", walltime_s=1000.0)
    got = answers([node("n1", 4), node("n2", 2)], [busy, job(1, "1:ppn=4", qtime_s=OLD_S), job(2)], settings)
    assert got.reserved(1)
    assert got.reason(2) is Reason.DRAINING
    # One that waits for a limit does not stop the cluster.
    limited = replace(queue("small"), max_running=0)
    held = job(1, "1:ppn=4", queue="small", qtime_s=OLD_S)
    assert answers([node("n1", 4)], [held, job(2)], settings, queues=[queue(), limited]).started == [2]


def test_a_wide_aged_job_starts_once_its_nodes_are_free() -> None:
    got = answers([node("n1", 4), node("n2", 4)], [job(1), job(2, "2:ppn=4", qtime_s=OLD_S), job(3)])
    assert got.started == [2]


def test_names_lead_to_policies_and_wrong_ones_list_the_known() -> None:
    for name in ORDERS:
        assert new_order(name)
    for name in PLACEMENTS:
        assert new_placement(name)
    for name in BACKFILLS:
        assert new_backfill(name)
    assert new_placement("value", job_aware=True) != new_placement("value")
    with pytest.raises(ConfigError, match="known are firstfit, loadave, projected"):
        new_placement("best")
    with pytest.raises(ConfigError, match="known are by_priority"):
        new_order("fcfs", speed=1)
    with pytest.raises(ConfigError):
        new_placement("value", weights=(1.0, 1.0, 0.0, 0.0))
    with pytest.raises(ConfigError):
        new_order("c_order", keys=("tallest_first",))


def test_nodes_that_will_not_take_the_job_are_not_kept_for_it() -> None:
    """Kept idle for a job they refuse (a stray on the GPU, a failed start) they would serve nobody."""
    stray = node("n1", 4, gpus=1, devices=gpu_devices(1, used={0: {"utilization": 0.4}}))
    got = answers([stray], [job(1, "1:ppn=4:gpus=1", qtime_s=OLD_S), job(2)])
    assert got.reason(1) is Reason.NO_FREE_GPUS
    assert got.started == [2]
    failed = BackOff(pairs={JobId("1.head"): {NodeName("n1"): Pause(NOW_S + 60)}})
    got = answers([node("n1", 4)], [job(1, qtime_s=OLD_S), job(2)], context=Context(back_off=failed))
    assert got.reason(1) is Reason.NODES_BACK_OFF
    assert got.started == [2]


def test_a_job_without_a_time_of_submission_is_not_aged() -> None:
    got = answers([node("n1", 1)], [job(1, qtime_s=NOW_S - 50), job(2, qtime_s=None)])
    assert got.started == [1]


def test_fair_share_within_queues() -> None:
    queues = [queue(), queue("express", priority=9)]
    jobs = [job(1), job(2, queue="express"), job(3, user="bob", queue="express"), job(4, user="bob")]
    shares, usage = (Share("ann", 1), Share("bob", 1)), Context(usage={"ann": 9.0})

    def order(**changes: bool) -> list[int]:
        return order_of(
            FairShareOrder(shares, default_walltime_s=100.0, **changes), jobs, usage, queues=queues
        )

    assert order() == [3, 1, 4, 2]
    assert order(by_queue=True) == [3, 2, 4, 1]
    assert order(by_queue=True, sort_queues=False) == [4, 1, 3, 2]
    assert order(round_robin=True) == [3, 1, 2, 4]


def test_the_shortest_go_first_by_what_is_known_of_jobs_like_them() -> None:
    jobs = [job(1, walltime_s=100.0), job(2, walltime_s=5000.0), job(3), job(4, walltime_s=50.0)]
    learned = KnownPredictions({jobs[1].id: Prediction(NO_LOAD, 10.0), jobs[3].id: Prediction(NO_LOAD, 70.0)})
    context = Context(predictions=learned)
    numbers = {
        by_history: [each.sequence for each in ShortestFirstOrder(by_history).turns(jobs, None, context)]  # type: ignore[arg-type]
        for by_history in (True, False)
    }
    # Job 4 cannot run longer than its limit, whatever jobs like it did.
    assert numbers == {True: [2, 4, 1, 3], False: [4, 1, 2, 3]}
