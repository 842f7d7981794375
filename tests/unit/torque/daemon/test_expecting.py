"""Expected starts in service: their pace, and that comment and showstart say the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.torque.learn.build import NOW_S, job, node, snapshot
from torque_sched.daemon import decision_engine as module
from torque_sched.daemon.c_policy import CFiles, SettingsInForce
from torque_sched.daemon.config import Config, NamedSettings
from torque_sched.daemon.decision_engine import DecisionEngine, Expecting
from torque_sched.daemon.pending_orders import PendingOrders
from torque_sched.decide.context import Context
from torque_sched.decide.settings import Settings
from torque_sched.learn import History
from torque_sched.model.cluster import JobId, Queue, QueueName
from torque_sched.model.decisions import Reserve
from torque_sched.model.snapshot import Snapshot
from torque_sched.model.states import StartProgress
from torque_sched.report.outlook import outlook_of
from torque_sched.report.picture import Picture, State
from torque_sched.report.viewer import Viewer


def full(*more: int) -> Snapshot:
    """All eight slots of the node are taken for an hour; jobs like those that ended after 108 s wait."""
    runs = job(50, "R", ppn=8, start_s=NOW_S, progress=StartProgress.BEGUN)
    seen = snapshot(runs, *(job(number, ppn=8) for number in (51, 52, *more)), nodes=(node(ncpus=8),))
    return replace(seen, queues=(Queue(name=QueueName("batch")),))


def shown(seen: Snapshot, settings: Settings, context: Context, memory: History, config: Config) -> Picture:
    known = replace(context, predictions=memory.predictions())
    return Picture(seen, settings, known, memory, State({}), config, False, Path("none"), Viewer("ada"), None)


def taught() -> History:
    memory = History.open(None)
    for number in range(1, 6):
        memory.observe(snapshot(job(number, "C", ppn=8, start_s=NOW_S - 500.0, runtime_s=108.0)))
    return memory


def test_the_comment_says_what_showstart_says() -> None:
    memory, config = taught(), Config(backfill=NamedSettings(name="conservative"))
    in_force = SettingsInForce(config, CFiles())
    engine, settings = DecisionEngine(in_force.at, memory), in_force.at(NOW_S)
    seen = full()
    context = engine.context(seen, PendingOrders())
    told = engine.expecting(engine.decide(seen, context), seen, context)
    assert memory.expectations.facts()[0]
    more = full(53)
    later = engine.context(more, PendingOrders())
    hurried = engine.expecting(engine.decide(more, later), more, later, may_renew=False)
    assert ["no start expected yet" in each.comment for each in hurried] == [False, False, True]
    for decision in told:
        assert isinstance(decision, Reserve)
        picture = shown(seen, settings, context, memory, config)
        lines = outlook_of(picture, seen.job_by_id[decision.job]).lines()
        guaranteed = next(line for line in lines if line.startswith("guaranteed: not later than"))
        expected = next(line for line in lines if line.startswith("expected: "))
        assert guaranteed.removeprefix("guaranteed: ").partition(",")[0] in decision.comment
        assert f"(expected {expected.removeprefix('expected: ').partition(',')[0]})" in decision.comment
        assert "no past starts to compare" in expected
        assert "in 00:0" in expected
    first = told[0]
    assert isinstance(first, Reserve)
    assert first.start_s >= NOW_S + 3600.0


def test_without_history_or_a_guarantee_showstart_says_why() -> None:
    memory, config = History.open(None), Config()
    seen = full()
    settings = SettingsInForce(config, CFiles()).at(NOW_S)
    picture = shown(seen, settings, Context(), memory, config)
    lines = outlook_of(picture, seen.queued[0]).lines()
    assert "guaranteed: none: backfill aged guarantees no start" in lines
    assert "expected: not known: no job has ended yet" in lines


def test_they_are_renewed_as_their_cost_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    now, calls = [100.0], []

    def costly(seen: Snapshot, settings: Settings, context: Context, starts: object) -> dict[object, float]:
        calls.append(now[0])
        now[0] += 0.2
        return {each.id: NOW_S for each in seen.queued}

    monkeypatch.setattr(module, "expected_starts", costly)
    expecting = Expecting(clock=lambda: now[0])

    def ask(seen: Snapshot, at_s: float) -> int:
        now[0] = at_s
        expecting.starts(seen, Settings(), Context(), ())
        return len(calls)

    # A new job is waited with until the last one's cost is paid: 0.2 s are 5 % of 4 s.
    asked = ((full(), 100.0), *((full(53), at_s) for at_s in (101.0, 105.0, 120.0, 140.0)))
    assert [ask(seen, at_s) for seen, at_s in asked] == [1, 1, 2, 2, 3]
    # Another job runs in the place of one that has ended: whoever starts next is not to wait, so 1 % of 20 s.
    runs, *others = full(53).jobs
    ended = replace(full(53), jobs=(replace(runs, id=JobId("60.head")), *others))
    assert [ask(ended, at_s) for at_s in (151.0, 160.0, 161.0)] == [3, 3, 4]
