"""What is remembered between cycles: starts that are verified, failures that are left alone for a while."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures import torque_builders as builders
from torque_sched.batch.system import OrderKind, OrderResult
from torque_sched.daemon.failures import Pauses, Steps
from torque_sched.daemon.pending_orders import BackOffRules, PendingOrders
from torque_sched.decide.context import BackOff
from torque_sched.learn.rows import PauseRow
from torque_sched.model.cluster import HostSlots, Job, JobId, NodeName, Server
from torque_sched.model.decisions import NodeShare
from torque_sched.model.snapshot import Snapshot
from torque_sched.model.states import JobState, StartProgress

STARTED = OrderResult(OrderKind.STARTED)
N1, N2 = NodeName("n1"), NodeName("n2")


def job(name: str = "1.head", state: JobState = JobState.QUEUED, **fields: object) -> Job:
    return builders.job(name, state=state, **fields)


def snapshot(now_s: float, *jobs: Job) -> Snapshot:
    return Snapshot(now_s, Server(name="head"), (), (), jobs)


def share(*nodes: NodeName) -> tuple[NodeShare, ...]:
    return tuple(NodeShare(node, 1) for node in nodes)


def asked(orders: PendingOrders, result: OrderResult, name: str = "1.head", *nodes: NodeName) -> None:
    orders.asked(JobId(name), share(*(nodes or (N1,))), 100.0)
    orders.answered(JobId(name), result, 100.1)


def test_a_start_is_pending_until_the_job_runs() -> None:
    orders = PendingOrders()
    asked(orders, STARTED)
    assert [start.job for start in orders.pending] == ["1.head"]
    assert orders.observe(snapshot(100.5, job())) == [], "it may look queued for a moment"
    orders.observe(snapshot(101.0, job(state=JobState.RUNNING)))
    assert orders.pending
    found = orders.observe(snapshot(110.0, job(state=JobState.RUNNING, progress=StartProgress.BEGUN)))
    assert ([each.kind for each in found], orders.pending) == (["start-confirmed"], ())


def test_back_in_the_queue_blames_job_and_node_and_then_the_node_alone() -> None:
    orders = PendingOrders(BackOffRules(node_after_jobs=2))
    for name, kinds in (("1.head", ["start-failed"]), ("2.head", ["start-failed", "node-paused"])):
        asked(orders, STARTED, name)
        assert [each.kind for each in orders.observe(snapshot(104.0, job("1.head"), job("2.head")))] == kinds
    back_off = orders.back_off(104.0)
    assert (set(back_off.nodes), set(back_off.pairs)) == ({N1}, {"1.head", "2.head"})
    assert "did not start" in orders.failure_text(JobId("1.head"))


@pytest.mark.parametrize("state", [JobState.HELD, JobState.WAITING])
def test_a_job_put_back_by_somebody_blames_nobody(state: JobState) -> None:
    orders = PendingOrders(BackOffRules(node_after_jobs=1))
    asked(orders, STARTED)
    assert orders.observe(snapshot(110.0, job(state=state))) == []
    assert (orders.pending, orders.back_off(110.0)) == ((), BackOff())


def test_a_member_beyond_its_arrays_limit_blames_no_node() -> None:
    """As Torque 6.1.3 leaves it after ``qrun -a`` where moab_array_compatible is off: queued, substate 19."""
    orders = PendingOrders(BackOffRules(node_after_jobs=1))
    asked(orders, STARTED, "47[1].head")
    member = job("47[1].head", sequence=47, array_index=1, progress=StartProgress.LEFT)
    [found] = orders.observe(snapshot(110.0, member))
    assert (found.kind, found.text) == ("start-failed", "the array slot limit has been reached")
    paused = orders.back_off(110.0)
    assert set(paused.jobs) == {"47[1].head"}
    assert (paused.pairs, paused.nodes) == ({}, {})


def test_no_answer_blames_no_node() -> None:
    orders = PendingOrders()
    asked(orders, OrderResult(OrderKind.OTHER, "did not end"))
    assert orders.pending
    orders.observe(snapshot(110.0, job()))
    assert (orders.pending, orders.back_off(110.0).pairs) == ((), {})
    assert set(orders.back_off(100.5).jobs) == {"1.head"}


@pytest.mark.parametrize("kind", [kind for kind in OrderKind if kind is not OrderKind.STARTED])
def test_every_refusal_leaves_alone_who_is_to_blame(kind: OrderKind) -> None:
    orders = PendingOrders()
    asked(orders, OrderResult(kind, "words"))
    back_off = orders.back_off(100.2)
    blames_nodes = kind in {OrderKind.NOT_NOW, OrderKind.NEVER}
    nobody = (OrderKind.UNKNOWN_JOB, OrderKind.UNAUTHORISED, OrderKind.ALREADY_RUNNING, OrderKind.SERVER_GONE)
    blames_nobody = kind in nobody
    assert bool(back_off.pairs) == blames_nodes
    assert bool(back_off.jobs) == (not blames_nodes and not blames_nobody)
    assert not back_off.nodes
    assert bool(orders.pending) == (kind is OrderKind.OTHER)


def test_of_several_nodes_nobody_knows_which_was_full() -> None:
    orders = PendingOrders(BackOffRules(node_after_jobs=1))
    asked(orders, OrderResult(OrderKind.NOT_NOW, "full"), "1.head", N1, N2)
    back_off = orders.back_off(100.2)
    assert set(back_off.pairs[JobId("1.head")]) == {N1, N2}
    assert not back_off.nodes


def test_a_start_that_works_forgives_the_node() -> None:
    orders = PendingOrders(BackOffRules(node_after_jobs=2))
    asked(orders, OrderResult(OrderKind.NOT_NOW, "full"), "1.head")
    asked(orders, STARTED, "2.head")
    orders.observe(
        snapshot(101.0, job("1.head"), job("2.head", JobState.RUNNING, progress=StartProgress.BEGUN))
    )
    asked(orders, OrderResult(OrderKind.NOT_NOW, "full"), "3.head")
    assert not orders.back_off(101.0).nodes


def ended(number: int, node: str, status: int, user: str) -> Job:
    host = (HostSlots(NodeName(node), 0, 0),)
    times = {"total_runtime_s": 2.0, "comp_s": 1000.0}
    return job(
        f"{number}.head", JobState.COMPLETED, allocated_slots=host, exit_status=status, user=user, **times
    )


@pytest.mark.parametrize(
    ("jobs", "is_hole"),
    [
        ([ended(n, "n1", 1, f"u{n % 2}") for n in range(5)] + [ended(9, "n2", 0, "u0")], True),
        (
            [ended(n, "n1", 1, "u0") for n in range(9)] + [ended(19, "n2", 0, "u0")],
            False,
        ),  # one user's script
        ([ended(n, "n1", 1, f"u{n}") for n in range(9)], False),  # it fails everywhere
        ([ended(n, "n1", n % 2, f"u{n}") for n in range(9)], False),
        ([ended(n, "n1", 271, f"u{n}") for n in range(9)] + [ended(19, "n2", 0, "u0")], False),  # qdel
    ],
)
def test_black_holes(jobs: list[Job], is_hole: bool) -> None:
    orders = PendingOrders()
    found = orders.observe(snapshot(1010.0, *jobs))
    assert [each.subject for each in found if each.kind == "black-hole"] == (["n1"] if is_hole else [])
    assert set(orders.back_off(1011.0).nodes) == ({N1} if is_hole else set())
    assert orders.observe(snapshot(1012.0, *jobs)) == []  # the same jobs count once


@given(st.lists(st.floats(0.1, 5000.0), min_size=1, max_size=30))
def test_pauses_grow_and_stay_bounded(gaps: list[float]) -> None:
    pauses: Pauses[str] = Pauses(Steps(10.0, 300.0))
    now_s = 0.0
    for gap_s in gaps:
        now_s += gap_s
        was_active = "x" in pauses.active(now_s)
        pause_s = pauses.failed("x", now_s, "why")
        assert 0.0 < pause_s <= 300.0
        assert was_active or pause_s >= 10.0
        assert "x" in pauses.active(now_s)
        assert "x" not in pauses.active(now_s + pause_s + 1e-6)
    pauses.worked("x")
    assert not pauses.active(now_s)


def test_a_daemon_started_anew_goes_on_with_what_failed() -> None:
    rules = BackOffRules(node_after_jobs=1, pair=Steps(30.0, 1800.0))
    before = PendingOrders(rules)
    for name in ("1.head", "2.head"):
        asked(before, OrderResult(OrderKind.NOT_NOW, "no room"), name)
    asked(before, OrderResult(OrderKind.OTHER, "odd"), "3.head")
    rows = before.pauses()
    assert {row.kind for row in rows} == {"pair", "node", "job"}
    after = PendingOrders(rules)
    after.restore(rows, 101.0)
    assert after.back_off(101.0) == before.back_off(101.0)
    assert set(after.pauses()) == set(rows)
    # A second failure in a row pauses longer, as if it were the same daemon's.
    for orders in (before, after):
        orders.asked(JobId("1.head"), share(N1), 140.0)
        orders.answered(JobId("1.head"), OrderResult(OrderKind.NOT_NOW, "no room"), 140.0)
    assert after.back_off(141.0).pairs == before.back_off(141.0).pairs


def test_a_pause_of_a_wrong_clock_ends_as_the_settings_say() -> None:
    orders = PendingOrders(BackOffRules(job=Steps(15.0, 900.0)))
    orders.restore(
        (PauseRow("job", "1.head", "", 9, 1e12, "odd"), PauseRow("what", "", "", 1, 1.0, "")), 50.0
    )
    assert orders.back_off(50.0).jobs[JobId("1.head")].until_s == 950.0


def test_a_clock_put_back_ends_pauses_and_leaves_no_start_on_its_way() -> None:
    orders = PendingOrders()
    asked(orders, OrderResult(OrderKind.WRONG_STATE, "words"), "1.head")
    asked(orders, STARTED, "2.head")
    earlier_s = 100.0 - 7200
    assert set(orders.back_off(101.0).jobs) == {"1.head"}
    found = orders.observe(snapshot(earlier_s, job("1.head"), job("2.head")))
    assert [each.kind for each in found] == ["start-failed"]
    assert orders.pending == ()
    assert orders.back_off(earlier_s).jobs == {}
    asked(orders, OrderResult(OrderKind.WRONG_STATE, "words"), "1.head")
    assert set(orders.back_off(101.0).jobs) == {"1.head"}
