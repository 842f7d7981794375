"""Who goes first, and that nobody starves."""

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
from torque_sched.decide import settings as registry
from torque_sched.decide.backfill import DrainForStarving, NoReservations
from torque_sched.decide.context import NO_LOAD, BackOff, Context, KnownPredictions, Pause, Prediction
from torque_sched.decide.fair_share import Share, decayed, entitlements
from torque_sched.decide.order import SORT_KEYS, COrder, FairShareOrder, FcfsOrder, ShortestFirstOrder
from torque_sched.decide.rules import QueueRules
from torque_sched.decide.settings import Settings
from torque_sched.errors import ConfigError
from torque_sched.model.cluster import Job, JobId, Node, NodeName, QueueName, Server
from torque_sched.model.decisions import NodeShare
from torque_sched.model.reasons import Reason

OLD_S = NOW_S - 25 * 3600


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
    assert order_of(COrder(by_queue=False, keys=("no_sort",)), jobs, **by) == [1, 3, 2, 4]


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


def test_a_job_that_asks_nothing_is_neither_short_nor_long() -> None:
    """As the C daemon of a real 4.2.10 took them, whose sort_by was shortest_job_first."""
    asked_s = (7200.0, 600.0, 1800.0, 30.0, None, None, None)
    jobs = [job(number, cput_s=cput_s) for number, cput_s in enumerate(asked_s, 1)]
    assert order_of(COrder(), jobs) == [4, 2, 3, 1, 5, 6, 7]
    assert order_of(COrder(), [job(1), job(2), job(3)]) == [1, 2, 3]
    assert order_of(COrder(by_queue=False), [job(1), job(2, cput_s=60.0)]) == [1, 2]
    # Where the first key says nothing about a pair, the next one does.
    both = COrder(keys=("shortest_job_first", "high_priority_first"))
    assert order_of(both, [job(1, cput_s=5.0), job(2, priority=3)]) == [2, 1]


def test_all_queues_together_begin_as_the_server_lists_them() -> None:
    """As a real 4.2.10's C daemon started them; the last is in a queue for dedicated time."""
    asked_s = (7200.0, 600.0, 60.0, 18000.0, 1800.0, None, 30.0, None, None, None)
    queues = ("batch", "batch", "fast", "fast", "batch", "ded", "batch", "batch", "batch", "batch")
    jobs = [
        job(number, cput_s=cput_s, queue=name)
        for number, (cput_s, name) in enumerate(zip(asked_s, queues, strict=True), 1)
    ]
    lines = [queue(), queue("fast", priority=50), queue("ded")]
    assert order_of(COrder(by_queue=False), jobs, queues=lines) == [7, 2, 5, 1, 8, 9, 10, 3, 4, 6]


@given(st.lists(st.tuples(st.none() | st.sampled_from((1.0, 2.0, 3.0)), st.integers(0, 2)), max_size=12))
def test_whatever_is_asked_no_job_is_lost_and_those_that_ask_all_are_in_order(
    asked: list[tuple[float | None, int]],
) -> None:
    jobs = [job(number, cput_s=cput_s, priority=first) for number, (cput_s, first) in enumerate(asked, 1)]
    keys = ("high_priority_first", "shortest_job_first")
    got = list(COrder(keys=keys).turns(jobs, snapshot([node("n1")], jobs), Context()))
    assert sorted(each.sequence for each in got) == [each.sequence for each in jobs]
    if all(cput_s is not None for cput_s, _ in asked):
        assert got == sorted(jobs, key=lambda each: (-each.priority, each.request.cput_s))


def test_strict_fifo_blocks_the_rest_of_its_queue_only() -> None:
    settings = Settings(order=COrder(strict_fifo=True), queues=QueueRules(strict=True))
    jobs = [job(1, "1:ppn=4", qtime_s=NOW_S - 10), job(2, qtime_s=NOW_S - 20), job(3, qtime_s=NOW_S - 5)]
    jobs.append(job(4, queue="other", qtime_s=NOW_S - 1))
    told = answers([node("n1", 4)], jobs, settings, queues=[queue(), queue("other")]).told
    assert told == {1: Reason.NO_FREE_SLOTS, 2: "n1:ppn=1", 3: Reason.STRICT_FIFO, 4: "n1:ppn=1"}


@pytest.mark.parametrize("version", ["4.2.10", "5.1.3", "6.0.0", "6.1.3.h5", ""])
def test_strict_fifo_sorts_only_where_the_server_is_of_version_6(version: str) -> None:
    """fifo.c of 4.2.10 and of 6.1.3: the former only lets a job block those behind it."""
    jobs = [
        job(1, cput_s=9.0, qtime_s=NOW_S - 10),
        job(2, cput_s=5.0, qtime_s=NOW_S - 20),
        job(3, cput_s=1.0, qtime_s=NOW_S - 30, queue="other"),
        job(4, cput_s=7.0, qtime_s=NOW_S - 20),
    ]
    shot = {"queues": [queue(), queue("other")], "server": Server(name="head", version=version)}
    is_old = version[:1] in {"4", "5"}

    def got(**values: Any) -> list[int]:
        return order_of(COrder(strict_fifo=True, **values), jobs, **shot)

    assert got() == ([2, 4, 1, 3] if is_old else [3, 2, 4, 1])
    assert got(by_queue=False) == [3, 2, 4, 1]
    assert got(keys=("no_sort",)) == [1, 2, 4, 3]
    assert got(round_robin=True) == ([2, 3, 4, 1] if is_old else [1, 3, 2, 4])


def test_fair_share_lets_the_least_served_go_first_and_counts_each_start() -> None:
    order = FairShareOrder((Share("ann", 1), Share("bob", 3)), unknown_shares=0)
    jobs = [job(i, walltime_s=100.0) for i in (1, 2, 3)]
    jobs += [job(i, walltime_s=100.0, user="bob") for i in (4, 5, 6)]
    # Nobody has used anything yet: the larger share, as in the C daemon.
    assert order_of(order, jobs) == [4, 1, 5, 6, 2, 3]
    assert order_of(order, jobs, Context(usage={"ann": 1000.0})) == [4, 5, 6, 1, 2, 3]
    assert order_of(FairShareOrder(), jobs) == [1, 4, 2, 5, 3, 6]
    assert order_of(order, [job(9, user="eve"), *jobs])[-1] == 9


@pytest.mark.parametrize(("weight", "then"), [(10.0, "bob"), (0.0, "ann")])
def test_a_start_with_gpus_counts_for_them_too(weight: float, then: str) -> None:
    jobs = [job(1, "1:gpus=1", walltime_s=100.0), job(2), job(3, user="bob", walltime_s=300.0)]
    jobs.append(job(4, user="bob", walltime_s=300.0))
    seen = snapshot([node("n1")], jobs)
    turns = FairShareOrder().turns(seen.queued, seen, Context(gpu_weight=weight))
    users = []
    for each in turns:
        turns.started(each)
        users.append(each.user)
    assert users[:3] == ["ann", "bob", then]


def test_fair_share_counts_what_started_not_what_waits() -> None:
    settings = Settings(order=FairShareOrder((Share("ann", 1), Share("bob", 1))))
    jobs = [job(1, "1:ppn=2"), job(2, user="bob"), job(3, user="bob")]
    assert answers([node("n1", 2)], jobs, settings, Context(usage={"ann": 1.0})).started == [2, 3]


def test_trees_of_shares() -> None:
    assert entitlements([], 10) == {"unknown": 1.0}
    assert decayed({"ann": 1.0}, 0.0, 10.0) == {"ann": 1.0}
    assert decayed({"ann": 8.0}, 15.0, 10.0)["ann"] == pytest.approx(8 / 2**1.5)
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
    nodes, aged = [node("n1", 4), node("n2", 4)], job(1, "1:ppn=4", qtime_s=OLD_S)
    busy = [running(8, "n1/0-1", "1:ppn=2", walltime_s=700.0)]
    busy.append(running(9, "n2/0-3", "1:ppn=4", walltime_s=9000.0))
    small = [job(2, walltime_s=99.0), job(3, walltime_s=200.0), job(4)]
    got = answers(nodes, [*busy, aged, *small])
    kept = got.reserved(1)
    assert (kept.start_s, kept.allocation) == (NOW_S + 100, (NodeShare(NodeName("n1"), 4),))
    assert "estimated start 1970-01-12" in kept.comment
    assert (got.started, got.reason(3)) == ([2], Reason.RESERVED_FOR_OTHERS)
    assert "1.head" in got.comment(4)
    assert answers(nodes, [*busy, replace(aged, qtime_s=NOW_S - 5), *small]).started == [2, 3]
    assert answers(nodes, [*busy, aged, *small], Settings(backfill=NoReservations())).started == [2, 3]


@pytest.mark.parametrize("asked", ["mem_bytes", "vmem_bytes", "pmem_bytes", "pvmem_bytes"])
def test_memory_with_swap_drains_for_an_aged_job_as_memory_does(asked: str) -> None:
    """Small jobs that follow each other must not take for ever what the aged job waits for."""
    busy = [running(8 + i, f"n1/{i}", walltime_s=700.0 + 400 * i, **{asked: 4 * GIB}) for i in (0, 1)]
    aged = job(1, qtime_s=OLD_S, **{asked: 12 * GIB})
    small = [job(2, walltime_s=500.0, **{asked: 4 * GIB}), job(3, walltime_s=99.0, **{asked: 4 * GIB})]
    got = answers([node("n1", 8, mem=16 * GIB)], [*busy, aged, *small, job(4)])
    assert got.reserved(1).start_s == NOW_S + 100
    assert got.started == [3, 4]
    assert got.reason(2) is Reason.RESERVED_FOR_OTHERS


@pytest.mark.parametrize(
    ("order", "newcomer"),
    [
        (COrder(keys=("high_priority_first",)), {"priority": 9}),
        (FcfsOrder(by_priority=True), {"priority": 9}),
        (COrder(keys=("short_walltime_first",)), {}),
        (FairShareOrder((Share("ann", 1), Share("bob", 1))), {"user": "bob"}),
    ],
)
def test_waiting_long_moves_no_job_ahead(order: Any, newcomer: dict[str, Any]) -> None:
    """The old queue must not stand before who goes first by priority, length or an unused share."""
    jobs = [job(i, "1:ppn=4", walltime_s=900.0, qtime_s=OLD_S) for i in (1, 2, 3, 4, 5)]
    jobs.append(job(6, walltime_s=500.0, **newcomer))
    context = Context(usage={"ann": 1000.0})
    got = answers([node("n1", 4)], jobs, Settings(order=order), context)
    assert got.started == [6]
    assert got.reserved(1)


def test_nodes_kept_for_an_aged_job_are_its_own_before_who_came_later_and_goes_first() -> None:
    """What was kept stays kept, or ever new jobs of high priority would starve it."""
    jobs = [job(1, "1:ppn=4", qtime_s=OLD_S, walltime_s=900.0), job(2, priority=9, walltime_s=900.0)]

    def told(*jobs: Job, n2: bool = False) -> dict[int | str, str | Reason]:
        nodes = [node("n1", 4), *([node("n2", 1)] if n2 else ())]
        context = Context(kept=frozenset({JobId("1.head")}))
        return answers(nodes, jobs, Settings(order=FcfsOrder(by_priority=True)), context).told

    assert told(*jobs) == {1: "n1:ppn=4", 2: Reason.NO_FREE_SLOTS}
    busy = running(9, "n1/0", walltime_s=1000.0)
    assert told(busy, *jobs) == {1: "kept", 2: Reason.RESERVED_FOR_OTHERS}
    # Kept or not, what is only ahead of it in line and asks for other nodes starts.
    assert told(busy, *jobs, n2=True) == {1: "kept", 2: "n2:ppn=1"}
    # A job that is not aged any more, as it was held and let go, has no claim.
    assert told(replace(jobs[0], qtime_s=NOW_S - 5), jobs[1])[2] == "n1:ppn=1"


def test_one_node_drains_for_a_wide_job_that_waited_long_for_its_walltime() -> None:
    nodes, queues = [node("n1", 2), node("n2", 2)], [queue(), queue("full", max_running=0)]
    busy = [running(7, "n1/0", walltime_s=1000.0), running(8, "n2/0", walltime_s=1000.0)]

    def waiting(number: int, spec: str = "1:ppn=2", **asked: Any) -> Job:
        return job(number, spec, **{"qtime_s": NOW_S - 60, "walltime_s": 120.0, **asked})

    def told(*jobs: Job) -> list[str | Reason]:
        got = answers(nodes, [*busy, *jobs], queues=queues).told
        return [got[each.sequence] for each in jobs]

    no = Reason.NO_FREE_SLOTS
    assert told(waiting(1), waiting(2)) == ["kept", no]
    assert told(waiting(1, walltime_s=140.0)) == told(waiting(1, walltime_s=None)) == [no]
    assert told(waiting(1, "2:ppn=2")) == [no]
    # Half a node is not wide: two such jobs share one.
    nodes.extend(node(f"n{i}", 4, state="offline") for i in (3, 4, 5))
    assert told(waiting(1)) == [no]
    del nodes[2:]
    # What waits for a day goes first, unless it waits for more than nodes.
    old = waiting(2, "2:ppn=2", qtime_s=OLD_S)
    assert told(waiting(1), old) == [no, "kept"]
    assert told(waiting(1), replace(old, queue=QueueName("full")))[0] == "kept"


def test_jobs_with_walltimes_of_seconds_do_not_put_off_an_aged_job_for_ever() -> None:
    """Whatever ends before its start may go ahead, so its start may not recede while nothing new begins."""
    busy = running(9, "n1/0", walltime_s=30.0, start_s=NOW_S - 20)
    jobs = [job(1, "1:ppn=2", qtime_s=OLD_S), job(2, walltime_s=30.0), job(3, walltime_s=9.0)]
    got = answers([node("n1", 2)], [busy, *jobs])
    assert got.reserved(1).start_s == NOW_S + 10
    assert (got.reason(2), got.started) == (Reason.RESERVED_FOR_OTHERS, [3])


def test_help_starving_jobs_drains_the_whole_cluster() -> None:
    settings, old = Settings(backfill=DrainForStarving(max_starve_s=3600)), job(1, "1:ppn=4", qtime_s=OLD_S)
    busy = running(9, "n1/0", walltime_s=1000.0)
    told = answers([node("n1", 4), node("n2", 2)], [busy, old, job(2)], settings).told
    assert told == {1: "kept", 2: Reason.DRAINING}
    # One that waits for a limit does not stop the cluster.
    queues, held = [queue(), queue("small", max_running=0)], replace(old, queue=QueueName("small"))
    assert answers([node("n1", 4)], [held, job(2)], settings, queues=queues).started == [2]


def test_names_lead_to_policies_and_wrong_ones_list_the_known() -> None:
    for names, make in (
        (registry.ORDERS, registry.new_order),
        (registry.PLACEMENTS, registry.new_placement),
        (registry.BACKFILLS, registry.new_backfill),
    ):
        assert all(make(name) for name in names)
    assert registry.new_placement("value", job_aware=True) != registry.new_placement("value")
    with pytest.raises(ConfigError, match="known are firstfit, loadave, projected"):
        registry.new_placement("best")
    with pytest.raises(ConfigError, match="known are by_priority"):
        registry.new_order("fcfs", speed=1)
    with pytest.raises(ConfigError):
        registry.new_order("c_order", keys=("tallest_first",))


STRAY = node("n1", 4, gpus=1, devices=gpu_devices(1, used={0: {"utilization": 0.4}}))
FAILED = BackOff(pairs={JobId("1.head"): {NodeName("n1"): Pause(NOW_S + 60)}})


@pytest.mark.parametrize(
    ("machine", "spec", "context", "reason"),
    [
        (STRAY, "1:ppn=4:gpus=1", Context(), Reason.NO_FREE_GPUS),
        (node("n1", 4), "1", Context(back_off=FAILED), Reason.NODES_BACK_OFF),
    ],
    ids=["a stray on its GPU", "a failed start"],
)
def test_nodes_that_will_not_take_the_job_are_not_kept_for_it(
    machine: Node, spec: str, context: Context, reason: Reason
) -> None:
    """Kept idle for a job they refuse they would serve nobody."""
    told = answers([machine], [job(1, spec, qtime_s=OLD_S), job(2)], context=context).told
    assert told == {1: reason, 2: "n1:ppn=1"}


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


def test_fair_share_of_groups_and_accounts() -> None:
    jobs = [
        job(1, user="ann", group="chem", account="p1"),
        job(2, user="bob", group="chem", account="p2"),
        job(3, user="cid", group="phys", account="p1"),
        job(4, user="dee", group="phys"),
    ]
    context = Context(
        usage={"cid": 10.0},
        group_usage={"chem": 300.0, "phys": 100.0},
        account_usage={"p1": 90.0, "p2": 10.0},
    )

    def order(**changes: Any) -> list[int]:
        return order_of(FairShareOrder(default_walltime_s=1.0, **changes), jobs, context)

    assert order() == [1, 2, 4, 3]
    assert order(group_weight=1.0) == [4, 3, 1, 2]
    assert order(group_weight=0.01) == [4, 1, 2, 3], "the usage of users weighs more"
    assert order(group_weight=1.0, group_shares={"chem": 30.0, "phys": 1.0}) == [1, 2, 4, 3]
    assert order(account_weight=1.0) == [4, 2, 1, 3]
    assert order(user_weight=0.0, account_weight=1.0) == [4, 2, 1, 3]
    assert order(user_weight=0.0, account_weight=1.0, account_shares={"p1": 200.0}) == [4, 1, 3, 2]


def test_a_start_counts_for_the_group_at_once() -> None:
    jobs = [job(n, user=f"u{n}", group="chem" if n < 3 else "phys", walltime_s=100.0) for n in (1, 2, 3, 4)]
    assert order_of(FairShareOrder(group_weight=1.0), jobs) == [1, 3, 2, 4]
    assert order_of(FairShareOrder(), jobs) == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"user_weight": -1.0}, "user_weight -1 is below 0"),
        ({"user_weight": 0.0}, "all weights are 0"),
        ({"group_shares": {"chem": 1.0}}, "group_shares are set and group_weight is 0"),
        ({"account_shares": {"p": -1.0}, "account_weight": 1.0}, "p has shares -1"),
    ],
)
def test_fair_shares_that_make_no_sense(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        FairShareOrder(**changes)
