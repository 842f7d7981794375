"""Promises of a live cluster: kept from cycle to cycle, broken only with a reason; nobody starts on them."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.property.torque.live_cluster import LiveCluster
from tests.unit.torque.policies.builders import GIB, NOW_S, job, node
from torque_sched.core.decisions import Decision, Hold, Promise, Reserve, Start
from torque_sched.core.model import Job, JobId, Node
from torque_sched.core.reasons import Broken
from torque_sched.core.request import AccessPolicy
from torque_sched.policies.backfill import (
    ConservativeBackfill,
    EasyBackfill,
    PlanningBackfill,
)
from torque_sched.policies.registry import PLACEMENTS
from torque_sched.policies.rules import NodeRules
from torque_sched.policies.settings import Settings

SPECS = ["1", "1:ppn=2", "1:ppn=4", "2", "2:ppn=2", "2:ppn=4", "3:ppn=2", "1:gpus=1", "1:ppn=2:gpus=2"]
SPECS += ["1:fast", "2:fast:ppn=2", "1:fast+1:ppn=2", "n0:ppn=2", "n1+n1:ppn=2"]
HOUR_S = 3600.0


def rules(backfill: PlanningBackfill, placement: str = "projected") -> Settings:
    return Settings(
        placement=PLACEMENTS[placement](),
        backfill=backfill,
        nodes=NodeRules(dead_after_s=0),
    )


@st.composite
def clusters(draw: st.DrawFn) -> list[Node]:
    made = []
    for index in range(draw(st.integers(2, 4))):
        gpus = draw(st.sampled_from([0, 0, 2]))
        fast = ("fast",) if draw(st.booleans()) else ()
        mem = draw(st.sampled_from([4, 8])) * GIB
        made.append(node(f"n{index}", draw(st.sampled_from([2, 4])), gpus=gpus, mem=mem, properties=fast))
    return made


@st.composite
def queued(draw: st.DrawFn, number: int) -> Job:
    changes: dict[str, Any] = {}
    if draw(st.integers(0, 5)) == 0:
        changes["procs"] = draw(st.integers(1, 8))
    changes["walltime_s"] = draw(st.sampled_from([300.0, 1000.0, HOUR_S, 7000.0]))
    changes["access"] = draw(st.sampled_from([None, None, None, *AccessPolicy]))
    changes["mem_bytes"] = draw(st.sampled_from([None, None, None, 2 * GIB]))
    return job(number, draw(st.sampled_from(SPECS)), user=draw(st.sampled_from(["ann", "bob"])), **changes)


@st.composite
def lives(draw: st.DrawFn) -> tuple[list[Node], list[tuple[float, list[Job]]], dict[JobId, float]]:
    """Nodes, cycles with the jobs submitted before each, and real run times up to the walltime."""
    cycles, run_s, number = [], {}, 0
    now_s = NOW_S
    for _ in range(draw(st.integers(3, 9))):
        jobs = []
        for _ in range(draw(st.integers(0, 4))):
            number += 1
            one = draw(queued(number))
            part = draw(st.sampled_from([0.1, 0.5, 1.0, 1.0]))
            run_s[one.id] = part * (one.walltime_s or 0.0)
            jobs.append(one)
        cycles.append((now_s, jobs))
        now_s += draw(st.sampled_from([30.0, 60.0, 200.0, 1000.0, 3700.0]))
    return draw(clusters()), cycles, run_s


def lived(cluster: LiveCluster, cycles: list[tuple[float, list[Job]]], late_s: float = 0.0) -> Any:
    """Every cycle with its decisions, also at promised starts (or `late_s` after them), until all is over."""
    now_s = NOW_S
    for at_s, jobs in [*cycles, (cycles[-1][0] + 40 * HOUR_S, [])]:
        while cluster.promises:
            due_s = min(promise.start_s for promise in cluster.promises.values()) + late_s
            if not now_s < due_s < at_s:
                break
            now_s = due_s
            yield now_s, dict(cluster.promises), cluster.cycle(now_s)
        now_s = at_s
        cluster.waiting += jobs
        yield now_s, dict(cluster.promises), cluster.cycle(now_s)


@settings(deadline=None, max_examples=examples(60))
@given(lives(), st.sampled_from(sorted(PLACEMENTS)), st.sampled_from([0.0, 25.0]))
def test_conservative_keeps_every_promise_where_nothing_fails(
    life: tuple[list[Node], list[tuple[float, list[Job]]], dict[JobId, float]], placement: str, late_s: float
) -> None:
    """Nobody starts later than promised, and at the cycle that finds a promise due the job starts.

    Cycles may be late by half of the slack.
    """
    nodes, cycles, run_s = life
    made = rules(ConservativeBackfill(slack_s=2 * late_s), placement)
    cluster = LiveCluster(nodes, made, run_s)
    for now_s, before, decisions in lived(cluster, cycles, late_s):
        for promised in before.values():
            decision = decisions[promised.job]
            if isinstance(decision, Start):
                continue
            assert isinstance(decision, Reserve), decision
            assert decision.broken is None, decision
            assert decision.promise is not None
            assert now_s < decision.promise.start_s <= promised.start_s
        for decision in decisions.values():
            if isinstance(decision, Hold):
                assert decision.reason.value in {"never-fits"}, decision
            elif isinstance(decision, Reserve):
                assert decision.promise is not None
                assert decision.promise.first_s == cluster.first[decision.job]
    assert all(isinstance(decision, Hold) for decision in decisions.values())


@settings(deadline=None, max_examples=examples(60))
@given(lives(), st.data())
def test_promises_are_kept_though_the_answers_are_of_different_moments(
    life: tuple[list[Node], list[tuple[float, list[Job]]], dict[JobId, float]], data: st.DataObject
) -> None:
    """Between ``qstat`` and ``pbsnodes`` jobs end, and starts that somebody else asked for take effect."""
    nodes, cycles, run_s = life
    cluster = LiveCluster(nodes, rules(ConservativeBackfill(slack_s=60.0)), run_s)
    for now_s, before, decisions in lived(cluster, cycles):
        _all_kept(before, decisions)
        cluster.nodes_s = data.draw(st.sampled_from([0.0, 1.0, 30.0]))
        looked_s = now_s + 5.0 + cluster.nodes_s
        began = [run.job.id for run in cluster.runs if run.start_s == now_s and run.end_s > looked_s]
        if began:
            # A daemon killed after its starts: the next one looks while they take effect.
            cluster.unseen = data.draw(st.sets(st.sampled_from(began)))
            before = dict(cluster.promises)
            _all_kept(before, cluster.cycle(now_s + 5.0))


def _all_kept(before: dict[JobId, Promise], decisions: dict[JobId, Decision]) -> None:
    for promised in before.values():
        decision = decisions[promised.job]
        if isinstance(decision, Reserve):
            assert decision.broken is None, decision
            assert decision.promise is not None
            assert decision.promise.start_s <= promised.start_s
        else:
            assert isinstance(decision, Start), decision


@settings(deadline=None, max_examples=examples(40))
@given(lives(), st.data())
def test_a_promise_is_broken_with_a_reason_or_not_at_all(
    life: tuple[list[Node], list[tuple[float, list[Job]]], dict[JobId, float]], data: st.DataObject
) -> None:
    nodes, cycles, run_s = life
    cluster = LiveCluster(nodes, rules(ConservativeBackfill()), run_s)
    for _, before, decisions in lived(cluster, cycles):
        failed = set(cluster.down)
        for promised in before.values():
            decision = decisions[promised.job]
            if isinstance(decision, Reserve):
                assert decision.promise is not None
                assert (decision.promise.start_s > promised.start_s) == (decision.broken is not None)
                if decision.broken is not None:
                    assert decision.details["broken"]
                    assert decision.promise.n_broken == promised.n_broken + 1
                    assert decision.broken is Broken.NODE_FAILED
                    assert failed & {share.node for share in promised.allocation}
        cluster.down.clear()
        if data.draw(st.booleans()):
            cluster.fail(data.draw(st.sampled_from(nodes)).name)


@settings(deadline=None, max_examples=examples(30))
@given(lives(), st.sampled_from([1, 2]))
def test_easy_never_delays_the_first_job(
    life: tuple[list[Node], list[tuple[float, list[Job]]], dict[JobId, float]], depth: int
) -> None:
    nodes, cycles, run_s = life
    cluster = LiveCluster(nodes, rules(EasyBackfill(depth=depth)), run_s)
    for now_s, before, decisions in lived(cluster, cycles):
        reserved = [decision for decision in decisions.values() if isinstance(decision, Reserve)]
        assert len(reserved) <= depth
        if not before:
            continue
        first = before[min(before, key=lambda name: int(name.partition(".")[0]))]
        decision = decisions[first.job]
        assert isinstance(decision, Start | Reserve)
        if isinstance(decision, Reserve):
            assert decision.broken is None
            assert decision.start_s <= max(first.start_s, now_s)


def test_a_wide_job_is_not_starved_and_the_short_one_goes_ahead() -> None:
    """The example of the papers: a hole in front of a promised job is used by who ends in time."""
    nodes = [node("n0", 4), node("n1", 4)]
    jobs = [
        job(1, "1:ppn=4", walltime_s=HOUR_S),
        job(2, "2:ppn=4", walltime_s=HOUR_S),
        job(3, "1:ppn=4", walltime_s=HOUR_S / 2),
        job(4, "1:ppn=4", walltime_s=2 * HOUR_S),
    ]
    cluster = LiveCluster(nodes, rules(ConservativeBackfill(slack_s=0.0)), {one.id: HOUR_S for one in jobs})
    cluster.waiting += jobs
    first = cluster.cycle(NOW_S)
    assert isinstance(first[JobId("1.head")], Start)
    wide = first[JobId("2.head")]
    assert isinstance(wide, Reserve)
    assert wide.start_s == math.ceil((NOW_S + HOUR_S) / 60) * 60
    assert isinstance(first[JobId("3.head")], Start)
    long = first[JobId("4.head")]
    assert isinstance(long, Reserve)
    assert long.start_s >= wide.start_s + HOUR_S


@pytest.mark.parametrize("backfill", [ConservativeBackfill(), EasyBackfill()])
def test_equal_input_gives_equal_answers(backfill: PlanningBackfill) -> None:
    nodes = [node(f"n{i}", 4) for i in range(3)]
    jobs = [job(i, SPECS[i % 7], walltime_s=1000.0 * (1 + i % 3)) for i in range(1, 15)]
    answers = []
    for _ in range(2):
        cluster = LiveCluster(nodes, rules(backfill), {one.id: 500.0 for one in jobs})
        cluster.waiting += jobs
        answers.append([cluster.cycle(NOW_S), cluster.cycle(NOW_S + 60), cluster.cycle(NOW_S + 600)])
    assert answers[0] == answers[1]
