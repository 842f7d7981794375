"""Of each node that fits a job that waits all the same: what would a start there now break?"""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.unit.torque.policies.builders import NOW_S, job, node, queue, running, snapshot
from torque_sched.core.decisions import Start
from torque_sched.core.model import Job, Node, NodeName, Server
from torque_sched.policies.context import Context, Reservation, Window
from torque_sched.policies.explain import explain
from torque_sched.policies.registry import new_backfill
from torque_sched.policies.settings import Settings

HOUR_S = 3600.0
AGED = Settings(backfill=new_backfill("aged", after_s=0.0))
NONE = Settings(backfill=new_backfill("none"))
PLAN = Settings(backfill=new_backfill("conservative"))


def words(
    nodes: list[Node],
    jobs: list[Job],
    number: int,
    chosen: Settings,
    context: Context | None = None,
    **more: object,
) -> dict[str, str]:
    seen = snapshot(nodes, jobs, **more)  # type: ignore[arg-type]
    asked = next(each for each in jobs if each.sequence == number)
    told = explain(seen, chosen, context or Context(), asked)
    return {verdict.node: verdict.words for verdict in told.nodes}


def wide_ones(n: int) -> list[Job]:
    """All of n1 runs; so many jobs want both nodes whole, one after the other."""
    first = running(900, "n1/0-3", "1:ppn=4", walltime_s=HOUR_S)
    return [first, *(job(at, "2:ppn=4", walltime_s=HOUR_S) for at in range(1, n + 1))]


def test_a_node_kept_for_many_jobs_says_for_how_many() -> None:
    late = job(99, "1:ppn=4", walltime_s=12 * HOUR_S)
    told = words([node("n1"), node("n2")], [*wide_ones(7), late], 99, PLAN)
    assert told == {"n1": "no: full", "n2": "fits, but kept for 7 jobs before it"}
    short = job(98, "1:ppn=4", walltime_s=2 * HOUR_S)
    # Only what begins before its end is in its way.
    told = words([node("n1"), node("n2")], [*wide_ones(7), short], 98, PLAN)
    assert told["n2"] == "fits, but kept for 2 jobs before it"


def test_a_node_kept_for_one_that_waited_long() -> None:
    late = job(99, "1:ppn=4", walltime_s=12 * HOUR_S, qtime_s=NOW_S, etime_s=NOW_S)
    told = words(
        [node("n1"), node("n2")],
        [*wide_ones(1), late],
        99,
        Settings(backfill=new_backfill("aged", after_s=30.0)),
    )
    assert told["n2"] == "fits, but kept for 1 job before it"
    own = words(
        [node("n1"), node("n2")],
        [*wide_ones(1), late],
        1,
        Settings(backfill=new_backfill("aged", after_s=30.0)),
    )
    assert own["n2"] == "fits, but kept for it until all its nodes are free"


def test_a_node_that_goes_to_others_in_this_very_cycle() -> None:
    jobs = [job(1, "1:ppn=2"), job(2, "1:ppn=2"), job(3, "1:ppn=4", walltime_s=HOUR_S)]
    for chosen in (NONE, PLAN):
        told = words([node("n1")], jobs, 3, chosen)
        assert told["n1"].startswith("fits, but taken by 2 jobs before it, which start now")


@pytest.mark.parametrize("chosen", [NONE, PLAN])
def test_too_few_nodes_at_once(chosen: Settings) -> None:
    told = words(
        [node("n1"), node("n2"), node("n3")], [*wide_ones(0), job(1, "3:ppn=4", walltime_s=60.0)], 1, chosen
    )
    assert told["n2"] == told["n3"] == "fits, but the job needs 3 such nodes and 2 are free for it"


@pytest.mark.parametrize("chosen", [NONE, AGED, PLAN])
def test_what_holds_a_job_whatever_the_nodes_are_like(chosen: Settings) -> None:
    one = [running(1, "n1/0", walltime_s=60.0), job(2)]
    limited = words([node("n1")], one, 2, chosen, server=Server(name="head", max_user_run=1))
    assert limited == {"n1": "fits, but User has reached server running job limit."}
    later = words([node("n1")], [job(3, execution_time_s=NOW_S + 60)], 3, chosen)
    assert later["n1"].startswith("fits, but Not to be started before")
    stopped = words([node("n1")], [job(4)], 4, chosen, queues=[queue(is_started=False)])
    assert stopped == {"n1": "fits, but Queue not started."}


@pytest.mark.parametrize("chosen", [NONE, PLAN])
def test_reservations_and_dedicated_time(chosen: Settings) -> None:
    kept = Reservation("course", frozenset({NodeName("n1")}), NOW_S + 60.0, NOW_S + HOUR_S)
    told = words([node("n1")], [job(1, walltime_s=HOUR_S)], 1, chosen, Context(reservations=(kept,)))
    assert told["n1"] != "yes"
    window = Context(dedicated=(Window(NOW_S + 60.0, NOW_S + HOUR_S),))
    told = words([node("n1")], [job(1, walltime_s=HOUR_S)], 1, chosen, window)
    assert told["n1"].startswith("fits, but ")


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
