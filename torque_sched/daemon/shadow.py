"""Shadow mode: beside the real scheduler, starting nothing; what would we have done, and was it better?

Each cycle decides on what the real scheduler made of the cluster. From that follow, and no more than that:
how much earlier we would have started a job (the moment we first said Start against the moment it ran),
how evenly the nodes are loaded with its placement and would have been with ours, and for how long GPUs were
idle while a job that wants one could have run by our decision.
"""

from __future__ import annotations

import json
import logging
import statistics
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torque_sched.adapters.state_file import write_atomic
from torque_sched.core.decisions import Start
from torque_sched.core.model import Job, JobId, NodeName
from torque_sched.core.snapshot import Snapshot
from torque_sched.core.states import JobState
from torque_sched.daemon.cycle import CycleReport

__all__ = ["Shadow", "ShadowReport"]

logger = logging.getLogger(__name__)

_KEPT_JOBS = 1000


@dataclass(slots=True)
class _Wish:
    first_s: float
    hosts: str
    slots: dict[NodeName, int]


@dataclass(slots=True)
class ShadowReport:
    """Sums since the shadow began."""

    n_cycles: int = 0
    n_wished: int = 0
    """Jobs we would have started."""
    n_started: int = 0
    """Those of them that the real scheduler started since."""
    n_same_nodes: int = 0
    waited_longer_s: float = 0.0
    """Sum over those: the real start after ours."""
    idle_gpu_s: float = 0.0
    """GPU-seconds idle though a waiting job could have had them by our decision."""
    real_imbalance: float = 0.0
    """Standard deviation of the nodes' use as the real scheduler filled them, mean over those jobs."""
    our_imbalance: float = 0.0
    """The same with each of those jobs moved to the nodes we would have taken."""


class Shadow:
    """Keeps the comparison and writes it to a file after each cycle.

    Args:
        path: the report, JSON.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.report = ShadowReport()
        self._wishes: dict[JobId, _Wish] = {}
        self._last_s: float | None = None
        self._idle_gpus = 0
        self._jobs: list[dict[str, Any]] = []
        self._spreads: list[tuple[float, float]] = []

    def cycle(self, report: CycleReport) -> None:
        """One cycle of ours was decided."""
        assert report.look is not None
        snapshot = report.look.snapshot
        self._settle(snapshot)
        if self._last_s is not None:
            self.report.idle_gpu_s += self._idle_gpus * max(0.0, snapshot.now_s - self._last_s)
        self._last_s = snapshot.now_s
        starts = [each for each in report.decisions if isinstance(each, Start)]
        self._idle_gpus = sum(share.gpus for start in starts for share in start.allocation)
        for start in starts:
            if start.job not in self._wishes:
                slots = {share.node: share.ppn for share in start.allocation}
                self._wishes[start.job] = _Wish(snapshot.now_s, start.hosts, slots)
                self.report.n_wished += 1
                logger.info("would start %s on %s", start.job, start.hosts)
        self.report.n_cycles += 1
        with suppress(OSError):
            write_atomic(self._path, json.dumps(self._document(), indent=1) + "\n")

    def _settle(self, snapshot: Snapshot) -> None:
        """Compare with what really happened to the jobs we wanted to start."""
        for name, wish in tuple(self._wishes.items()):
            job = snapshot.job_by_id.get(name)
            if job is None or job.state is JobState.QUEUED:
                if job is None:
                    del self._wishes[name]
                continue
            del self._wishes[name]
            if job.exec_host:
                self._compare(job, wish, snapshot)

    def _compare(self, job: Job, wish: _Wish, snapshot: Snapshot) -> None:
        started_s = job.start_s if job.start_s is not None else snapshot.now_s
        later_s = max(0.0, started_s - wish.first_s)
        theirs = job.slots_by_node()
        self.report.n_started += 1
        self.report.waited_longer_s += later_s
        self.report.n_same_nodes += theirs.keys() == wish.slots.keys()
        self._spreads.append((_spread(snapshot, {}, {}), _spread(snapshot, minus=theirs, plus=wish.slots)))
        self._spreads = self._spreads[-_KEPT_JOBS:]
        self.report.real_imbalance = statistics.fmean(real for real, _ in self._spreads)
        self.report.our_imbalance = statistics.fmean(ours for _, ours in self._spreads)
        told = {
            "job": job.id, "ours": wish.hosts, "theirs": sorted(theirs), "later_s": round(later_s, 3),
        }  # fmt: skip
        self._jobs = [*self._jobs[-_KEPT_JOBS + 1 :], told]

    def _document(self) -> dict[str, Any]:
        values = {name: getattr(self.report, name) for name in ShadowReport.__slots__}
        n_started = self.report.n_started
        values["mean_waited_longer_s"] = self.report.waited_longer_s / n_started if n_started else 0.0
        values["waiting_wishes"] = {name: wish.hosts for name, wish in self._wishes.items()}
        values["jobs"] = self._jobs
        return values


def _spread(snapshot: Snapshot, minus: dict[NodeName, int], plus: dict[NodeName, int]) -> float:
    """Standard deviation over the nodes that are up of the share of slots that jobs make busy by load."""
    shares: Iterable[float] = [
        (_busy(snapshot, node.name) - minus.get(node.name, 0) + plus.get(node.name, 0)) / node.np
        for node in snapshot.nodes
        if node.is_up and node.np
    ]
    values = list(shares)
    return statistics.pstdev(values) if values else 0.0


def _busy(snapshot: Snapshot, name: NodeName) -> float:
    """Slots in use, or the load average where that is higher (what Torque does not know of)."""
    node = snapshot.node_by_name[name]
    load = (node.status.loadave or 0.0) if node.status is not None else 0.0
    return max(float(node.slots_used), load)
