"""What a user is told who asks why a job is behind."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.torque.learning.build import NOW_S, job, snapshot
from torque_sched.core.model import Job
from torque_sched.daemon.config import Config
from torque_sched.learning import History, HistorySettings
from torque_sched.policies.context import Context
from torque_sched.policies.fair_share import Share
from torque_sched.policies.order import FairShareOrder, FcfsOrder
from torque_sched.policies.settings import Settings
from torque_sched.report.picture import Picture, State
from torque_sched.report.shares import place_in_order, share_lines
from torque_sched.report.viewer import Viewer


def picture_of(order: object, *jobs: Job) -> Picture:
    memory = History.open(None, HistorySettings(half_life_s=1e9))
    seen = snapshot(*jobs)
    memory.observe(seen)
    context = Context(usage=memory.usage(NOW_S))
    settings = Settings(order=order)  # type: ignore[arg-type]
    return Picture(
        seen, settings, context, memory, State({}), Config(), False, Path("none"), Viewer("ada"), None
    )


def ran(number: int, user: str, hours: float, gpus: int = 0) -> Job:
    seconds = hours * 3600.0
    made = job(number, "C", user=user, gpus=gpus, start_s=NOW_S - seconds, runtime_s=seconds)
    return replace(made, group="phys")


def test_a_user_behind_is_told_usage_share_and_place() -> None:
    mine, another, eves = job(3), job(4), job(5, user="eve")
    order = FairShareOrder((Share("ada", 1), Share("bob", 1), Share("eve", 2)), unknown_shares=0)
    seen = picture_of(
        order, ran(1, "ada", 10, gpus=1), ran(2, "bob", 10), replace(mine, group="phys"), another, eves
    )
    told = list(share_lines(seen, seen.snapshot.job_by_id[mine.id]))
    assert "usage of user ada: 20.0 processor hours and 10.0 GPU hours, each counted as 10: 120.0" in told[0]
    assert "86 % of all users'" in told[0]
    assert "half is forgotten in" in told[0]
    assert told[1].startswith("usage of group phys: 40.0 processor hours")
    assert "share of user ada: 25 % of the cluster; of 2 users who wait 1 had less" in told[2]
    assert told[3] == "order: 2 of 3 waiting jobs, by fair_share"


def test_where_usage_makes_no_difference_that_is_said() -> None:
    seen = picture_of(FcfsOrder(), job(1), job(2))
    (usage, order) = share_lines(seen, seen.snapshot.queued[1])
    assert "0 % of all users'" in usage
    assert order == "order: 2 of 2 waiting jobs, by fcfs, to which usage makes no difference"


@pytest.mark.parametrize("order", [FairShareOrder(), FcfsOrder()])
def test_a_job_that_is_not_submitted_comes_last_of_its_user(order: object) -> None:
    seen = picture_of(order, job(1), job(2))
    assert place_in_order(seen, job(9)) == (3, 3)


def test_a_job_that_runs_is_told_its_usage_only() -> None:
    seen = picture_of(FairShareOrder(), replace(job(1, "R", start_s=NOW_S - 3600.0), group="phys"))
    assert [line.partition(":")[0] for line in share_lines(seen, seen.snapshot.running[0])] == [
        "usage of user ada", "usage of group phys",
    ]  # fmt: skip
