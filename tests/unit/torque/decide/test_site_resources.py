"""Planned starts count what a site counts besides processors, GPUs and memory: on nodes, queues, a server."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fixtures.openpbs_outputs import NOW_S, job, outputs_of, vnode
from torque_sched.batch.openpbs.pbs import read_snapshot
from torque_sched.decide.context import Context
from torque_sched.decide.decide import Decider, decide
from torque_sched.decide.rules import NodeRules
from torque_sched.decide.settings import Settings, new_backfill
from torque_sched.model.decisions import Decision, Hold, Reserve, Start
from torque_sched.model.reasons import Reason
from torque_sched.model.snapshot import Snapshot

HOUR_S = 3600.0
LICENCES = b"create resource lic\nset resource lic type = long\nset resource lic flag = q\n"
RUNS: dict[str, Any] = {
    "job_state": "R", "substate": 42, "stime": "Sun Nov 22 14:45:00 2026",
    "exec_vnode": "(n1:ncpus=1)",
}  # fmt: skip
ENDS_S = NOW_S - 300.0 + HOUR_S


def _snapshot(jobs: list[Any], vnodes: list[Any], **more: Any) -> Snapshot:
    found, problems = read_snapshot(outputs_of(jobs, vnodes, **more), NOW_S)
    assert not problems
    return found


def _answers(
    jobs: list[Any], vnodes: list[Any], backfill: str = "conservative", **more: Any
) -> dict[str, Decision]:
    settings = Settings(nodes=NodeRules(cores_per_idle_gpu=0), backfill=new_backfill(backfill))
    found = _snapshot(jobs, vnodes, **more)
    # What is kept from cycle to cycle gives the same.
    kept = Decider()
    first, again = kept.decide(found, settings, Context()), kept.decide(found, settings, Context())
    assert first == again == decide(found, settings, Context())
    return {str(each.job): each for each in first}


def _starts(decision: Decision) -> float:
    """When it starts, from the end of the running job on."""
    assert isinstance(decision, Reserve), decision
    return decision.start_s - ENDS_S


@pytest.mark.parametrize("backfill", ["conservative", "easy", "selective"])
def test_a_vnodes_own_resource_is_planned_with(backfill: str) -> None:
    vnodes = [vnode("n1", 8, used=1, jobs="9.head/0", resources_available__scratch="10gb",
                    resources_assigned__scratch="6gb")]  # fmt: skip
    jobs = [
        job(9, "1:ncpus=1:scratch=6gb", **RUNS), job(1, "1:ncpus=1:scratch=8gb"),
        job(2, "1:ncpus=1:scratch=4gb"),
    ]  # fmt: skip
    found = _answers(jobs, vnodes, backfill)
    if backfill != "selective":
        # Processors are free: it waits for the end of what holds the scratch space, and not for longer.
        assert 0 <= _starts(found["1.head"]) <= 180.0
        # It would hold what is promised to the first one.
        assert not isinstance(found["2.head"], Start)
    else:
        assert not isinstance(found["1.head"], Start)
        assert isinstance(found["2.head"], Start)


def test_a_short_job_goes_ahead_where_it_delays_no_reservation_of_a_resource() -> None:
    vnodes = [vnode("n1", 8, used=1, jobs="9.head/0", resources_available__scratch="10gb",
                    resources_assigned__scratch="6gb")]  # fmt: skip
    jobs = [
        job(9, "1:ncpus=1:scratch=6gb", **RUNS), job(1, "1:ncpus=1:scratch=8gb"),
        job(2, "1:ncpus=1:scratch=4gb", Resource_List__walltime="00:30:00"),
        job(3, "1:ncpus=1:scratch=1gb"),
    ]  # fmt: skip
    found = _answers(jobs, vnodes)
    assert 0 <= _starts(found["1.head"]) <= 180.0
    assert isinstance(found["2.head"], Start)
    assert not isinstance(found["3.head"], Start)


@pytest.mark.parametrize("of", ["server", "queue"])
def test_licences_of_server_and_queues_are_planned_with(of: str) -> None:
    has = {of: {"resources_available.lic": "3", "resources_assigned.lic": "2"}}
    asked = {"Resource_List__lic": "2"}
    jobs = [
        job(9, **RUNS, **asked), job(1, **asked), job(2, **asked), job(3),
        job(4, Resource_List__lic="1", Resource_List__walltime="00:30:00"),
        job(5, Resource_List__lic="4"),
    ]  # fmt: skip
    found = _answers(jobs, [vnode("n1", 8, used=1, jobs="9.head/0")], resources=LICENCES, **has)
    assert 0 <= _starts(found["1.head"]) <= 180.0
    assert HOUR_S <= _starts(found["2.head"]) <= HOUR_S + 360.0
    assert isinstance(found["3.head"], Start)
    # It ends before the licences that are promised are needed.
    assert isinstance(found["5.head"], Hold)
    assert found["5.head"].reason is Reason.NEVER_FITS


def test_licences_that_nobody_known_holds_are_never_planned_with() -> None:
    has = {"server": {"resources_available.lic": "3", "resources_assigned.lic": "2"}}
    found = _answers([job(1, Resource_List__lic="2")], [vnode("n1", 8)], resources=LICENCES, **has)
    assert isinstance(found["1.head"], Hold)
    assert found["1.head"].reason is Reason.NOT_ENOUGH_RESOURCE
