"""What must hold of limits of the settings on every cluster."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.property.torque.test_policies import World, started, worlds
from torque_sched.decide.decide import decide
from torque_sched.decide.rules import RunningLimits, Throttling
from torque_sched.decide.throttling import n_procs, remaining_s
from torque_sched.model.cluster import Job
from torque_sched.model.decisions import Hold, Start
from torque_sched.model.reasons import Reason

NAMES = {"user": ["ann", "bob"], "group": ["staff", "chem"], "account": ["", "p1"], "queue": ["batch"]}
FOR_GOOD = {each for each in Reason if each.is_for_good}
AMOUNTS = {"jobs": st.integers(0, 4), "procs": st.integers(0, 12), "proc_s": st.integers(0, 20_000)}


@st.composite
def bounds(draw: st.DrawFn) -> RunningLimits:
    values: dict[str, Any] = {}
    for name, amounts in AMOUNTS.items():
        hard, soft = draw(st.none() | amounts), draw(st.none() | amounts)
        values[f"max_{name}"] = hard
        values[f"soft_max_{name}"] = soft if hard is None or soft is None else min(soft, hard)
    return RunningLimits(**values)


@st.composite
def throttled(draw: st.DrawFn) -> World:
    """A world of jobs of several groups and accounts, with limits."""
    shot, made, context = draw(worlds())
    jobs = tuple(
        replace(
            one, group=draw(st.sampled_from(NAMES["group"])), account=draw(st.sampled_from(NAMES["account"]))
        )
        for one in shot.jobs
    )
    tables = {
        f"{kind}s": draw(st.dictionaries(st.sampled_from([*names, "*"]), bounds(), max_size=2))
        for kind, names in NAMES.items()
    }
    return replace(shot, jobs=jobs), replace(made, throttling=Throttling(**tables)), context


def used(jobs: list[Job], now_s: float) -> Counter[tuple[str, str, str]]:
    """Jobs, processors and processor-seconds of each holder."""
    found: Counter[tuple[str, str, str]] = Counter()
    for one in jobs:
        procs = n_procs(one)
        amounts = {"jobs": 1, "procs": procs, "proc_s": procs * remaining_s(one, now_s)}
        for kind in NAMES:
            for name, amount in amounts.items():
                found[kind, getattr(one, kind), name] += amount
    return found


def limits_of(throttling: Throttling, job: Job) -> list[tuple[tuple[str, str, str], str, float]]:
    """Of each limit of the job's: whose and of which amount, whether hard or soft, and how much."""
    found = []
    for kind in NAMES:
        table, name = getattr(throttling, f"{kind}s"), getattr(job, kind)
        own = table.get(name, table.get("*", RunningLimits()))
        for amount in AMOUNTS:
            for is_soft, key in (("hard", f"max_{amount}"), ("soft", f"soft_max_{amount}")):
                if getattr(own, key) is not None:
                    found.append(((kind, name, amount), is_soft, getattr(own, key)))
    return found


@given(throttled())
def test_no_start_exceeds_a_hard_limit(world: World) -> None:
    shot, made, context = world
    pending = [shot.job_by_id[each.job] for each in context.pending]
    running = [*shot.running, *pending]
    before, starts = used(running, shot.now_s), [one for one, _ in started(world)]
    after = before + used(starts, shot.now_s)
    for one in starts:
        for holder, kind, limit in limits_of(made.throttling, one):
            assert kind == "soft" or after[holder] <= limit


@given(throttled())
def test_a_soft_limit_is_exceeded_only_where_nobody_waits_whom_no_limit_holds(world: World) -> None:
    """Who waits and has room in all limits waits for something else than them."""
    shot, made, context = world
    starts = [one for one, _ in started(world)]
    pending = [shot.job_by_id[each.job] for each in context.pending]
    total = used([*shot.running, *pending, *starts], shot.now_s)
    limits = [each for one in starts for each in limits_of(made.throttling, one)]
    if not any(kind == "soft" and total[holder] > limit for holder, kind, limit in limits):
        return
    for decision in decide(shot, made, context):
        is_for_good = isinstance(decision, Hold) and decision.reason in {Reason.START_PENDING, *FOR_GOOD}
        if not isinstance(decision, Start) and not is_for_good:
            waits = shot.job_by_id[decision.job]
            more, own = used([waits], shot.now_s), limits_of(made.throttling, waits)
            assert any(total[holder] + more[holder] > limit for holder, _, limit in own), decision


@given(throttled())
def test_with_nobody_else_waiting_a_soft_limit_does_not_hold(world: World) -> None:
    shot, made, context = world
    waiting = [one for one in shot.queued if one.id not in {each.job for each in context.pending}]
    if not waiting:
        return
    alone = replace(shot, jobs=tuple(one for one in shot.jobs if one not in waiting or one is waiting[0]))
    decision = next(each for each in decide(alone, made, context) if each.job == waiting[0].id)
    assert not isinstance(decision, Hold) or decision.reason is not Reason.SOFT_LIMIT


@given(throttled())
def test_limits_of_nothing_change_nothing(world: World) -> None:
    shot, made, context = world
    tables = {f"{kind}s": {"*": RunningLimits()} for kind in NAMES}
    without = replace(made, throttling=Throttling())
    assert decide(shot, replace(made, throttling=Throttling(**tables)), context) == decide(
        shot, without, context
    )
