"""A clock that steps, or that is ten minutes off, breaks no promise and keeps no job from its nodes."""

from __future__ import annotations

import asyncio
from pathlib import Path

from torque_sched.adapters.cluster_clock import ClusterClock
from torque_sched.adapters.commands import Commands
from torque_sched.adapters.pbs import Pbs
from torque_sched.core.decisions import Reserve
from torque_sched.daemon.brain import PolicyBrain
from torque_sched.daemon.c_policy import CFiles, SettingsInForce
from torque_sched.daemon.config import Choice, Config
from torque_sched.daemon.cycle import Cycle, CycleLimits
from torque_sched.daemon.standing import Standing
from torque_sched.emulation import EmulatedTorque
from torque_sched.learning import History


def test_promises_hold_while_this_hosts_clock_steps(tmp_path: Path) -> None:
    torque = EmulatedTorque.create(tmp_path / "emulation", nodes="n1 np=4\nn2 np=4\n", clock="manual")
    history = History.open(None)
    in_force = SettingsInForce(Config(backfill=Choice(name="conservative")), CFiles())
    off_s = 0.0
    with torque:
        clock = ClusterClock(lambda: torque.clock.now_s + off_s, lambda: torque.clock.now_s)
        cycle = Cycle(
            Pbs(Commands(torque.env), clock), PolicyBrain(in_force, history), Standing(), None,
            CycleLimits(), clock,
        )  # fmt: skip
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
