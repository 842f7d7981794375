"""A clock that steps, or that is ten minutes off, breaks no promise and keeps no job from its nodes."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.integration.torque.learn.cycles import by_commands, cycle_of
from torque_sched.batch.cluster_clock import ClusterClock
from torque_sched.daemon.config import Config, NamedSettings
from torque_sched.emulation import EmulatedTorque
from torque_sched.learn import History
from torque_sched.model.decisions import Reserve


def test_promises_hold_while_this_hosts_clock_steps(tmp_path: Path) -> None:
    torque = EmulatedTorque.create(tmp_path / "emulation", nodes="n1 np=4\nn2 np=4\n", clock="manual")
    history = History.open(None)
    config = Config(backfill=NamedSettings(name="conservative"))
    off_s = 0.0
    with torque:
        clock = ClusterClock(lambda: torque.clock.now_s + off_s, lambda: torque.clock.now_s)
        cycle = cycle_of(by_commands(torque, clock), history, clock, config)
        for nodes in ("2:ppn=4", "1:ppn=4", "2:ppn=2"):
            torque.submit("-l", f"nodes={nodes},walltime=1:00:00", runtime_s=3600)
        first = asyncio.run(cycle.run())
        told = {each.job: each.start_s for each in first.decisions if isinstance(each, Reserve)}
        assert len(told) == 2
        for off_s in (600.0, 0.0, -600.0, 86_400.0, 600.0):  # noqa: B007 -- the clock reads it
            torque.clock.advance(50.0)
            report = asyncio.run(cycle.run())
            assert {each.job: each.start_s for each in report.decisions} == told  # type: ignore[union-attr]
            assert report.promises == []
    history.close()
