"""What was run so far, kept in the report's file after every run, and the rows at the end."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from benchmarks.mps_live import setting
from benchmarks.mps_live.compare import (
    Pair,
    cost_rows,
    mix_rows,
    overhead_rows,
    peer_rows,
    preemption_rows,
)
from benchmarks.mps_live.overhead import OverheadKey, OverheadRun
from benchmarks.mps_live.runs import LIVE, DagRun, RunKey
from benchmarks.mps_live.setting import Costs, EmulatedDag, mix_dags, preemption_dags
from benchmarks.mps_live.simulated import simulated_run
from benchmarks.result import Report, Row, current_commit

_DAGS = {"mix": mix_dags, "preemption": preemption_dags}


class Recording:
    """All runs of a report.

    Args:
        share: of the tasks of each world.
        is_resumed: take over what the report's file has.

    Attributes:
        costs: of tasks; None: not measured yet.
    """

    def __init__(self, report: Report, share: float, *, is_resumed: bool) -> None:
        known = _known(report.path) if is_resumed else {}
        self._report = report
        self._share = share
        self._runs = {run.key: run for run in map(DagRun.from_mapping, known.get("runs", ()))}
        overheads = map(OverheadRun.from_mapping, known.get("overheads", ()))
        self._overheads = {run.key: run for run in overheads}
        self._not_measured: list[Row] = []
        self.costs = Costs(**known["costs"]) if "costs" in known else None
        report.setting |= {
            "computing": "emulated: every task waits",
            "time_divided_by": setting.SLOWNESS,
            "least_task_s": setting.LEAST_S,
            "file_bytes": setting.FILE_BYTES,
            "machines": f"{setting.N_MACHINES} nodes, a worker of one core on each",
            "share_of_tasks": share,
        }

    def has(self, key: RunKey | OverheadKey) -> bool:
        """Whether this is there already."""
        return key in self._runs if isinstance(key, RunKey) else key in self._overheads

    def dags(self, world: str, repeat: int) -> list[EmulatedDag]:
        """What is run."""
        return _DAGS[world](repeat, self._share)

    def add(self, run: DagRun | OverheadRun) -> None:
        """Take a run, and keep all."""
        at = datetime.now(timezone.utc).isoformat(timespec="seconds")
        noted = replace(run, commit=current_commit(), at=at)
        if isinstance(noted, DagRun):
            self._runs[noted.key] = noted
        else:
            self._overheads[noted.key] = noted
        self.note()

    def leave_out(self, row: Row) -> None:
        """A row that says why something is not measured."""
        self._not_measured.append(row)

    def note(self) -> None:
        """Keep what there is: a run that is killed goes on from here."""
        if self.costs is not None:
            self._report.series["costs"] = asdict(self.costs)
        self._report.series["runs"] = [each.to_mapping() for each in self._runs.values()]
        self._report.series["overheads"] = [each.to_mapping() for each in self._overheads.values()]
        self._report.save()

    def conclude(self) -> None:
        """The rows, and what the pictures are drawn from."""
        loads = [each.load_average for each in self._runs.values()]
        loads += [each.load_average for each in self._overheads.values()]
        self._report.setting["load_average"] = round(statistics.median(loads or os.getloadavg()[:1]), 1)
        rows: list[Row] = []
        if self.costs is not None:
            pairs = self._pairs(self.costs)
            self._report.series["simulated"] = [
                simulated.to_mapping() for key, (_, simulated, _) in pairs.items() if key.system == LIVE
            ]
            rows += cost_rows(self.costs)
            rows += mix_rows(_of(pairs, "mix"))
            rows += preemption_rows(_of(pairs, "preemption"))
            rows += peer_rows(pairs)
        self._report.add(rows + overhead_rows(self._overheads) + self._not_measured)

    def _pairs(self, costs: Costs) -> dict[RunKey, Pair]:
        """Each run with the simulated one that has its arrivals."""
        found: dict[RunKey, Pair] = {}
        for key, run in self._runs.items():
            dags = self.dags(key.world, key.repeat)
            found[key] = run, simulated_run(key.world, key.repeat, dags, costs, run.arrivals_s), dags
        return found


def _of(pairs: Mapping[RunKey, Pair], world: str) -> Sequence[Pair]:
    return [pair for key, pair in pairs.items() if (key.world, key.system) == (world, LIVE)]


def _known(path: Path | None) -> Mapping[str, Any]:
    if path is None or not path.exists():
        return {}
    return dict(json.loads(path.read_text(encoding="utf-8")).get("series", {}))
