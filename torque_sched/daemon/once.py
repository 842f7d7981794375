"""One cycle without a daemon around it."""

from __future__ import annotations

from collections.abc import Callable

from torque_sched.adapters.cluster_clock import ClusterClock
from torque_sched.adapters.commands import Commands
from torque_sched.adapters.cycle_lock import CycleLock
from torque_sched.adapters.home import LockFile, check_folder
from torque_sched.adapters.pbs import Pbs
from torque_sched.daemon.brain import PolicyBrain
from torque_sched.daemon.c_policy import CFiles, SettingsInForce, read_c_files
from torque_sched.daemon.comments import CommentPlan
from torque_sched.daemon.config import Config, read_config
from torque_sched.daemon.cycle import Cycle, CycleReport
from torque_sched.daemon.place import Options, command_environment
from torque_sched.daemon.standing import Standing
from torque_sched.daemon.startup import open_history


async def run_once(options: Options, *, dry: bool, note: Callable[[str], None]) -> CycleReport:
    """Look, decide, and unless ``dry`` act; ``note`` is told what the look waits for.

    A dry run writes no file at all; it decides by what the daemon has learned, promised and left alone.

    Raises:
        ConfigError: settings. StartupError: a scheduler runs already. SnapshotError: no look at the cluster.
    """
    config = read_config(options.config)
    c_files = read_c_files(options.sched_priv, config)
    lock = LockFile(options.lock)
    if not dry:
        check_folder(options.sched_priv)
        lock.take()
    try:
        return await _cycle(options, config, c_files, dry=dry, note=note)
    finally:
        lock.release()


async def _cycle(
    options: Options, config: Config, c_files: CFiles, *, dry: bool, note: Callable[[str], None]
) -> CycleReport:
    history = open_history(options, config, c_files, in_memory=dry)
    try:
        clock = ClusterClock()
        pbs = Pbs(
            Commands(command_environment(config.commands)), clock,
            query_timeout_s=config.query_timeout_s, order_timeout_s=config.order_timeout_s,
            note=note,
        )  # fmt: skip
        brain = PolicyBrain(
            SettingsInForce(config, c_files), history,
            reservations=tuple(each.value() for each in config.reservations), dedicated=c_files.dedicated,
        )  # fmt: skip
        standing = Standing(config.back_off_rules(), config.black_hole_rules())
        standing.restore(history.pauses, clock())
        comments = CommentPlan(config.renewal()) if config.comments else None
        lock = CycleLock(options.cycle_lock, config.order_timeout_s)
        cycle = Cycle(pbs, brain, standing, comments, config.cycle_limits(), clock, lock=lock)
        report = await cycle.run(dry=dry)
        n_later, _ = await cycle.write_comments()
        report.n_commented += n_later
        report.n_comments_left = cycle.n_comments_owed
        return report
    finally:
        history.close()
