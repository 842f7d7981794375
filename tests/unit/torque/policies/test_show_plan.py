"""What people are shown of the plan: when a job starts, and what could start now."""

from __future__ import annotations

import math

import pytest

from tests.unit.torque.policies.builders import NOW_S, job, node, running, snapshot
from torque_sched.core.decisions import Start
from torque_sched.core.model import NodeName
from torque_sched.policies.backfill import AgedReservations, ConservativeBackfill
from torque_sched.policies.backfilling.show import showbf, showstart
from torque_sched.policies.context import Context, Reservation
from torque_sched.policies.settings import Settings

PLAN = Settings(backfill=ConservativeBackfill(slack_s=0.0))
HOUR_S = 3600.0


def test_a_job_not_submitted_yet_is_planned_last() -> None:
    jobs = [
        running(9, "n1/0-3", "1:ppn=4", walltime_s=HOUR_S, since_s=0),
        job(1, "1:ppn=4", walltime_s=HOUR_S),
    ]
    shot = snapshot([node("n1")], jobs)
    told = showstart(shot, PLAN, Context(), job(2, "1:ppn=4", walltime_s=60.0))
    first = showstart(shot, PLAN, Context(), jobs[1])
    assert first.start_s is not None
    assert told.start_s is not None
    assert told.start_s == pytest.approx(first.start_s + HOUR_S, abs=60)
    assert told.is_promise
    assert [share.node for share in told.allocation] == ["n1"]
    assert any("9.head" in words for words in first.evidence)
    assert any("1 waiting jobs come before it" in words for words in told.evidence)


def test_what_starts_now_and_what_never_does() -> None:
    shot = snapshot([node("n1")], [])
    now = showstart(shot, PLAN, Context(), job(1, walltime_s=60.0))
    assert isinstance(now.decision, Start)
    assert now.start_s == NOW_S
    never = showstart(shot, PLAN, Context(), job(1, "1:ppn=9"))
    assert never.start_s is None
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
    jobs = [
        running(9, "n1/0-3", "1:ppn=4", walltime_s=HOUR_S, since_s=0),
        job(1, "2:ppn=4", walltime_s=HOUR_S),
    ]
    (free,) = showbf(snapshot([node("n1"), node("n2")], jobs), PLAN, Context())
    assert (free.node, free.slots) == ("n2", 4)
    assert free.until_s == pytest.approx(NOW_S + HOUR_S, abs=60)
