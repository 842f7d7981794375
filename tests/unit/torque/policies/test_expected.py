"""Expected starts: by learned run times, where the guaranteed ones rest on walltimes."""

from __future__ import annotations

from datetime import timezone

import pytest

from tests.unit.torque.policies.builders import NOW_S, job, node, running, snapshot
from torque_sched.core.decisions import Hold, Reserve, Start
from torque_sched.core.model import Job, JobId
from torque_sched.core.reasons import Reason
from torque_sched.policies.context import Context, KnownPredictions, Prediction
from torque_sched.policies.decide import decide
from torque_sched.policies.expected import expected_starts
from torque_sched.policies.registry import new_backfill
from torque_sched.policies.settings import Settings
from torque_sched.policies.start_words import expected_words, guaranteed_words, with_expected

HOUR_S = 3600.0
PLAN = Settings(backfill=new_backfill("conservative"))


def learned(jobs: list[Job], runtime_s: float) -> Context:
    return Context(predictions=KnownPredictions({each.id: Prediction(runtime_s=runtime_s) for each in jobs}))


def batch() -> list[Job]:
    """One of an hour runs on the only node, three of an hour wait; all will end after 108 s."""
    first = running(1, "n1/0-3", "1:ppn=4", walltime_s=HOUR_S, since_s=0.0)
    return [first, *(job(number, "1:ppn=4", walltime_s=HOUR_S) for number in (2, 3, 4))]


@pytest.mark.parametrize("name", ["conservative", "easy", "aged", "none", "fcfs", "drain"])
def test_what_ends_early_lets_the_next_be_expected_early(name: str) -> None:
    jobs = batch()
    chosen = Settings(backfill=new_backfill(name))
    found = expected_starts(snapshot([node("n1")], jobs), chosen, learned(jobs, 108.0), ())
    for turn, number in enumerate((2, 3, 4), 1):
        assert found[JobId(f"{number}.head")] == pytest.approx(NOW_S + 108.0 * turn, abs=31.0 * turn)


def test_nothing_is_expected_before_a_job_has_ended_nor_of_what_is_held() -> None:
    jobs = batch()
    assert expected_starts(snapshot([node("n1")], jobs), PLAN, Context(), ()) == {}
    assert expected_starts(snapshot([node("n1")], []), PLAN, Context(), ()) == {}
    held = job(9, execution_time_s=NOW_S + 1e6)
    found = expected_starts(snapshot([node("n1")], [*jobs, held]), PLAN, learned([*jobs, held], 100.0), ())
    assert held.id not in found


def test_jobs_beyond_the_first_ones_get_an_estimate_or_nothing() -> None:
    jobs = [batch()[0], *(job(number, "1:ppn=4", walltime_s=HOUR_S) for number in range(2, 40))]
    found = expected_starts(snapshot([node("n1")], jobs), PLAN, learned(jobs, 108.0), (), 2)
    assert len(found) == 6
    assert sorted(found.values())[:2] == [found[JobId("2.head")], found[JobId("3.head")]]


def test_the_comment_has_the_words_of_both_starts() -> None:
    jobs = batch()
    seen, context = snapshot([node("n1")], jobs), learned(jobs, 108.0)
    before = decide(seen, PLAN, context)
    told = with_expected(before, expected_starts(seen, PLAN, context, ()), timezone.utc)
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
    starts = [each for each in decide(seen, PLAN, context) if isinstance(each, Start)]
    found = expected_starts(seen, PLAN, context, starts)
    assert found.keys() == {JobId("2.head")}
    assert found[JobId("2.head")] == pytest.approx(NOW_S + 100.0, abs=31.0)


def test_a_free_node_kept_by_walltimes_is_not_expected_now() -> None:
    """By walltimes the long one would delay the wide one; by learned run times it would not."""
    runs = running(1, "n1/0-3", "1:ppn=4", walltime_s=HOUR_S, since_s=0.0)
    wide, long = job(2, "2:ppn=4", walltime_s=HOUR_S), job(3, "1:ppn=4", walltime_s=9 * HOUR_S)
    jobs = [runs, wide, long]
    seen = snapshot([node("n1"), node("n2")], jobs)
    by_job = {runs.id: Prediction(runtime_s=600.0), wide.id: Prediction(runtime_s=600.0)}
    context = Context(predictions=KnownPredictions({**by_job, long.id: Prediction(runtime_s=30.0)}))
    decisions = decide(seen, PLAN, context)
    assert not any(isinstance(each, Start) for each in decisions)
    found = expected_starts(seen, PLAN, context, ())
    assert found[long.id] >= NOW_S + 600.0


def test_jobs_without_a_guaranteed_start_keep_their_words() -> None:
    hold = Hold(JobId("1.head"), Reason.STRICT_FIFO)
    assert with_expected([hold], {hold.job: NOW_S}, timezone.utc) == (hold,)


def test_a_guaranteed_start_is_told_as_the_minute_by_which_it_is_over() -> None:
    assert guaranteed_words(60.5, timezone.utc) == "not later than 1970-01-01 00:02 UTC"
