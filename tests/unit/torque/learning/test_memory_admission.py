"""With memory admission a job waits while jobs like it used more than is free, for a while, and is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.torque.learning.build import NOW_S, job, node
from torque_sched.core.decisions import Decision, Hold, Start
from torque_sched.core.model import Job, Queue, QueueName, Server
from torque_sched.core.reasons import Reason
from torque_sched.core.snapshot import Snapshot
from torque_sched.learning import History
from torque_sched.policies.context import Context
from torque_sched.policies.decide import decide
from torque_sched.policies.rules import MemoryRules
from torque_sched.policies.settings import Settings

LIMIT_S = 3600.0


def decided(waiting: Job, *, is_on: bool, n_similar: int = 5, now_s: float = NOW_S + 60) -> Decision:
    """A job whose like used 62 GiB each, on a node of 64 GiB of which 60 are free."""
    history = History.open(None)
    machine = node(rectime_s=now_s)
    queues = (Queue(name=QueueName("batch")),)
    server = Server(name="head")
    ended = [job(100 + n, "C", mem_bytes=62 << 30, start_s=NOW_S - 5000) for n in range(n_similar)]
    history.observe(Snapshot(now_s - 30, server, queues, (machine,), tuple(ended)))
    look = Snapshot(now_s, server, queues, (machine,), (waiting,))
    history.observe(look)
    context = Context(predictions=history.predictions(), measured=history.measured(look))
    settings = Settings(memory=MemoryRules(admission=is_on, admission_limit_s=LIMIT_S))
    (decision,) = decide(look, settings, context)
    return decision


def test_off_it_only_ranks() -> None:
    assert isinstance(decided(job(1), is_on=False), Start)


def test_on_the_job_waits_and_its_owner_reads_why() -> None:
    decision = decided(job(1), is_on=True)
    assert isinstance(decision, Hold)
    assert decision.reason is Reason.LEARNED_MEMORY
    assert "Jobs like this one used more memory than is free now" in decision.comment


def test_on_the_wait_is_bounded() -> None:
    assert isinstance(decided(job(1), is_on=True, now_s=NOW_S + 1 + LIMIT_S + 1), Start)


@pytest.mark.parametrize(("n_similar", "kind"), [(2, Start), (3, Hold)])
def test_few_jobs_are_no_reason_to_wait(n_similar: int, kind: type[object]) -> None:
    assert isinstance(decided(job(1), is_on=True, n_similar=n_similar), kind)


def test_jobs_of_somebody_else_are_no_reason_to_wait(tmp_path: Path) -> None:
    assert isinstance(decided(job(1, user="eve", name="tiny"), is_on=True), Start)
