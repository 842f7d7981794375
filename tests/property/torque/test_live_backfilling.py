"""Promises of a live cluster: kept from cycle to cycle, broken only with a reason; nobody starts on them."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import accumulate
from typing import Any

from hypothesis import event, given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.fixtures.torque_builders import GIB, NOW_S, job, node
from tests.property.torque.backfilling_drive import CAPACITY, JOBS, by_definition_of_easy, by_seconds
from tests.property.torque.live_cluster import LiveCluster
from torque_sched.decide.backfill import ConservativeBackfill, EasyBackfill, PlanningBackfill
from torque_sched.decide.context import BackOff, Context, Pause, Window
from torque_sched.decide.decide import Decider, decide
from torque_sched.decide.occupancy import Occupancy
from torque_sched.decide.order import FcfsOrder
from torque_sched.decide.rules import NodeRules
from torque_sched.decide.settings import BACKFILLS, PLACEMENTS, Settings
from torque_sched.model.cluster import Job, JobId, Node, NodeName
from torque_sched.model.decisions import Decision, GuaranteedStart, Hold, Reserve, Start
from torque_sched.model.reasons import Broken
from torque_sched.model.request import AccessPolicy
from torque_sched.model.snapshot import Reservation, Snapshot
from torque_sched.model.states import JobState, NodeState

SPECS = [
    "1",
    "1:ppn=2",
    "1:ppn=4",
    "2",
    "2:ppn=2",
    "2:ppn=4",
    "3:ppn=2",
    "1:gpus=1",
    "1:ppn=2:gpus=2",
    "1:fast",
    "2:fast:ppn=2",
]
SPECS += ["1:fast+1:ppn=2", "n0:ppn=2", "n1+n1:ppn=2"]
Life = tuple[list[Node], list[tuple[float, list[Job]]], dict[JobId, float]]
"""Nodes, cycles with the jobs submitted before each, and real run times up to the walltime."""
HOUR_S = 3600.0


def rules(backfill: PlanningBackfill, placement: str = "projected") -> Settings:
    return Settings(placement=PLACEMENTS[placement](), backfill=backfill, nodes=NodeRules(dead_after_s=0))


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
def lives(draw: st.DrawFn) -> Life:
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
    life: Life, placement: str, late_s: float
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
    life: Life, data: st.DataObject
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


def _all_kept(before: dict[JobId, GuaranteedStart], decisions: dict[JobId, Decision]) -> None:
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
def test_a_promise_is_broken_with_a_reason_or_not_at_all(life: Life, data: st.DataObject) -> None:
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
def test_easy_never_delays_the_first_job(life: Life, depth: int) -> None:
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


@st.composite
def kept_for_somebody(draw: st.DrawFn, names: list[NodeName]) -> dict[str, Any]:
    """Of a context: nodes that are kept or that rest, also for one job alone, and dedicated time."""
    name = st.sampled_from(names)
    spans = st.tuples(st.sampled_from([-3700.0, 50.0, HOUR_S]), st.sampled_from([60.0, 1000.0, 2 * HOUR_S]))
    reservations = []
    for at_s, for_s in draw(st.lists(spans, max_size=2)):
        on, users = (
            draw(st.frozensets(name, min_size=1)),
            draw(st.frozensets(st.sampled_from(["ann", "bob"]))),
        )
        reservations.append(Reservation(f"r{at_s}", on, NOW_S + at_s, NOW_S + at_s + for_s, users))
    windows = tuple(Window(NOW_S + at, NOW_S + at + for_s) for at, for_s in draw(st.lists(spans, max_size=1)))
    pauses, own = (
        {each: Pause(NOW_S + 1500.0) for each in draw(st.sets(name, max_size=1))} for _ in range(2)
    )
    back_off = BackOff(nodes=pauses, pairs={JobId("2.head"): own})
    return {"reservations": tuple(reservations), "dedicated": windows, "back_off": back_off}


_LIMITS = {"longer": 2 * HOUR_S, "over": 400.0, "endless": None}


@st.composite
def looks(draw: st.DrawFn, shot: Snapshot, now: dict[str, Any]) -> Snapshot:
    """The same look, where nodes are busy or have less memory, and jobs are suspended or altered."""
    if not now or draw(st.integers(0, 2)) == 0:
        names = [each.name for each in shot.nodes]
        now["busy"], now["small"] = draw(st.tuples(*[st.sampled_from(["", "", *names])] * 2))
        for job in shot.running:
            now[job.id] = draw(st.sampled_from(["same", "suspended", *_LIMITS, "counted"]))
    jobs = [_altered(each, now.get(each.id, "same"), shot.now_s) for each in shot.jobs]
    nodes = []
    for each in shot.nodes:
        states = each.states | {NodeState.BUSY} if each.name == now["busy"] else each.states
        status = each.status and replace(each.status, rectime_s=NOW_S)
        if status and each.name == now["small"]:
            status = replace(status, physmem_bytes=3 * GIB)
        nodes.append(replace(each, states=states, status=status))
    return replace(shot, nodes=tuple(nodes), jobs=tuple(jobs))


def _altered(job: Job, what: str, now_s: float) -> Job:
    if job.state is not JobState.RUNNING or what == "same":
        return job
    if what == "counted":
        return replace(job, walltime_remaining_s=(job.start_s or now_s) + (job.walltime_s or 0.0) - now_s)
    if what == "suspended":
        return replace(job, state=JobState.SUSPENDED)
    return replace(job, request=replace(job.request, walltime_s=_LIMITS[what]))


@settings(deadline=None, max_examples=examples(80))
@given(lives(), st.sampled_from(sorted(BACKFILLS)), st.integers(0, 3), st.data())
def test_what_is_kept_over_cycles_changes_no_answer(
    life: Life, name: str, n_small: int, data: st.DataObject
) -> None:
    """Jobs, nodes, reservations and limits change; nor does a cycle whose decisions nobody follows matter.

    What is the same in two snapshots is the same object, as in a simulation, or everything is read anew.
    """
    nodes, cycles, run_s = life
    nodes = [*nodes, *(node(f"s{index}", 1, mem=4 * GIB) for index in range(n_small))]
    kept, seen = Decider(), dict[str, Any]()
    in_context, in_look = dict[str, Any](), dict[str, Any]()

    def compared(shot: Snapshot, made: Settings, context: Context) -> tuple[Decision, ...]:
        if not in_context or data.draw(st.integers(0, 2)) == 0:
            drawn = data.draw(kept_for_somebody([each.name for each in nodes]))
            parts = data.draw(st.sets(st.sampled_from(sorted(drawn)), min_size=1))
            in_context.update({part: drawn[part] for part in parts})
        if data.draw(st.integers(0, 4)) == 0:
            seen.clear()
        context = replace(context, **in_context)
        shot = data.draw(looks(shot, in_look))
        shot = replace(
            shot,
            nodes=tuple(seen.setdefault(repr(each), each) for each in shot.nodes),
            jobs=tuple(seen.setdefault(repr(each), each) for each in shot.jobs),
        )
        fresh = Decider()
        decided = fresh.decide(shot, made, context)
        assert decide(shot, made, context) == decided
        assert kept.decide(shot, made, context) == decided
        if kept.occupancy is not None and fresh.occupancy is not None:
            assert booked(kept.occupancy) == booked(fresh.occupancy)
        if data.draw(st.integers(0, 3)) == 0:
            other = data.draw(st.sampled_from([context, Context()]))
            kept.decide(replace(shot, now_s=shot.now_s + 700.0), made, other)
        return decided

    made = replace(rules(ConservativeBackfill()), backfill=BACKFILLS[name]())
    cluster = LiveCluster(nodes, made, run_s, decide=compared)
    for _ in lived(cluster, cycles):
        cluster.down.clear()
        if data.draw(st.booleans()):
            cluster.fail(data.draw(st.sampled_from(nodes)).name)


def booked(occupancy: Occupancy) -> list[Any]:
    """What is free of each row, step by step."""
    steps, members = occupancy.steps, occupancy.rows.members
    return [
        (members[row], [(at, steps.free[:, row, i].tolist()) for i, at in enumerate(row_at) if at < math.inf])
        for row, row_at in enumerate(steps.at.tolist())
    ]


def starts_of(cluster: LiveCluster, submitted: list[tuple[float, Job]]) -> dict[int, float] | None:
    """When each job starts, in seconds from `NOW_S`; None where two end early at once."""
    todo = list(submitted)
    while True:
        ends = [run.end_s for run in cluster.runs]
        due = [promise.start_s for promise in cluster.promises.values()]
        now_s = min([*ends, *due, *(at_s for at_s, _ in todo)], default=math.inf)
        if now_s == math.inf:
            return {run.job.sequence: run.start_s - NOW_S for run in cluster.started.values()}
        early = [run for run in cluster.runs if run.end_s <= now_s < run.start_s + (run.job.walltime_s or 0)]
        if len(early) > 1:
            return None  # The definition moves promises after each end, `decide` once: both are right.
        cluster.waiting += [one for at_s, one in todo if at_s <= now_s]
        todo = [(at_s, one) for at_s, one in todo if at_s > now_s]
        before = {job: promise.start_s for job, promise in cluster.promises.items()}
        cluster.cycle(now_s)
        after = {job: each.start_s for job, each in cluster.promises.items()}
        after |= {job: run.start_s for job, run in cluster.started.items()}
        if not early and any(after.get(job, start_s) < start_s for job, start_s in before.items()):
            return None  # The definition moves promises after early ends alone, `decide` in each cycle.


@settings(deadline=None, max_examples=examples(60))
@given(JOBS)
def test_on_one_node_jobs_start_when_the_definitions_of_the_policies_say(rows: list[Any]) -> None:
    rows = [(gap, n, limit, min(ran, limit), user) for gap, n, limit, ran, user in rows]
    at_s = [float(at_s) for at_s in accumulate(gap for gap, *_ in rows)]
    jobs = [job(key, f"1:ppn={n}", walltime_s=float(limit)) for key, (_, n, limit, _, _) in enumerate(rows)]
    run_s = {one.id: float(ran) for one, (_, _, _, ran, _) in zip(jobs, rows, strict=True)}
    submitted = [(NOW_S + at, one) for at, one in zip(at_s, jobs, strict=True)]
    made: dict[str, float] = {"slack_s": 0.0, "resolution_s": 1.0, "window_s": 1e9}
    for backfill, definition in (
        (ConservativeBackfill(**made), by_seconds),  # type: ignore[arg-type]
        (EasyBackfill(**made), by_definition_of_easy),  # type: ignore[arg-type]
    ):
        cluster = LiveCluster([node("n0", CAPACITY)], rules(backfill), run_s)
        starts = starts_of(cluster, submitted)
        event(f"{type(backfill).__name__}: {'left out' if starts is None else 'compared'}")
        assert starts in (None, definition(rows))


# Who may put a guaranteed start off: `outrank`.


def with_priorities(life: Life, priorities: list[int]) -> Life:
    nodes, cycles, run_s = life
    given = {
        one.id: priorities[number % len(priorities)]
        for number, one in enumerate(one for _, jobs in cycles for one in jobs)
    }
    return (
        nodes,
        [(at_s, [replace(one, priority=given[one.id]) for one in jobs]) for at_s, jobs in cycles],
        run_s,
    )


PRIORITIES = st.lists(st.integers(-2, 2), min_size=1, max_size=7)


@settings(deadline=None, max_examples=examples(60))
@given(lives(), PRIORITIES)
def test_no_newcomer_puts_a_guaranteed_start_off_where_none_may(life: Life, priorities: list[int]) -> None:
    nodes, cycles, run_s = with_priorities(life, priorities)
    made = replace(rules(ConservativeBackfill(slack_s=0.0)), order=FcfsOrder(by_priority=True))
    cluster = LiveCluster(nodes, made, run_s)
    for now_s, before, decisions in lived(cluster, cycles):
        for name, promise in before.items():
            decision = decisions[name]
            assert isinstance(decision, Start) or (
                isinstance(decision, Reserve)
                and decision.broken is None
                and now_s < decision.start_s <= promise.start_s
            )
    assert all(run.start_s <= cluster.first.get(name, math.inf) for name, run in cluster.started.items())


@settings(deadline=None, max_examples=examples(60))
@given(lives(), PRIORITIES, st.sampled_from([1, 3, "all"]))
def test_reservations_of_lower_priority_are_not_there_for_a_job_that_outranks_them(
    life: Life, priorities: list[int], n_reservations: Any
) -> None:
    """It gets what it would get without them; who is put off reads by whom, and equals keep their starts."""
    nodes, cycles, run_s = with_priorities(life, priorities)
    rule = ConservativeBackfill(slack_s=0.0, outrank="priority", reservations=n_reservations)
    made = replace(rules(rule), order=FcfsOrder(by_priority=True))

    def compared(shot: Snapshot, made: Settings, context: Context) -> tuple[Decision, ...]:
        decisions = decide(shot, made, context)
        by_id = {each.job: each for each in decisions}
        fresh = [one.priority for one in shot.queued if one.id not in context.promises]
        highest = max(fresh, default=math.inf)
        kept = [one for one in shot.jobs if one not in shot.queued or one.priority >= highest]
        promises = {one.id: context.promises[one.id] for one in kept if one.id in context.promises}
        alone = decide(replace(shot, jobs=tuple(kept)), made, replace(context, promises=promises))
        for each in alone:
            assert begin(by_id[each.job]) == begin(each)
        return decisions

    def begin(decision: Decision) -> float:
        return (
            decision.start_s
            if isinstance(decision, Reserve)
            else 0.0
            if isinstance(decision, Start)
            else math.inf
        )

    cluster = LiveCluster(nodes, made, run_s, decide=compared)
    of = {one.id: one for _, jobs in cycles for one in jobs}
    for _, before, decisions in lived(cluster, cycles):
        newcomers = [of[name].priority for name in decisions if name not in before]
        for name, promise in before.items():
            decision = decisions[name]
            if isinstance(decision, Start) or begin(decision) <= promise.start_s:
                continue
            assert of[name].priority < max(newcomers)
            if isinstance(decision, Reserve):
                assert decision.broken is Broken.OUTRANKED
                assert "of higher priority goes first" in decision.comment
