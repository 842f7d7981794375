"""Live backfilling, case by case: what is promised, what breaks it, and what everybody is told."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.torque.policies.builders import (
    GIB,
    NOW_S,
    Answers,
    answers,
    gpu_devices,
    job,
    node,
    queue,
    running,
    snapshot,
)
from torque_sched.core.decisions import Hold, NodeShare, Promise, Reserve
from torque_sched.core.model import JobId, JobSlots, NodeName, Server
from torque_sched.core.reasons import Broken, Reason
from torque_sched.core.request import AccessPolicy
from torque_sched.errors import ConfigError
from torque_sched.policies.backfill import (
    ConservativeBackfill,
    EasyBackfill,
    FcfsBackfill,
    PlanningBackfill,
    SelectiveBackfill,
)
from torque_sched.policies.context import (
    Context,
    KnownPredictions,
    PendingStart,
    Prediction,
    Reservation,
    Window,
    starting,
)
from torque_sched.policies.load import Load
from torque_sched.policies.rules import NodeRules, QueueRules
from torque_sched.policies.settings import Settings

HOUR_S = 3600.0


def plan(backfill: PlanningBackfill | None = None, **changes: Any) -> Settings:
    return Settings(backfill=backfill or ConservativeBackfill(slack_s=0.0), **changes)


def promised(number: int, start_s: float, hosts: str, length_s: float = HOUR_S) -> dict[JobId, Promise]:
    """What the cycle before promised: ``hosts`` like ``n1:2+n2:2``."""
    shares = []
    for part in hosts.split("+"):
        name, _, ppn = part.partition(":")
        shares.append(NodeShare(NodeName(name), int(ppn)))
    name = JobId(f"{number}.head")
    return {name: Promise(name, start_s, tuple(shares), length_s, NOW_S - 60, start_s, NOW_S - 60)}


def later(seconds: float) -> float:
    """A time to come, in whole minutes like all promises."""
    return -(-(NOW_S + seconds) // 60) * 60


def hosts(got: Answers, number: int) -> list[str]:
    return [f"{share.node}:{share.ppn}:{share.gpus}" for share in got.reserved(number).allocation]


def test_promises_know_properties_gpus_memory_and_nodes_alone() -> None:
    nodes = [
        node("c1", 4, mem=8 * GIB),
        node("c2", 4, mem=64 * GIB),
        node("g1", 4, gpus=2, devices=gpu_devices(2)),
    ]
    busy = [
        running(1, "c1/0-3", "1:ppn=4", walltime_s=HOUR_S, since_s=0),
        running(2, "c2/0-3", "1:ppn=4", walltime_s=2 * HOUR_S, since_s=0),
        running(3, "g1/0-1+g1-gpu/0+g1-gpu/1", "1:ppn=2:gpus=2", walltime_s=3 * HOUR_S, since_s=0),
    ]
    waiting = [
        job(11, "1:ppn=4", walltime_s=60.0),
        job(12, "1:ppn=4", walltime_s=60.0, mem_bytes=32 * GIB),
        job(13, "1:gpus=1", walltime_s=60.0),
        job(14, "1:ppn=1", walltime_s=60.0, access=AccessPolicy.SINGLE_JOB),
    ]
    got = answers(nodes, [*busy, *waiting], plan(nodes=NodeRules(cores_per_idle_gpu=0)))
    assert hosts(got, 11) == ["c1:4:0"]
    assert got.reserved(11).start_s == later(HOUR_S)
    assert hosts(got, 12) == ["c2:4:0"]
    assert got.reserved(12).start_s == later(2 * HOUR_S)
    assert hosts(got, 13) == ["g1:1:1"]
    assert got.reserved(13).start_s == later(3 * HOUR_S)
    # Alone on its node, so after the one promised there before it.
    assert hosts(got, 14) == ["c1:1:0"]
    assert got.reserved(14).start_s == later(HOUR_S + 60)
    assert got.reserved(11).promise is not None
    assert "it starts not later than 1970-01-12 14:47 UTC" in got.reserved(11).comment


def test_a_promise_is_carried_and_becomes_sooner_when_something_ended() -> None:
    wide = job(1, "2:ppn=4", walltime_s=HOUR_S)
    rest = running(9, "n1/0-3", "1:ppn=4", walltime_s=HOUR_S, since_s=0)
    before = promised(1, later(5 * HOUR_S), "n1:4+n2:4")
    nodes = [node("n1"), node("n2")]
    got = answers(nodes, [rest, wide], plan(), Context(promises=before))
    promise = got.reserved(1).promise
    assert promise is not None
    assert promise.start_s == later(HOUR_S) < promise.first_s == later(5 * HOUR_S)
    assert (promise.made_s, promise.first_made_s, promise.n_broken) == (NOW_S, NOW_S - 60, 0)
    same = answers(nodes, [rest, wide], plan(), Context(promises=before, freed=False)).reserved(1).promise
    assert same == replace(before[wide.id], length_s=HOUR_S)
    kept = plan(ConservativeBackfill(compress=False))
    assert answers(nodes, [rest, wide], kept, Context(promises=before)).reserved(1).start_s == later(
        5 * HOUR_S
    )
    assert answers(nodes, [wide], plan(), Context(promises=before)).hosts(1) == "n1:ppn=4+n2:ppn=4"


def test_who_comes_later_starts_only_where_it_delays_no_promise() -> None:
    rest = running(9, "n1/0-3", "1:ppn=4", walltime_s=HOUR_S, since_s=0)
    wide = job(1, "2:ppn=4", walltime_s=HOUR_S)
    jobs = [rest, wide, job(2, "1:ppn=2", walltime_s=HOUR_S + 120), job(3, "1:ppn=2", walltime_s=HOUR_S - 60)]
    got = answers(
        [node("n1"), node("n2")], jobs, plan(), Context(promises=promised(1, later(HOUR_S), "n1:4+n2:4"))
    )
    assert got.started == [3]
    assert got.reserved(2).start_s > got.reserved(1).start_s


@pytest.mark.parametrize(
    ("change", "cause", "words"),
    [
        ("node", Broken.NODE_FAILED, "node n1"),
        ("reservation", Broken.RESERVATION, "reservation course keeps its nodes"),
        ("overrun", Broken.OVERRUN, "job 9.head on n1 runs longer than planned"),
        ("longer", Broken.SETTINGS, "longer than when the start was guaranteed"),
        ("taken", Broken.NODES, "less free"),
    ],
)
def test_a_broken_promise_tells_its_cause(change: str, cause: Broken, words: str) -> None:
    nodes, context = [node("n1", state="down" if change == "node" else ""), node("n2")], Context()
    jobs = [running(8, "n2/0-3", "1:ppn=4", walltime_s=3 * HOUR_S, since_s=0)]
    start_s, length_s, walltime_s = later(HOUR_S), HOUR_S, HOUR_S
    if change == "reservation":
        kept = Reservation("course", frozenset({NodeName("n1")}), start_s + 60, start_s + 9 * HOUR_S)
        context = Context(reservations=(kept,))
        jobs.append(running(9, "n1/0-3", "1:ppn=4", walltime_s=HOUR_S - 60, since_s=0))
    if change == "overrun":
        start_s = later(-HOUR_S)
        jobs.append(running(9, "n1/0-3", "1:ppn=4", walltime_s=HOUR_S, since_s=HOUR_S + 100))
    if change == "longer":
        jobs.append(running(9, "n1/0-3", "1:ppn=4", walltime_s=HOUR_S - 60, since_s=0))
        jobs.append(job(2, "1:ppn=4", walltime_s=9 * HOUR_S))
        walltime_s = 5 * HOUR_S
    if change == "taken":
        jobs.append(running(9, "n1/0-3", "1:ppn=4", walltime_s=2 * HOUR_S, since_s=0))
    promises = promised(1, start_s, "n1:4", length_s)
    if change == "longer":
        promises |= promised(2, later(2 * HOUR_S), "n1:4", 9 * HOUR_S)
    jobs.append(job(1, "1:ppn=4", walltime_s=walltime_s))
    got = answers(nodes, jobs, plan(), replace(context, promises=promises)).reserved(1)
    assert got.broken is cause
    assert words in got.details["broken"]
    assert got.promise is not None
    assert (got.promise.n_broken, got.promise.why_broken) == (1, got.details["broken"])
    assert got.promise.start_s > start_s == got.promise.first_s


def test_a_promise_kept_on_other_nodes_is_not_broken() -> None:
    nodes = [node("n1", state="down"), node("n2")]
    jobs = [running(9, "n2/0-3", "1:ppn=4", walltime_s=HOUR_S, since_s=0), job(1, "1:ppn=4", walltime_s=60.0)]
    context = Context(promises=promised(1, later(HOUR_S), "n1:4", 60.0), freed=False)
    got = answers(nodes, jobs, plan(), context)
    assert got.reserved(1).broken is None
    assert hosts(got, 1) == ["n2:4:0"]


def test_a_job_that_ends_a_little_late_breaks_nothing() -> None:
    """Its mom ends a job some seconds after its limit: the slack is for that."""
    late = running(9, "n1/0-3", "1:ppn=4", walltime_s=HOUR_S, since_s=HOUR_S + 10)
    context = Context(promises=promised(1, later(-40), "n1:4"))
    made = plan(ConservativeBackfill(slack_s=60.0))
    got = answers([node("n1")], [late, job(1, "1:ppn=4", walltime_s=HOUR_S)], made, context).reserved(1)
    assert got.broken is None
    assert got.promise is not None
    assert got.promise.start_s == later(-40)


def test_jobs_held_by_gate_or_limit_have_no_reservation() -> None:
    full = running(9, "n1/0-3", "1:ppn=4", walltime_s=HOUR_S, since_s=0, user="bob")
    jobs = [
        full,
        job(1, "1:ppn=4", walltime_s=60.0, queue="off"),
        job(2, "1:ppn=4", walltime_s=60.0, user="bob"),
        job(3, "1:ppn=4", walltime_s=60.0),
        job(4, "1:ppn=4", walltime_s=60.0),
    ]
    context = Context(promises=promised(2, later(HOUR_S), "n1:4", 60.0))
    got = answers(
        [node("n1")],
        jobs,
        plan(),
        context,
        queues=[queue(), queue("off", is_started=False)],
        server=Server(name="head", max_user_run=1),
    )
    assert got.reason(1) is Reason.QUEUE_NOT_STARTED
    assert got.reason(2) is Reason.SERVER_USER_LIMIT
    withdrawn = got[2]
    assert isinstance(withdrawn, Hold)
    assert withdrawn.details["guaranteed start"] == "1970-01-12 14:47 UTC"
    assert got.reserved(3).promise is not None
    # One job of hers may run: the promise to the first counts.
    assert got.reason(4) is Reason.SERVER_USER_LIMIT


def test_beyond_the_limits_of_a_cycle() -> None:
    full = running(9, "n1/0-3", "1:ppn=4", walltime_s=HOUR_S, since_s=0)
    jobs = [full, *(job(i, "1:ppn=4", walltime_s=HOUR_S) for i in range(1, 5)), job(5, walltime_s=60.0)]
    nodes = [node("n1"), node("n2", 1)]
    made = plan(ConservativeBackfill(node_exact_jobs=2, max_jobs=4))
    got = answers(nodes, jobs, made)
    assert got.reserved(1).promise is not None
    assert got.reserved(2).promise is not None
    assert got.reason(3) is Reason.NO_FREE_SLOTS
    # Behind both that are promised n1, by the count of slots; n2 would be one of them.
    counted = [got[number].details["estimated start"] for number in (3, 4)]  # type: ignore[union-attr]
    assert counted == ["1970-01-12 16:50 UTC", "1970-01-12 18:00 UTC"]
    assert "estimated start" not in got[3].comment  # type: ignore[union-attr]
    assert got.reason(5) is Reason.BEYOND_LIMIT
    # Nothing is promised to it, but it delays nobody.
    assert answers(nodes, jobs, plan(ConservativeBackfill(node_exact_jobs=2))).started == [5]
    soon = plan(ConservativeBackfill(window_s=HOUR_S / 2))
    assert answers(nodes, jobs, soon).reason(1) is Reason.NO_FREE_SLOTS


def test_fcfs_easy_and_selective() -> None:
    full = running(9, "n1/0-3", "1:ppn=4", walltime_s=HOUR_S, since_s=0)
    nodes = [node("n1"), node("n2")]
    jobs = [
        full,
        job(1, "2:ppn=4", walltime_s=HOUR_S),
        job(2, "1:ppn=2", walltime_s=60.0),
        job(3, "1:ppn=4", walltime_s=2 * HOUR_S),
    ]
    got = answers(nodes, jobs, plan(FcfsBackfill()))
    assert got.started == []
    assert got.reason(2) is Reason.NOT_FIRST
    assert "(1.head)" in got[2].comment  # type: ignore[union-attr]
    got = answers(nodes, jobs, plan(EasyBackfill()))
    assert got.started == [2]
    assert got.reserved(1).start_s == later(HOUR_S + 60)
    assert isinstance(got[3], Hold)
    assert got.reason(3) is Reason.NO_FREE_SLOTS
    got = answers(nodes, jobs, plan(EasyBackfill(depth=2)))
    assert isinstance(got[3], Reserve)
    patient = [full, *(replace(one, qtime_s=NOW_S - HOUR_S) for one in jobs[1:])]
    got = answers(nodes, patient, plan(SelectiveBackfill(threshold=1.9)))
    assert isinstance(got[1], Reserve)
    assert isinstance(got[3], Hold)
    got = answers(nodes, jobs, plan(SelectiveBackfill(threshold=1.9)))
    assert isinstance(got[1], Hold)


@pytest.mark.parametrize("depth", [1, 2])
def test_easy_keeps_a_promise_on_slots_that_a_new_one_would_leave_to_idle_gpus(depth: int) -> None:
    """A GPU job that started meanwhile fits beside it; two slots kept for two idle GPUs would not."""
    nodes = [node("c1", 2), node("g1", 4, gpus=2, devices=gpu_devices(2))]
    busy = [
        running(1, "g1/0-1", walltime_s=HOUR_S, since_s=0.0),
        running(2, "g1/2+g1-gpu/0", "1:gpus=1", walltime_s=2 * HOUR_S, since_s=0.0),
    ]
    waiting = [job(3, "2:ppn=2", walltime_s=HOUR_S), job(4, "2:ppn=2", walltime_s=HOUR_S)]
    told = promised(3, later(HOUR_S), "c1:2+g1:2")
    if depth > 1:
        told |= promised(4, later(3 * HOUR_S), "c1:2+g1:2")
    settings = plan(EasyBackfill(depth=depth, slack_s=0.0))
    got = answers(nodes, [*busy, *waiting], settings, Context(promises=told))
    assert got.reserved(3).broken is None
    assert got.reserved(3).start_s == later(HOUR_S)
    assert hosts(got, 3) == ["c1:2:0", "g1:2:0"]


def test_dedicated_time_and_reservations_are_planned_around() -> None:
    course = Reservation(
        "course", frozenset({NodeName("n1")}), NOW_S + HOUR_S, NOW_S + 2 * HOUR_S, frozenset({"eve"})
    )
    jobs = [job(1, "1:ppn=4", walltime_s=2 * HOUR_S), job(2, "1:ppn=4", walltime_s=2 * HOUR_S, user="eve")]
    got = answers([node("n1")], jobs, plan(), Context(reservations=(course,)))
    # She may use the time of her course.
    assert got.started == [2]
    assert got.reserved(1).start_s == later(2 * HOUR_S)
    assert "(course keeps nodes until 1970-01-12 15:46 UTC)" in got.reserved(1).comment
    window = Window(NOW_S + HOUR_S, NOW_S + 2 * HOUR_S)
    made = plan(queues=QueueRules(dedicated_prefix="dedi"))
    jobs = [
        job(1, "1:ppn=4", walltime_s=2 * HOUR_S),
        job(2, "1:ppn=4", walltime_s=HOUR_S / 2),
        job(3, "1:ppn=4", walltime_s=HOUR_S / 2, queue="dedi"),
    ]
    both = [queue(), queue("dedi")]
    got = answers([node("n1")], jobs, made, Context(dedicated=(window,)), queues=both)
    assert got.started == [2]
    assert got.reserved(1).start_s == later(2 * HOUR_S)
    assert "(dedicated time until" in got.reserved(1).comment
    assert got.reserved(3).start_s == later(HOUR_S)
    assert answers([node("n1")], jobs, made, queues=both).reason(3) is Reason.DEDICATED_TIME


def test_without_walltimes_nothing_is_promised_but_the_nodes_drain() -> None:
    """Nobody knows when the running job ends: the first wide job keeps what is free, and does not starve."""
    endless = running(9, "n1/0-3", "1:ppn=4")
    nodes = [node("n1"), node("n2")]
    jobs = [endless, job(1, "2:ppn=4", walltime_s=60.0), job(2, "1:ppn=2", walltime_s=60.0)]
    got = answers(nodes, jobs, plan())
    kept = got.reserved(1)
    assert kept.promise is None
    assert "no walltime" in kept.details["start"]
    assert isinstance(got[2], Hold)
    by_default = plan(ConservativeBackfill(default_walltime_s=2 * HOUR_S))
    got = answers(nodes, jobs, by_default)
    assert got.reserved(1).promise is not None
    assert got.started == [2]
    # A job without walltime may start only where nothing is promised later.
    jobs = [running(9, "n1/0-3", "1:ppn=4", walltime_s=HOUR_S), job(1, "2:ppn=4", walltime_s=60.0), job(2)]
    assert answers(nodes, jobs, plan()).started == []
    assert answers([*nodes, node("n3", 1)], jobs, plan()).hosts(2) == "n3:ppn=1"


@pytest.mark.parametrize("rules", [ConservativeBackfill(), EasyBackfill()], ids=["conservative", "easy"])
@pytest.mark.parametrize("limit_s", [None, HOUR_S])
def test_the_reason_names_what_is_kept_as_the_table_of_explain_does(
    rules: Any, limit_s: float | None
) -> None:
    """Room there is, behind a job whose nodes are kept: with a known end of what runs, and without."""
    jobs = [
        running(9, "n1/0-3", "1:ppn=4", walltime_s=limit_s), job(1, "2:ppn=4", walltime_s=HOUR_S),
        job(2, "1:ppn=4", walltime_s=2 * HOUR_S), job(3, "1:ppn=4"), job(4, procs=3), job(5, "2:ppn=2"),
    ]  # fmt: skip
    got = answers([node("n1"), node("n2")], jobs, plan(rules))
    assert got.reserved(1)
    words = "kept for other jobs: needs {} of {}: {} full, {} kept for 1 job before it (1.head)"
    told = {
        2: words.format(1, 2, 1, 1),
        3: words.format(1, 2, 1, 1),
        4: words.format(3, "8 processors", 4, 4),
    }
    holds = [number for number in told if isinstance(got[number], Hold)]
    # Where the end is known the conservative one keeps nodes for these jobs too.
    assert bool(holds) == (limit_s is None or isinstance(rules, EasyBackfill))
    assert all(told[number] in got[number].comment for number in holds)
    assert limit_s is not None or "needs 2 of 2: 1 full" in got[5].comment


def test_learned_run_times_are_planned_with_if_asked() -> None:
    one, two = (
        running(9, "n1/0-3", "1:ppn=4", walltime_s=9 * HOUR_S, since_s=0),
        job(1, "1:ppn=4", walltime_s=60.0),
    )
    known = KnownPredictions({one.id: Prediction(runtime_s=HOUR_S)})
    made = plan(ConservativeBackfill(slack_s=0.0, learned=True))
    context = Context(predictions=known)
    assert answers([node("n1")], [one, two], made, context).reserved(1).start_s == later(HOUR_S)
    assert answers([node("n1")], [one, two], plan(), context).reserved(1).start_s == later(9 * HOUR_S)
    # It outran the prediction by ten minutes: the next step is taken, and the limit is never passed.
    long = replace(one, start_s=NOW_S - HOUR_S - 600)
    assert answers([node("n1")], [long, two], made, context).reserved(1).start_s == later(660)
    last = replace(one, start_s=NOW_S - 9 * HOUR_S + 30)
    assert answers([node("n1")], [last, two], made, context).reserved(1).start_s == later(30)


def test_what_only_decides_now_makes_no_promise_for_the_next_minute() -> None:
    """Memory is free by the plans, not by the mom: it waits, rather than being promised anew and anew."""
    full = node("n1", availmem_bytes=GIB)
    got = answers([full], [job(1, mem_bytes=2 * GIB, walltime_s=60.0)], plan())
    assert got.reason(1) is Reason.NO_FREE_MEMORY


def test_starts_asked_for_hold_their_nodes_and_keep_their_promise() -> None:
    one = job(1, "1:ppn=4", walltime_s=HOUR_S)
    pending = PendingStart(one.id, (NodeShare(NodeName("n1"), 4),), NOW_S - 5)
    got = answers([node("n1")], [one, job(2, walltime_s=60.0)], plan(), Context(pending=(pending,)))
    assert got.reason(1) is Reason.START_PENDING
    assert got.reserved(2).start_s == later(HOUR_S)


def test_a_start_that_only_the_node_shows_has_an_end_like_any_other() -> None:
    """By ``qstat`` it waits, by ``pbsnodes`` it is on the node: somebody started it while we looked."""
    one = job(1, "1:ppn=3", walltime_s=HOUR_S)
    host = replace(node("n1"), jobs=(JobSlots(one.id, 0, 2),))
    waiting = [one, job(2, "1:ppn=2", walltime_s=60.0), job(3, walltime_s=60.0)]
    pending = starting(snapshot([host], waiting))
    assert pending == (PendingStart(one.id, (NodeShare(NodeName("n1"), 3),), NOW_S),)
    got = answers(
        [host], waiting, plan(), Context(pending=pending, promises=promised(2, later(HOUR_S), "n1:2"))
    )
    assert got.reason(1) is Reason.START_PENDING
    assert got.reserved(2).broken is None
    assert got.reserved(2).start_s == later(HOUR_S)
    assert got.started == [3], "the slot left over is free"
    known = (PendingStart(one.id, (NodeShare(NodeName("n1"), 3, 1),), NOW_S - 5),)
    assert starting(snapshot([host], waiting), known) == ()


def test_a_full_cycle_starts_the_rest_next_time() -> None:
    jobs = [job(i, walltime_s=60.0) for i in (1, 2, 3)]
    got = answers([node("n1")], jobs, plan(max_starts=2))
    assert got.started == [1, 2]
    assert got.reason(3) is Reason.CYCLE_FULL


def test_a_full_cycle_keeps_the_promises_that_are_due_and_starts_them_next_time() -> None:
    due = [job(i, walltime_s=HOUR_S) for i in (1, 2, 3)]
    told = promised(1, later(-60), "n1:1") | promised(2, later(-60), "n1:1") | promised(3, later(-60), "n1:1")
    got = answers(
        [node("n1", 3)], [*due, job(4, walltime_s=60.0)], plan(max_starts=2), Context(promises=told)
    )
    assert got.started == [1, 2]
    left = got.reserved(3)
    assert left.broken is None
    assert left.start_s == later(0), "when the next cycle may start it"
    assert left.promise is not None
    assert (left.promise.start_s, left.promise.n_broken) == (later(-60), 0)
    running_now = [running(i, f"n1/{i - 1}", walltime_s=HOUR_S, since_s=0.0) for i in (1, 2)]
    context = Context(promises={left.job: left.promise})
    got = answers(
        [node("n1", 3)], [*running_now, due[2], job(4, walltime_s=60.0)], plan(max_starts=2), context
    )
    assert got.started == [3]


def test_what_is_due_starts_before_jobs_of_which_nothing_was_promised() -> None:
    """Else these take what no plan knows of: the starts of the cycle, memory that is free by the mom."""
    new, due = job(1, walltime_s=HOUR_S), job(2, walltime_s=HOUR_S, mem_bytes=32 * GIB)
    context = Context(promises=promised(2, later(-60), "n1:1"))
    nodes = [node("n1", 2), node("n2", 2, mem=GIB)]
    assert answers(nodes, [new, due], plan(max_starts=1), context).started == [2]
    uses_much = Prediction(load=Load(1.0, 40.0 * GIB, 0.0, 0.0))
    context = replace(context, predictions=KnownPredictions({new.id: uses_much}))
    assert answers(nodes[:1], [new, due], plan(), context).started == [1, 2]


def test_nodes_that_drain_for_want_of_walltimes_are_not_taken_from_a_promise_that_is_due() -> None:
    endless = running(9, "n2/0-3", "1:ppn=4")
    wide, due = job(1, "2:ppn=4", walltime_s=60.0), job(2, "1:ppn=4", walltime_s=HOUR_S)
    context = Context(promises=promised(2, later(-60), "n1:4"))
    got = answers([node("n1"), node("n2")], [endless, wide, due], plan(), context)
    assert got.started == [2]
    assert "no walltime" in got.reserved(1).details["start"]


@pytest.mark.parametrize("backfill", [ConservativeBackfill(), EasyBackfill(), EasyBackfill(depth=2)])
def test_a_start_a_little_late_ends_as_planned_where_a_reservation_follows(
    backfill: PlanningBackfill,
) -> None:
    course = Reservation("course", frozenset({NodeName("n1")}), later(600), later(HOUR_S))
    context = Context(reservations=(course,), promises=promised(1, later(-40), "n1:1", 600.0))
    assert later(-40) < NOW_S
    assert answers([node("n1")], [job(1, walltime_s=600.0)], plan(backfill), context).started == [1]


@pytest.mark.parametrize("start_s", [later(-60), later(HOUR_S)])
def test_fcfs_is_not_held_by_what_another_policy_promised(start_s: float) -> None:
    context = Context(promises=promised(1, start_s, "n1:4"))
    one = job(1, "1:ppn=4", walltime_s=HOUR_S)
    assert answers([node("n1")], [one], plan(FcfsBackfill()), context).started == [1]


def test_fcfs_starts_in_order_whatever_may_be_promised() -> None:
    jobs = [job(i, "1:ppn=2", walltime_s=60.0) for i in (1, 2, 3)]
    got = answers([node("n1")], jobs, plan(FcfsBackfill(node_exact_jobs=1)))
    assert got.started == [1, 2]
    assert isinstance(got[3], Hold)


def test_a_job_keeps_its_promise_when_more_jobs_than_are_looked_at_come_before_it() -> None:
    full = running(9, "n1/0-3", "1:ppn=4", walltime_s=HOUR_S, since_s=0)
    jobs = [full, *(job(i, "1:ppn=4", walltime_s=HOUR_S) for i in (1, 2))]
    context = Context(promises=promised(2, later(HOUR_S), "n1:4"))
    got = answers([node("n1")], jobs, plan(ConservativeBackfill(slack_s=0.0, max_jobs=1)), context)
    assert got.reserved(2).start_s == later(HOUR_S)
    assert got.reserved(1).start_s == later(2 * HOUR_S)


def test_strict_queues_wait_for_their_first_job() -> None:
    full = running(9, "n1/0-3", "1:ppn=4", walltime_s=HOUR_S, since_s=0)
    jobs = [full, job(1, "2:ppn=4", walltime_s=60.0), job(2, walltime_s=60.0)]
    nodes = [node("n1"), node("n2")]
    strict = plan(queues=QueueRules(strict=True))
    got = answers(nodes, jobs, strict)
    assert got.started == []
    assert got.reason(2) is Reason.STRICT_FIFO
    assert answers([*nodes, node("n3"), node("n4")], jobs, strict).started == [1, 2]
    both = [queue(), queue("other")]
    elsewhere = [*jobs, job(3, walltime_s=60.0, queue="other"), job(4, walltime_s=60.0, queue="other")]
    assert answers(nodes, elsewhere, strict, queues=both).started == [3, 4]
    assert answers(nodes, jobs, plan()).started == [2]


@pytest.mark.parametrize(
    "make",
    [
        lambda: EasyBackfill(depth=0),
        lambda: ConservativeBackfill(resolution_s=0),
        lambda: ConservativeBackfill(node_exact_jobs=0),
    ],
)
def test_settings_that_make_no_sense_are_refused(make: Any) -> None:
    with pytest.raises(ConfigError, match="backfill"):
        make()


def test_numpy_is_needed_only_by_those_who_plan() -> None:
    script = """
import sys
sys.modules["numpy"] = None
from tests.unit.torque.policies.builders import answers, job, node
from torque_sched.errors import ConfigError
from torque_sched.policies.backfill import ConservativeBackfill
from torque_sched.policies.settings import Settings
assert answers([node("n1")], [job(1)]).started == [1]
try:
    answers([node("n1")], [job(1)], Settings(backfill=ConservativeBackfill()))
except ConfigError as error:
    assert "cluster-accel[torque]" in str(error), error
else:
    raise AssertionError("planned without numpy")
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=300)
