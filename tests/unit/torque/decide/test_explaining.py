"""People are shown why a job waits, when it is expected to start, and whether it ever can."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from datetime import timezone
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.fixtures.torque_builders import GIB, NOW_S, answers, job, node, queue, running, snapshot
from torque_sched.decide.backfill import AgedReservations, ConservativeBackfill
from torque_sched.decide.context import Context, KnownPredictions, Prediction, Window
from torque_sched.decide.decide import decide
from torque_sched.decide.expected import expected_starts
from torque_sched.decide.explain import explain, showbf, showstart
from torque_sched.decide.settings import Settings, new_backfill
from torque_sched.decide.why import with_expected
from torque_sched.model.cluster import Job, JobId, Node, NodeName, Server
from torque_sched.model.decisions import Hold, Reserve, Start
from torque_sched.model.reasons import Reason
from torque_sched.model.snapshot import Reservation
from torque_sched.model.texts import expected_words, guaranteed_words

HOUR_S = 3600.0
AGED = Settings(backfill=new_backfill("aged", after_s=0.0))
NONE = Settings(backfill=new_backfill("none"))
PLAN_OF_BREAKS = Settings(backfill=new_backfill("conservative"))


TWO = [node("n1"), node("n2")]
FULL = running(900, "n1/0-3", "1:ppn=4", walltime_s=HOUR_S, since_s=0.0)


def words(
    nodes: list[Node], jobs: list[Job], chosen: Settings, context: Context | None = None, **more: Any
) -> dict[str, str]:
    """What is said of each node for the last of the jobs."""
    told = explain(snapshot(nodes, jobs, **more), chosen, context or Context(), jobs[-1])
    return {verdict.node: verdict.words for verdict in told.nodes}


def wide_ones(n: int) -> list[Job]:
    """All of n1 runs; so many jobs want both nodes whole, one after the other."""
    return [
        replace(FULL, start_s=NOW_S - 600),
        *(job(at, "2:ppn=4", walltime_s=HOUR_S) for at in range(11, n + 11)),
    ]


@pytest.mark.parametrize(("hours", "n"), [(12, 7), (2, 2)])
def test_a_node_kept_for_many_jobs_says_for_how_many(hours: int, n: int) -> None:
    """Only what begins before the job's end is in its way."""
    told = words(TWO, [*wide_ones(7), job(99, "1:ppn=4", walltime_s=hours * HOUR_S)], PLAN_OF_BREAKS)
    assert told == {"n1": "no: full", "n2": f"fits, but kept for {n} jobs before it"}


def test_a_node_kept_for_one_that_waited_long() -> None:
    aged = Settings(backfill=new_backfill("aged", after_s=30.0))
    late = job(99, "1:ppn=4", walltime_s=12 * HOUR_S, qtime_s=NOW_S, etime_s=NOW_S)
    assert words(TWO, [*wide_ones(1), late], aged)["n2"] == "fits, but kept for 1 job before it"
    own = words(TWO, [late, *wide_ones(1)], aged)
    assert own["n2"] == "fits, but kept for it until all its nodes are free"


@pytest.mark.parametrize("chosen", [NONE, PLAN_OF_BREAKS])
def test_a_node_that_goes_to_others_in_this_very_cycle(chosen: Settings) -> None:
    jobs = [job(1, "1:ppn=2"), job(2, "1:ppn=2"), job(3, "1:ppn=4", walltime_s=HOUR_S)]
    told = words([node("n1")], jobs, chosen)
    assert told["n1"].startswith("fits, but taken by 2 jobs before it, which start now")


@pytest.mark.parametrize("chosen", [NONE, PLAN_OF_BREAKS])
def test_too_few_nodes_at_once(chosen: Settings) -> None:
    told = words([*TWO, node("n3")], [FULL, job(1, "3:ppn=4", walltime_s=60.0)], chosen)
    assert told["n2"] == told["n3"] == "fits, but the job needs 3 such nodes and 2 are free for it"


@pytest.mark.parametrize("chosen", [NONE, AGED, PLAN_OF_BREAKS])
@pytest.mark.parametrize(
    ("changes", "more", "said"),
    [
        ({}, {"server": Server(name="head", max_user_run=1)}, "User has reached server running job limit."),
        ({"execution_time_s": NOW_S + 60}, {}, "Not to be started before"),
        ({}, {"queues": [queue(is_started=False)]}, "Queue not started."),
    ],
)
def test_what_holds_a_job_whatever_the_nodes_are_like(
    chosen: Settings, changes: dict[str, Any], more: dict[str, Any], said: str
) -> None:
    jobs = [running(1, "n1/0", walltime_s=60.0), job(2, **changes)]
    assert words([node("n1")], jobs, chosen, **more)["n1"].startswith(f"fits, but {said}")


KEPT = Reservation("course", frozenset({NodeName("n1")}), NOW_S + 60.0, NOW_S + HOUR_S)
DEDICATED = Window(NOW_S + 60.0, NOW_S + HOUR_S)


@pytest.mark.parametrize("chosen", [NONE, PLAN_OF_BREAKS])
@pytest.mark.parametrize("context", [Context(reservations=(KEPT,)), Context(dedicated=(DEDICATED,))])
def test_reservations_and_dedicated_time(chosen: Settings, context: Context) -> None:
    told = words([node("n1")], [job(1, walltime_s=HOUR_S)], chosen, context)
    assert told["n1"] != "yes"
    assert not context.dedicated or told["n1"].startswith("fits, but ")


@pytest.mark.parametrize("name", ["none", "aged", "drain", "easy", "conservative", "fcfs"])
@given(data=st.data())
@settings(max_examples=examples(40), deadline=None)
def test_never_a_plain_yes_beside_a_job_that_waits(name: str, data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    nodes = [node(f"n{at}", np) for at, np in enumerate(sizes)]
    jobs: list[Job] = []
    for at, np in enumerate(sizes):
        if data.draw(st.booleans()):
            jobs.append(running(100 + at, f"n{at}/0-{np - 1}", f"1:ppn={np}", walltime_s=900.0))
    for number in range(1, data.draw(st.integers(2, 6))):
        spec = data.draw(st.sampled_from(["1", "1:ppn=2", "1:ppn=4", "2:ppn=1", "3:ppn=2"]))
        walltime_s = data.draw(st.sampled_from([100.0, 5000.0, None]))
        jobs.append(job(number, spec, walltime_s=walltime_s, etime_s=NOW_S - 1e5))
    seen, chosen = snapshot(nodes, jobs), Settings(backfill=new_backfill(name))
    for asked in seen.queued:
        told = explain(seen, chosen, Context(), asked)
        if isinstance(told.decision, Start):
            assert all(not each.breaks for each in told.nodes)
            assert any(each.words == "yes" for each in told.nodes)
            continue
        for each in told.nodes:
            assert each.words != "yes"
            assert re.match(r"no: .|fits, but \w", each.words)


# What people are shown of the plan: when a job starts, and what could start now.


PLAN = Settings(backfill=ConservativeBackfill(slack_s=0.0))


def test_a_job_not_submitted_yet_is_planned_last() -> None:
    waits = job(1, "1:ppn=4", walltime_s=HOUR_S)
    shot = snapshot([node("n1")], [FULL, waits])
    told = showstart(shot, PLAN, Context(), job(2, "1:ppn=4", walltime_s=60.0))
    first = showstart(shot, PLAN, Context(), waits)
    assert first.start_s is not None
    assert told.start_s == pytest.approx(first.start_s + HOUR_S, abs=60)
    assert (told.is_promise, [share.node for share in told.allocation]) == (True, ["n1"])
    assert any("900.head" in words for words in first.evidence)
    assert any("1 waiting jobs come before it" in words for words in told.evidence)


def test_what_starts_now_and_what_never_does() -> None:
    shot = snapshot([node("n1")], [])
    now = showstart(shot, PLAN, Context(), job(1, walltime_s=60.0))
    assert isinstance(now.decision, Start)
    never = showstart(shot, PLAN, Context(), job(1, "1:ppn=9"))
    assert (now.start_s, never.start_s) == (NOW_S, None)
    assert "never" in never.evidence[0]


@pytest.mark.parametrize("settings", [PLAN, Settings(backfill=AgedReservations())])
def test_free_now_ends_where_a_reservation_begins(settings: Settings) -> None:
    kept = Reservation("course", frozenset({NodeName("n2")}), NOW_S + HOUR_S, NOW_S + 2 * HOUR_S)
    jobs = [running(9, "n1/0-1", "1:ppn=2", walltime_s=HOUR_S, since_s=0)]
    shot = snapshot([node("n1"), node("n2"), node("n3", state="down")], jobs)
    free = {each.node: each for each in showbf(shot, settings, Context(reservations=(kept,)))}
    assert free.keys() == {"n1", "n2"}
    assert (free[NodeName("n1")].slots, free[NodeName("n1")].until_s) == (2, math.inf)
    assert free[NodeName("n2")].slots == 4
    assert free[NodeName("n2")].until_s == pytest.approx(NOW_S + HOUR_S, abs=60)


def test_free_now_is_beside_what_is_promised() -> None:
    jobs = [FULL, job(1, "2:ppn=4", walltime_s=HOUR_S)]
    (free,) = showbf(snapshot(TWO, jobs), PLAN, Context())
    assert (free.node, free.slots) == ("n2", 4)
    assert free.until_s == pytest.approx(NOW_S + HOUR_S, abs=60)


# Expected starts: by learned run times, where the guaranteed ones rest on walltimes.


EXPECTED_PLAN = Settings(backfill=new_backfill("conservative"))


def learned(jobs: list[Job], runtime_s: float) -> Context:
    return Context(predictions=KnownPredictions({each.id: Prediction(runtime_s=runtime_s) for each in jobs}))


def batch() -> list[Job]:
    """One of an hour runs on the only node, three of an hour wait; all will end after 108 s."""
    return [FULL, *(job(number, "1:ppn=4", walltime_s=HOUR_S) for number in (2, 3, 4))]


@pytest.mark.parametrize("name", ["conservative", "easy", "aged", "none", "fcfs", "drain"])
def test_what_ends_early_lets_the_next_be_expected_early(name: str) -> None:
    jobs = batch()
    chosen = Settings(backfill=new_backfill(name))
    found = expected_starts(snapshot([node("n1")], jobs), chosen, learned(jobs, 108.0), ())
    for turn, number in enumerate((2, 3, 4), 1):
        assert found[JobId(f"{number}.head")] == pytest.approx(NOW_S + 108.0 * turn, abs=31.0 * turn)


def test_nothing_is_expected_before_a_job_has_ended_nor_of_what_is_held() -> None:
    held = job(9, execution_time_s=NOW_S + 1e6)
    for jobs in ([], batch()):
        assert expected_starts(snapshot([node("n1")], jobs), EXPECTED_PLAN, Context(), ()) == {}
    jobs = [*batch(), held]
    assert held.id not in expected_starts(
        snapshot([node("n1")], jobs), EXPECTED_PLAN, learned(jobs, 100.0), ()
    )


def test_jobs_beyond_the_first_ones_get_an_estimate_or_nothing() -> None:
    jobs = [batch()[0], *(job(number, "1:ppn=4", walltime_s=HOUR_S) for number in range(2, 40))]
    found = expected_starts(snapshot([node("n1")], jobs), EXPECTED_PLAN, learned(jobs, 108.0), (), 2)
    assert len(found) == 6
    assert sorted(found.values())[:2] == [found[JobId("2.head")], found[JobId("3.head")]]


def test_the_comment_has_the_words_of_both_starts() -> None:
    jobs = batch()
    seen, context = snapshot([node("n1")], jobs), learned(jobs, 108.0)
    before = decide(seen, EXPECTED_PLAN, context)
    told = with_expected(before, expected_starts(seen, EXPECTED_PLAN, context, ()), timezone.utc)
    first = told[0]
    assert isinstance(first, Reserve)
    assert first.comment == (
        "Not Running: Nodes are reserved for it; it starts "
        f"{guaranteed_words(first.start_s, timezone.utc)} (expected 1970-01-12 13:48 UTC)"
    )
    assert "not later than 1970-01-12 14:48 UTC" in first.comment
    assert isinstance(before[0], Reserve)
    assert before[0].comment.endswith("(no start expected yet)")
    # Never later than what is guaranteed.
    late = with_expected(before, {first.job: NOW_S + 1e6}, timezone.utc)[0]
    assert isinstance(late, Reserve)
    assert late.details["expected"] == expected_words(first.start_s, timezone.utc)


def test_who_starts_now_is_taken_to_run_and_the_others_wait_for_an_end() -> None:
    jobs = [job(1, "1:ppn=4", walltime_s=HOUR_S), job(2, "1:ppn=4", walltime_s=HOUR_S)]
    seen, context = snapshot([node("n1")], jobs), learned(jobs, 100.0)
    starts = [each for each in decide(seen, EXPECTED_PLAN, context) if isinstance(each, Start)]
    found = expected_starts(seen, EXPECTED_PLAN, context, starts)
    assert found.keys() == {JobId("2.head")}
    assert found[JobId("2.head")] == pytest.approx(NOW_S + 100.0, abs=31.0)


def test_jobs_without_a_guaranteed_start_keep_their_words() -> None:
    hold = Hold(JobId("1.head"), Reason.STRICT_FIFO)
    assert with_expected([hold], {hold.job: NOW_S}, timezone.utc) == (hold,)


def test_a_guaranteed_start_is_told_as_the_minute_by_which_it_is_over() -> None:
    assert guaranteed_words(60.5, timezone.utc) == "not later than 1970-01-01 00:02 UTC"


# A job that can never run is told what is lacking, and the most that any node has.


NODES = [
    node("node1", 8, mem=int(23.5 * GIB)),
    node("node2", 8, mem=16 * GIB, properties=("fast",)),
    node("node3", 2, gpus=2, mem=16 * GIB),
    node("node4", 8, gpus=1, mem=16 * GIB, properties=("fast",)),
]
HALF = [NODES[0], NODES[3]]


@pytest.mark.parametrize(
    ("nodes", "asked", "why"),
    [
        (HALF, {"spec": "2:ppn=4:gpus=1"}, "2 nodes with gpus=1 and 4 slots: only node4 has GPUs"),
        (NODES, {"spec": "1", "mem_bytes": 900 * GIB}, "mem=900gb: the largest node has 23.5 GiB"),
        (NODES, {"spec": "1:ppn=9"}, "9 slots: the largest node has 8 slots"),
        (NODES, {"spec": "1:gpus=3"}, "gpus=3: the largest node has 2 GPUs"),
        (NODES[:2], {"spec": "1:gpus=1"}, "gpus=1: no node has GPUs"),
        (NODES, {"spec": "2:gpus=2"}, "2 nodes with gpus=2: only node3 has 2 GPUs"),
        (NODES, {"spec": "1:ppn=4:gpus=2"}, "1 node with gpus=2 and 4 slots: no node has both"),
        (NODES, {"spec": "2:ppn=4:gpus=1"}, "2 nodes with gpus=1 and 4 slots: only node4 has both"),
        (NODES, {"spec": "5"}, "5 nodes: only 4 nodes are in the cluster"),
        (NODES, {"spec": "3:fast"}, "3 nodes of fast: only node2 and node4 are of fast"),
        (NODES, {"spec": "1:slow"}, "1 node of slow: there is no node of slow"),
        (NODES, {"procs": 27}, "27 processors: all nodes together take 26"),
    ],
)
def test_what_is_lacking_is_named(nodes: list[Any], asked: dict[str, Any], why: str) -> None:
    wanted = dict(asked)
    spec = wanted.pop("spec", None)
    decision = answers(nodes, [job(1, spec, **wanted) if spec else job(1, **wanted)])[1]
    assert isinstance(decision, Hold)
    assert decision.reason is Reason.NEVER_FITS
    assert decision.comment == f"Not Running: Job can never run here: {why}"
