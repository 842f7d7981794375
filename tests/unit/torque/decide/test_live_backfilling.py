"""Live backfilling, case by case: what is promised, what breaks it, and what everybody is told."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from tests.fixtures.torque_builders import (
    GIB,
    NOW_S,
    Answers,
    answers,
    gpu_devices,
    job,
    node,
    queue,
    running,
)
from torque_sched.decide.backfill import (
    ConservativeBackfill,
    EasyBackfill,
    FcfsBackfill,
    PlanningBackfill,
    SelectiveBackfill,
)
from torque_sched.decide.context import Context, KnownPredictions, Prediction, Window
from torque_sched.decide.order import FcfsOrder
from torque_sched.decide.rules import NodeRules, QueueRules
from torque_sched.decide.settings import Settings
from torque_sched.errors import ConfigError
from torque_sched.model.cluster import Job, JobId, NodeName
from torque_sched.model.decisions import GuaranteedStart, Hold, NodeShare
from torque_sched.model.reasons import Broken, Reason
from torque_sched.model.request import AccessPolicy
from torque_sched.model.snapshot import Reservation

HOUR_S = 3600.0
FULL = running(9, "n1/0-3", "1:ppn=4", walltime_s=HOUR_S, since_s=0)
"""Has all of n1 for an hour."""
TWO = [node("n1"), node("n2")]
WIDE = job(1, "2:ppn=4", walltime_s=HOUR_S)


def plan(backfill: PlanningBackfill | None = None, **changes: Any) -> Settings:
    return Settings(backfill=backfill or ConservativeBackfill(slack_s=0.0), **changes)


def promised(
    number: int, start_s: float, hosts: str, length_s: float = HOUR_S
) -> dict[JobId, GuaranteedStart]:
    """What the cycle before promised: ``hosts`` like ``n1:2+n2:2``."""
    shares = []
    for part in hosts.split("+"):
        name, _, ppn = part.partition(":")
        shares.append(NodeShare(NodeName(name), int(ppn)))
    name = JobId(f"{number}.head")
    return {name: GuaranteedStart(name, start_s, tuple(shares), length_s, NOW_S - 60, start_s, NOW_S - 60)}


def later(seconds: float) -> float:
    """A time to come, in whole minutes like all promises."""
    return -(-(NOW_S + seconds) // 60) * 60


def hosts(got: Answers, number: int) -> list[str]:
    return [f"{share.node}:{share.slots}:{share.gpus}" for share in got.reserved(number).allocation]


def test_promises_know_properties_gpus_memory_and_nodes_alone() -> None:
    nodes = [node("c1", 4, mem=8 * GIB), node("c2", 4), node("g1", 4, gpus=2, devices=gpu_devices(2))]
    busy = [
        running(1, "c1/0-3", "1:ppn=4", walltime_s=HOUR_S, since_s=0),
        running(2, "c2/0-3", "1:ppn=4", walltime_s=2 * HOUR_S, since_s=0),
        running(3, "g1/0-1+g1-gpu/0+g1-gpu/1", "1:ppn=2:gpus=2", walltime_s=3 * HOUR_S, since_s=0),
    ]
    waiting = [job(11, "1:ppn=4", walltime_s=60.0), job(12, "1:ppn=4", walltime_s=60.0, mem_bytes=32 * GIB)]
    waiting.append(job(13, "1:gpus=1", walltime_s=60.0))
    waiting.append(job(14, "1:ppn=1", walltime_s=60.0, access=AccessPolicy.SINGLE_JOB))
    got = answers(nodes, [*busy, *waiting], plan(nodes=NodeRules(cores_per_idle_gpu=0)))
    assert {number: (hosts(got, number), got.reserved(number).start_s) for number in (11, 12, 13, 14)} == {
        11: (["c1:4:0"], later(HOUR_S)),
        12: (["c2:4:0"], later(2 * HOUR_S)),
        13: (["g1:1:1"], later(3 * HOUR_S)),
        14: (["c1:1:0"], later(HOUR_S + 60)),  # Alone on its node, so after the one promised there before it.
    }
    assert got.reserved(11).promise is not None
    assert "it starts not later than 1970-01-12 14:47 UTC" in got.comment(11)


def test_a_promise_is_carried_and_becomes_sooner_when_something_ended() -> None:
    before = promised(1, later(5 * HOUR_S), "n1:4+n2:4")
    promise = answers(TWO, [FULL, WIDE], plan(), Context(promises=before)).reserved(1).promise
    assert promise is not None
    assert promise.start_s == later(HOUR_S) < promise.first_s == later(5 * HOUR_S)
    assert (promise.made_s, promise.first_made_s, promise.n_broken) == (NOW_S, NOW_S - 60, 0)
    kept = answers(TWO, [FULL, WIDE], plan(ConservativeBackfill(compress=False)), Context(promises=before))
    assert kept.reserved(1).start_s == later(5 * HOUR_S)
    assert answers(TWO, [WIDE], plan(), Context(promises=before)).hosts(1) == "n1:ppn=4+n2:ppn=4"


COURSE = Reservation("course", frozenset({NodeName("n1")}), later(HOUR_S) + 60, later(9 * HOUR_S))


def on_n1(limit_s: float = HOUR_S - 60, since_s: float = 0) -> Job:
    return running(9, "n1/0-3", "1:ppn=4", walltime_s=limit_s, since_s=since_s)


@pytest.mark.parametrize(
    ("jobs", "changes", "cause", "words"),
    [
        ([], {"state": "down"}, Broken.NODE_FAILED, "node n1"),
        ([on_n1()], {"reservations": (COURSE,)}, Broken.RESERVATION, "reservation course keeps its nodes"),
        ([on_n1(HOUR_S, HOUR_S + 100)], {"start_s": later(-HOUR_S)}, Broken.OVERRUN,
         "job 9.head on n1 runs longer than planned"),
        ([on_n1(), job(2, "1:ppn=4", walltime_s=9 * HOUR_S)],
         {"walltime_s": 5 * HOUR_S, "promises": promised(2, later(2 * HOUR_S), "n1:4", 9 * HOUR_S)},
         Broken.SETTINGS, "longer than when the start was guaranteed"),
        ([on_n1(2 * HOUR_S)], {}, Broken.NODES, "job 9.head may run on n1 until"),
    ],
    ids=["node", "reservation", "overrun", "longer", "taken"],
)  # fmt: skip
def test_a_broken_promise_tells_its_cause(
    jobs: list[Job], changes: dict[str, Any], cause: Broken, words: str
) -> None:
    start_s, walltime_s = changes.get("start_s", later(HOUR_S)), changes.get("walltime_s", HOUR_S)
    promises = promised(1, start_s, "n1:4") | changes.get("promises", {})
    busy = running(8, "n2/0-3", "1:ppn=4", walltime_s=3 * HOUR_S, since_s=0)
    context = Context(promises=promises, reservations=changes.get("reservations", ()))
    nodes = [node("n1", state=changes.get("state", "")), node("n2")]
    got = answers(nodes, [busy, *jobs, job(1, "1:ppn=4", walltime_s=walltime_s)], plan(), context).reserved(1)
    assert got.broken is cause
    assert words in got.details["broken"]
    assert got.promise is not None
    assert (got.promise.n_broken, got.promise.why_broken) == (1, got.details["broken"])
    assert got.promise.start_s > start_s == got.promise.first_s


def test_beyond_the_limits_of_a_cycle() -> None:
    jobs = [FULL, *(job(i, "1:ppn=4", walltime_s=HOUR_S) for i in range(1, 5)), job(5, walltime_s=60.0)]
    nodes, full = [node("n1"), node("n2", 1)], Reason.NO_FREE_SLOTS
    got = answers(nodes, jobs, plan(ConservativeBackfill(reservations=2, max_jobs=4)))
    assert got.told == {1: "kept", 2: "kept", 3: full, 4: full, 5: Reason.BEYOND_LIMIT}
    # Behind both that are promised n1, by the count of slots; n2 would be one of them.
    counted = [got[number].details["estimated start"] for number in (3, 4)]  # type: ignore[union-attr]
    assert counted == ["1970-01-12 16:50 UTC", "1970-01-12 18:00 UTC"]
    assert "estimated start" not in got.comment(3)
    # Nothing is promised to it, but it delays nobody.
    assert answers(nodes, jobs, plan(ConservativeBackfill(reservations=2))).started == [5]
    assert answers(nodes, jobs, plan(ConservativeBackfill(window_s=HOUR_S / 2))).reason(1) is full


def test_who_holds_no_reservation_reads_why() -> None:
    jobs = [FULL, *(job(i, "1:ppn=4", walltime_s=HOUR_S) for i in (1, 2))]
    got = answers([node("n1")], jobs, plan(ConservativeBackfill(reservations=1)))
    assert "no start is guaranteed: only the first 1 waiting jobs hold reservations" in got.comment(2)
    got = answers([node("n1")], jobs, plan(ConservativeBackfill(window_s=HOUR_S / 2)))
    assert "no start is guaranteed: no place for it is free within 0.5 hours" in got.comment(1)
    every = answers([node("n1")], jobs, plan(ConservativeBackfill(reservations="all")))
    assert every.told == {1: "kept", 2: "kept"}


@pytest.mark.parametrize("outrank", ["never", "priority"])
def test_a_job_of_higher_priority_takes_over_a_reservation_where_it_may(outrank: Any) -> None:
    first = job(2, "1:ppn=4", walltime_s=HOUR_S, priority=10)
    jobs = [on_n1(HOUR_S), job(1, "1:ppn=4", walltime_s=HOUR_S), first]
    settings = plan(
        ConservativeBackfill(slack_s=0.0, outrank=outrank, reservations=1), order=FcfsOrder(by_priority=True)
    )
    got = answers([node("n1")], jobs, settings, Context(promises=promised(1, later(HOUR_S), "n1:4")))
    if outrank == "never":
        assert got.reserved(1).start_s == later(HOUR_S)
        assert isinstance(got[2], Hold)
        return
    assert got.reserved(2).start_s == later(HOUR_S)
    assert got[1].details["guaranteed start"]  # type: ignore[union-attr]
    both = replace(settings, backfill=ConservativeBackfill(slack_s=0.0, outrank=outrank))
    got = answers([node("n1")], jobs, both, Context(promises=promised(1, later(HOUR_S), "n1:4")))
    assert got.reserved(1).broken is Broken.OUTRANKED
    assert "put off: job 2.head of higher priority goes first" in got.comment(1)


PATIENT = NOW_S - HOUR_S


@pytest.mark.parametrize(
    ("backfill", "qtime_s", "told"),
    [
        (FcfsBackfill(), NOW_S - 60, {2: Reason.NOT_FIRST, 3: Reason.NOT_FIRST}),
        (EasyBackfill(), NOW_S - 60, {1: "kept", 2: "n2:ppn=2", 3: Reason.NO_FREE_SLOTS}),
        (EasyBackfill(depth=2), NOW_S - 60, {1: "kept", 2: "n2:ppn=2", 3: "kept"}),
        (SelectiveBackfill(threshold=1.9), PATIENT, {1: "kept", 2: "n2:ppn=2", 3: Reason.NO_FREE_SLOTS}),
        (SelectiveBackfill(threshold=1.9), NOW_S - 60, {1: Reason.NO_FREE_SLOTS, 2: "n2:ppn=2"}),
    ],
)
def test_fcfs_easy_and_selective(
    backfill: PlanningBackfill, qtime_s: float, told: dict[int, str | Reason]
) -> None:
    asked = ((1, "2:ppn=4", HOUR_S), (2, "1:ppn=2", 60.0), (3, "1:ppn=4", 2 * HOUR_S))
    jobs = [job(number, spec, walltime_s=limit_s, qtime_s=qtime_s) for number, spec, limit_s in asked]
    got = answers(TWO, [FULL, *jobs], plan(backfill))
    assert told.items() <= got.told.items()
    if isinstance(backfill, EasyBackfill):
        assert got.reserved(1).start_s == later(HOUR_S + 60)
    if isinstance(backfill, FcfsBackfill):
        assert got.started == []
        assert "(1.head)" in got.comment(2)


def test_reservations_are_planned_around_by_all_but_who_may_use_them() -> None:
    course = replace(COURSE, start_s=NOW_S + HOUR_S, end_s=NOW_S + 2 * HOUR_S, users=frozenset({"eve"}))
    jobs = [job(i, "1:ppn=4", walltime_s=2 * HOUR_S, user=user) for i, user in ((1, "ann"), (2, "eve"))]
    got = answers([node("n1")], jobs, plan(), Context(reservations=(course,)))
    assert got.started == [2]
    assert got.reserved(1).start_s == later(2 * HOUR_S)
    assert "(course keeps nodes until 1970-01-12 15:46 UTC)" in got.comment(1)


def test_dedicated_time_is_planned_around_and_in() -> None:
    window, made = (
        Window(NOW_S + HOUR_S, NOW_S + 2 * HOUR_S),
        plan(queues=QueueRules(dedicated_prefix="dedi")),
    )
    jobs = [job(1, "1:ppn=4", walltime_s=2 * HOUR_S), job(2, "1:ppn=4", walltime_s=HOUR_S / 2)]
    jobs.append(job(3, "1:ppn=4", walltime_s=HOUR_S / 2, queue="dedi"))
    both = [queue(), queue("dedi")]
    got = answers([node("n1")], jobs, made, Context(dedicated=(window,)), queues=both)
    assert got.started == [2]
    assert (got.reserved(1).start_s, got.reserved(3).start_s) == (later(2 * HOUR_S), later(HOUR_S))
    assert "(dedicated time until" in got.comment(1)
    assert answers([node("n1")], jobs, made, queues=both).reason(3) is Reason.DEDICATED_TIME


def test_without_walltimes_nothing_is_promised_but_the_nodes_drain() -> None:
    """Nobody knows when the running job ends: the first wide job keeps what is free, and does not starve."""
    endless, wide = running(9, "n1/0-3", "1:ppn=4"), job(1, "2:ppn=4", walltime_s=60.0)
    jobs = [endless, wide, job(2, "1:ppn=2", walltime_s=60.0)]
    got = answers(TWO, jobs, plan())
    assert got.started == []
    assert got.reserved(1).promise is None
    assert "no walltime" in got.reserved(1).details["start"]
    got = answers(TWO, jobs, plan(ConservativeBackfill(default_walltime_s=2 * HOUR_S)))
    assert got.started == [2]
    assert got.reserved(1).promise is not None
    # A job without walltime may start only where nothing is promised later.
    jobs = [running(9, "n1/0-3", "1:ppn=4", walltime_s=HOUR_S), wide, job(2)]
    assert answers(TWO, jobs, plan()).started == []
    assert answers([*TWO, node("n3", 1)], jobs, plan()).hosts(2) == "n3:ppn=1"


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
    got = answers(TWO, jobs, plan(rules))
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


@pytest.mark.parametrize(
    ("learned", "since_s", "start_s"),
    [
        (True, 0, HOUR_S),
        (False, 0, 9 * HOUR_S),
        # It outran the prediction by ten minutes: the next step is taken, and the limit is never passed.
        (True, HOUR_S + 600, 660),
        (True, 9 * HOUR_S - 30, 30),
    ],
)
def test_learned_run_times_are_planned_with_if_asked(learned: bool, since_s: float, start_s: float) -> None:
    one, two = on_n1(9 * HOUR_S, since_s), job(1, "1:ppn=4", walltime_s=60.0)
    context = Context(predictions=KnownPredictions({one.id: Prediction(runtime_s=HOUR_S)}))
    made = plan(ConservativeBackfill(slack_s=0.0, learned=learned))
    assert answers([node("n1")], [one, two], made, context).reserved(1).start_s == later(start_s)


def test_fcfs_starts_in_order_whatever_may_be_or_was_promised() -> None:
    for start_s in (later(-60), later(HOUR_S)):
        context = Context(promises=promised(1, start_s, "n1:4"))
        one = job(1, "1:ppn=4", walltime_s=HOUR_S)
        assert answers([node("n1")], [one], plan(FcfsBackfill()), context).started == [1]
    jobs = [job(i, "1:ppn=2", walltime_s=60.0) for i in (1, 2, 3)]
    assert answers([node("n1")], jobs, plan(FcfsBackfill(reservations=1))).started == [1, 2]


def test_strict_queues_wait_for_their_first_job() -> None:
    jobs = [FULL, job(1, "2:ppn=4", walltime_s=60.0), job(2, walltime_s=60.0)]
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
        lambda: ConservativeBackfill(reservations=0),
        lambda: ConservativeBackfill(reservations="some"),  # type: ignore[arg-type]
        lambda: ConservativeBackfill(outrank="always"),  # type: ignore[arg-type]
        lambda: SelectiveBackfill(threshold=0.5),
    ],
)
def test_settings_that_make_no_sense_are_refused(make: Any) -> None:
    with pytest.raises(ConfigError, match="backfill"):
        make()


def test_numpy_is_needed_only_by_those_who_plan() -> None:
    script = """
import sys
sys.modules["numpy"] = None
from tests.fixtures.torque_builders import answers, job, node
from torque_sched.errors import ConfigError
from torque_sched.decide.backfill import ConservativeBackfill
from torque_sched.decide.settings import Settings
assert answers([node("n1")], [job(1)]).started == [1]
try:
    answers([node("n1")], [job(1)], Settings(backfill=ConservativeBackfill()))
except ConfigError as error:
    assert "cluster-accel[torque]" in str(error), error
else:
    raise AssertionError("planned without numpy")
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=300)
