"""The cluster as the daemon would see it now: one look, its settings, what it has learned and tried."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torque_sched.adapters.home import holder_of
from torque_sched.adapters.state_file import lives, read_plain
from torque_sched.batch.connect import look_once
from torque_sched.daemon.answers import LastLook
from torque_sched.daemon.c_policy import CFiles, SettingsInForce, half_life_s, read_c_files
from torque_sched.daemon.config import Config, read_config
from torque_sched.daemon.paths import Options
from torque_sched.decide.context import BackOff, Context, Pause
from torque_sched.decide.settings import Settings
from torque_sched.errors import ConfigError, StartupError
from torque_sched.learn import History, HistorySettings
from torque_sched.learn.usage import ACCOUNT, GROUP, USER
from torque_sched.model.cluster import Job, JobId, Node, NodeName
from torque_sched.model.snapshot import Snapshot
from torque_sched.report.viewer import Viewer, this_viewer

_REBUILD_JOBS = 3000
"""Learned from for one look: its last jobs tell nearly all, and nobody waits for the rest."""
_FRESH_S = 600.0
_ARRAY = re.compile(r"([0-9]{1,18})(?:\[\])?(?:\..*)?")
_LATE = 2.0
"""A cycle is late after so many times the longest that one is to take."""


@dataclass(frozen=True, slots=True)
class State:
    """The daemon's state file; ``values`` are empty when there is none."""

    values: Mapping[str, Any]
    holder: int | None = None
    """The process that has the scheduler's lock, 0 when none has; None: not known."""

    @property
    def now_s(self) -> float:
        """When it was written."""
        return float(self.values.get("now_s") or 0.0)

    @property
    def is_alive(self) -> bool:
        """Whether the daemon that wrote it still runs."""
        pid = self.values.get("pid")
        return isinstance(pid, int) and (lives(pid) if self.holder is None else pid == self.holder)

    @property
    def jobs(self) -> Mapping[str, Mapping[str, Any]]:
        """What the last cycle decided, by job."""
        jobs = self.values.get("jobs")
        return jobs if isinstance(jobs, dict) else {}

    @property
    def trouble(self) -> tuple[str, ...]:
        """What the daemon complains of."""
        return tuple(str(each) for each in self.values.get("trouble") or ())

    def back_off(self, now_s: float) -> BackOff:
        """What the daemon leaves alone for a while; nothing of a daemon that is gone for long."""
        kept = self.values.get("back_off")
        if not isinstance(kept, dict) or now_s - self.now_s > _FRESH_S:
            return BackOff()
        pairs = {JobId(job): _pauses(nodes, NodeName) for job, nodes in (kept.get("pairs") or {}).items()}
        return BackOff(_pauses(kept.get("jobs"), JobId), _pauses(kept.get("nodes"), NodeName), pairs)


def _pauses(kept: Any, name: Callable[[str], Any]) -> dict[Any, Pause]:
    return {
        name(key): Pause(float(each["until_s"]), str(each.get("why", "")))
        for key, each in (kept or {}).items()
    }


@dataclass(frozen=True, slots=True)
class Picture:
    """Everything a decision would be made of now."""

    snapshot: Snapshot
    settings: Settings
    context: Context
    history: History
    state: State
    config: Config
    has_history: bool
    """False: nothing was remembered, predictions are those of a scheduler just begun."""
    history_path: Path
    """The daemon's history, which is there if `has_history`."""
    viewer: Viewer = field(default_factory=this_viewer)
    """Who is shown it."""
    journal: Path | None = None
    """The daemon's journal; None: not for this viewer."""
    is_daemons: bool = False
    """It is the daemon's own: its file is its alone, so outcomes are asked of `history`."""

    @property
    def troubles(self) -> tuple[str, ...]:
        """What the daemon complains of, and that it is silent where it should not be."""
        is_shadow = self.state.values.get("mode") == "shadow"
        timer_s = self.config.shadow_timer_s if is_shadow else self.config.timer_s
        silent_s = self.snapshot.now_s - self.state.now_s
        if not self.state.is_alive or silent_s < _LATE * (timer_s + self.config.query_timeout_s):
            return self.state.trouble
        late = f"no word of the daemon for {silent_s:.0f} s: is the disk full, or does it hang? see its log"
        return (late, *self.state.trouble)


def take_picture(options: Options, note: Callable[[str], None]) -> Picture:
    """One look at the cluster, with all the daemon of this home knows; starts and writes nothing.

    Args:
        options: where the daemon's files are.
        note: called with what the look waits for when that takes long, and what cannot be shown.

    Raises:
        ConfigError: settings. SnapshotError: no look at the cluster. StartupError: a file cannot be read.
    """
    config = read_config(options.config)
    c_files = read_c_files(options.sched_priv, config)
    snapshot = look_once(config.server(options.home), note).snapshot
    settings = SettingsInForce(config, c_files).at(snapshot.now_s)
    history, has_history = _history(options, config, c_files, settings, note)
    history.observe(snapshot)
    state = read_state(options)
    usage = history.used.by_kind(snapshot.now_s)
    context = Context(
        back_off=state.back_off(snapshot.now_s),
        measured=history.measured(snapshot),
        placed=history.placed(snapshot),
        predictions=history.predictions(),
        usage=usage[USER],
        group_usage=usage[GROUP],
        account_usage=usage[ACCOUNT],
        gpu_weight=history.used.gpu_weight,
        reservations=(
            *config.reservations_at(snapshot), *history.reservations(snapshot.now_s), *snapshot.reservations,
        ),
        dedicated=c_files.dedicated,
        promises=history.promises.carried(snapshot),
    )  # fmt: skip
    path = history_file(options, config)
    return Picture(
        snapshot, settings, context, history, state, config, has_history, path, this_viewer(), options.journal
    )


def picture_of(last: LastLook, viewer: Viewer) -> Picture:
    """The daemon's own picture, for answering somebody; to be used in a child of it alone."""
    history, snapshot = last.history, last.snapshot
    context = replace(
        last.context,
        predictions=history.predictions(),
        promises=history.promises.carried(snapshot),
        pending=(*last.context.pending, *last.started),
    )
    journal = last.journal if viewer.sees_all else None
    return Picture(
        snapshot, last.settings, context, history, _own_state(last), last.config, True, Path(), viewer,
        journal, is_daemons=True,
    )  # fmt: skip


def _own_state(last: LastLook) -> State:
    """As the daemon's child sees its parent."""
    try:
        values = json.loads(read_plain(last.state))
    except (OSError, ValueError):
        values = {}
    return State(values, os.getppid())


def history_file(options: Options, config: Config) -> Path:
    """Where the daemon of this home keeps its history."""
    return Path(config.learning.history) if config.learning.history else options.history


def _history(
    options: Options, config: Config, c_files: CFiles, settings: Settings, note: Callable[[str], None]
) -> tuple[History, bool]:
    learning = config.learning
    chosen = HistorySettings(
        predictors=learning.predictors, rebuild_jobs=_REBUILD_JOBS,
        min_similar=learning.min_similar, sample_lag_s=settings.nodes.sample_lag_s,
        half_life_s=half_life_s(config, c_files), gpu_weight=config.fair_share.gpu_weight,
    )  # fmt: skip
    rates = dict(settings.nodes.rates)
    path = history_file(options, config)
    try:
        return History.copy_of(path, chosen, rates), True
    except StartupError as error:
        if path.is_file():
            note(f"nothing of what was learned is shown: {error}")
    return History.open(None, chosen, rates), False


def read_state(options: Options) -> State:
    """The daemon's last state; an empty one when it never ran here.

    Raises:
        StartupError: it is there and cannot be read.
    """
    path, holder = options.state, holder_of(options.lock)
    try:
        values = json.loads(read_plain(path))
    except FileNotFoundError:
        return State({}, holder)
    except OSError as error:
        raise StartupError(
            f"{path}: {error.strerror}", cure="run this as root or the scheduler's user"
        ) from error
    except ValueError as error:
        raise StartupError(f"{path}: {error}", cure="remove it: the daemon writes it anew") from error
    return State(values if isinstance(values, dict) else {}, holder)


def find(snapshot: Snapshot, name: str, viewer: Viewer | None = None) -> Job | Node:
    """The node or the job a user means; a job's number alone will do, and a node's name without its domain.

    Args:
        snapshot: where it is looked for.
        name: of a job, an array's member, or a node.
        viewer: who asks; None: he may see all.

    Raises:
        ConfigError: there is none, the number stands for several, or it is somebody else's.
    """
    found = _found(snapshot, name)
    if isinstance(found, Job) and viewer is not None and not viewer.may_see(found):
        raise ConfigError(
            f"that is not a job of {viewer.name}",
            cure="others' jobs are shown to managers and operators, or where query_other_jobs is True",
        )
    return found


def _found(snapshot: Snapshot, name: str) -> Job | Node:
    node = snapshot.node_by_name.get(NodeName(name))
    if node is not None:
        return node
    job = snapshot.job_by_id.get(JobId(name))
    if job is not None:
        return job
    wanted = [each for each in snapshot.jobs if each.id.partition(".")[0] == name]
    if len(wanted) == 1:
        return wanted[0]
    nodes = [each for each in snapshot.nodes if each.name.partition(".")[0] == name]
    if not wanted and len(nodes) == 1:
        return nodes[0]
    if wanted:
        raise ConfigError(f"{name} is {len(wanted)} jobs", cure=f"write {wanted[0].id} or another")
    array = _ARRAY.fullmatch(name)
    members = [each for each in snapshot.jobs if array and each.array == int(array[1])]
    if members:
        raise ConfigError(
            f"{name} is an array of {len(members)} jobs", cure=f"write {members[0].id} or another"
        )
    raise ConfigError(
        f"no job and no node {name!r}", cure="see `qstat` and `pbsnodes -a`; jobs that ended go from there"
    )
