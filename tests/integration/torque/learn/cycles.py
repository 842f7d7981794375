"""Cycles of our scheduler over an emulated Torque, in this process and on the emulation's own clock."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from torque_sched.adapters.commands import Commands
from torque_sched.adapters.journal import Journal
from torque_sched.batch.system import BatchSystem
from torque_sched.batch.torque.pbs import Pbs
from torque_sched.daemon.c_policy import CFiles, SettingsInForce
from torque_sched.daemon.config import Config
from torque_sched.daemon.cycle import CycleLimits, SchedulingCycle
from torque_sched.daemon.decision_engine import DecisionEngine
from torque_sched.daemon.pending_orders import PendingOrders
from torque_sched.emulation import EmulatedTorque
from torque_sched.learn import History


def clock_of(torque: EmulatedTorque) -> Callable[[], float]:
    return lambda: torque.clock.now_s


def by_commands(torque: EmulatedTorque, clock: Callable[[], float]) -> Pbs:
    return Pbs(Commands(torque.env), clock)


def cycle_of(
    server: BatchSystem,
    history: History,
    clock: Callable[[], float],
    config: Config | None = None,
    limits: CycleLimits | None = None,
) -> SchedulingCycle:
    """A cycle with plain settings, unless others are given."""
    engine = DecisionEngine(SettingsInForce(config or Config(), CFiles()).at, history)
    return SchedulingCycle(server, engine, PendingOrders(), None, limits or CycleLimits(), clock)


def journal_in(folder: Path) -> Journal:
    """One that keeps everything."""
    return Journal(folder, file_bytes=1 << 30, n_files=2)
