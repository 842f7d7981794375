"""What was run so far, kept in the report's file after every run, and the rows at the end."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Mapping
from dataclasses import asdict, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from benchmarks.hdas_live import setting
from benchmarks.hdas_live.compare import mix_rows, verdict_rows
from benchmarks.hdas_live.late import LATE_SLOWNESS, LateKey, LateRun, late_rows
from benchmarks.hdas_live.runs import LiveRun, RunKey, RunTable, columns_of
from benchmarks.hdas_live.setting import Overheads, ScaledApp, mix_apps
from benchmarks.hdas_live.simulated import SimulatedRun, simulated_run
from benchmarks.result import Report, Row, current_commit, observed
from yarn_accel.errors import ConfigError

#: Beside the run itself: the service ends, another one starts, four workers report.
_BETWEEN_RUNS_S = 8.0


class Recording:
    """All runs of a report.

    Args:
        share_of_tasks: of the paper's numbers.
        is_resumed: take over what the report's file has.

    Raises:
        ConfigError: that was run with other parameters.

    Attributes:
        overheads: what a task and a link give alone; None: not measured yet.
    """

    def __init__(self, report: Report, share_of_tasks: float, *, is_resumed: bool) -> None:
        setting_here = _setting(share_of_tasks)
        known = _known(report.path, setting_here) if is_resumed else {}
        self._report = report
        self._share = share_of_tasks
        self._runs = RunTable(LiveRun.from_mapping(each) for each in known.get("runs", ()))
        self._late = [LateRun.from_mapping(each) for each in known.get("late_runs", ())]
        self.overheads = Overheads(**known["overheads"]) if "overheads" in known else None
        report.setting |= setting_here

    def has(self, key: RunKey | LateKey) -> bool:
        """Whether this run is there already."""
        return key in self._runs if isinstance(key, RunKey) else any(run.key == key for run in self._late)

    def apps(self, mix: str) -> list[ScaledApp]:
        """The applications of a mix."""
        return mix_apps(mix, self._share)

    def expected_s(self, key: RunKey) -> float:
        """How long a run will take, restart of the service included."""
        assert self.overheads is not None
        apps = self.apps(key.mix)
        starts_s = {app.name: number * setting.APP_INTERVAL_S for number, app in enumerate(apps)}
        return _BETWEEN_RUNS_S + simulated_run(apps, key.policy, self.overheads, starts_s).makespan_s

    def add(self, run: LiveRun) -> None:
        """Take a run, and keep all."""
        at = datetime.now(timezone.utc).isoformat(timespec="seconds")
        self._runs.add(replace(run, commit=current_commit(), at=at))
        self.note()

    def add_late(self, run: LateRun) -> None:
        """The same for one of the streaming jobs."""
        self._late.append(run)
        self.note()

    def note(self) -> None:
        """Keep what there is: a run that is killed goes on from here."""
        if self.overheads is not None:
            self._report.series["overheads"] = asdict(self.overheads)
        self._report.series["runs"] = [each.to_mapping() for each in self._runs.all()]
        self._report.series["late_runs"] = [each.to_mapping() for each in self._late]
        self._report.save()

    def conclude(self) -> None:
        """The rows, and what the pictures are drawn from."""
        if self.overheads is None:
            return
        simulated = self._simulated(self.overheads)
        self._report.series["simulated"] = {
            f"{mix} {policy}": {**asdict(each), "use": columns_of(each.use)}
            for (mix, policy), each in simulated.items()
        }
        loads = [each.load_average for each in self._runs.all()]
        loads += [each.load_average for each in self._late]
        self._report.setting["load_average"] = round(statistics.median(loads or os.getloadavg()[:1]), 1)
        rows = _overhead_rows(self.overheads)
        for (mix, policy), each in simulated.items():
            rows += mix_rows(mix, policy, self._runs.of(mix, policy), each)
        rows += verdict_rows(self._runs, simulated)
        rows += late_rows(self._late)
        self._report.add(rows)

    def _simulated(self, overheads: Overheads) -> dict[tuple[str, str], SimulatedRun]:
        found = {}
        for mix, policy in dict.fromkeys((each.key.mix, each.key.policy) for each in self._runs.all()):
            live = self._runs.of(mix, policy)
            starts_s = {
                app: statistics.median(each.starts_s[app] for each in live) for app in live[0].starts_s
            }
            found[mix, policy] = simulated_run(self.apps(mix), policy, overheads, starts_s)
        return found


def _setting(share_of_tasks: float) -> dict[str, Any]:
    return {
        "time_divided_by": setting.SLOWNESS,
        "splits_divided_by": round(setting.SPLIT_DIVISOR, 1),
        "time_divided_by_late_binding": LATE_SLOWNESS,
        "link": setting.LINK,
        "share_of_tasks": share_of_tasks,
        "nodes": f"{setting.N_STORAGE} storage, {setting.N_COMPUTE} compute",
        "compute_node": f"{setting.CORES} cores, {setting.GPUS} emulated GPUs",
    }


def _known(path: Path | None, setting_here: Mapping[str, Any]) -> Mapping[str, Any]:
    if path is None or not path.exists():
        return {}
    document = json.loads(path.read_text(encoding="utf-8"))
    recorded = document.get("machine", {})
    for name, value in setting_here.items():
        if recorded.get(name, value) != value:
            raise ConfigError(
                f"{path} was recorded with {name} {recorded[name]}, this would be with {value}",
                cure="give --resume the options of the run that it goes on with, or another file",
            )
    return dict(document.get("series", {}))


def _overhead_rows(overheads: Overheads) -> list[Row]:
    link = f"{setting.LINK}; given to the simulator and the policies"
    return [
        observed("overhead of one task alone", overheads.task_s, "s", note="given to the simulator"),
        observed("of that, of its attempt", overheads.attempt_s, "s"),
        observed("one reader on an idle link", overheads.link_bytes_per_s / 1e6, "MB/s", note=link),
    ]
