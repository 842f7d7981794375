"""Shadow mode: beside the real scheduler, starting nothing; what would we have done, and was it better?

Every comparison is one step from the real state, and they are summed up. Each look decides what we would
start now; a job that the real scheduler starts later has waited so much longer. When a look shows jobs that
it has just started, we decide once more on the same state without them: would we have started them too, and
on which nodes? So the spread of the load with its nodes and with ours is compared. And GPUs are counted as
long as they are idle though a waiting job could have had them by our decision.

What follows from a step is not known. A job started earlier would have ended earlier, and others started
sooner for it; where the real scheduler took another job first, that one would have waited with us, and jobs
it started that we would have held are counted apart, with our reason. Jobs that came and ended between two
looks are not compared, nor is anything while no shadow ran.

The sums are in the report file, from which the next daemon goes on; to begin anew, remove it.
"""

from __future__ import annotations

import json
import logging
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from torque_sched.adapters.state_file import read_plain, write_atomic
from torque_sched.batch.documents import hosts_text
from torque_sched.daemon.cycle import CycleReport
from torque_sched.decide.context import Context
from torque_sched.model.cluster import Job, JobId, Node, NodeName
from torque_sched.model.decisions import Decision, Start
from torque_sched.model.snapshot import Snapshot
from torque_sched.model.states import JobState, NodeState

logger = logging.getLogger(__name__)

_KEPT_JOBS = 200
_HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class _Wish:
    first_s: float
    hosts: str


@dataclass(slots=True)
class ShadowReport:
    """Sums since the shadow began."""

    since_s: float = 0.0
    until_s: float = 0.0
    watched_s: float = 0.0
    """Time between looks; what passed while no shadow ran is not in it."""
    n_cycles: int = 0
    n_wished: int = 0
    """Jobs we would have started when a look showed them waiting."""
    n_started: int = 0
    """Those of them that the real scheduler started since."""
    n_withdrawn: int = 0
    """Those that went or were held, as far as we saw, before it did."""
    waited_s: float = 0.0
    """Sum over `n_started`: from submission to the real start."""
    waited_longer_s: float = 0.0
    """Sum over `n_started`: the real start after ours."""
    n_judged: int = 0
    """Jobs seen just started; we decided on them in the same state."""
    n_same_nodes: int = 0
    """Those we would have started on the same nodes."""
    n_held: int = 0
    """Those we would not have started."""
    held: dict[str, int] = field(default_factory=dict)
    """The same by our reason."""
    n_compared: int = 0
    """Looks that showed jobs just started that we would have started too, on any nodes."""
    real_imbalance: float = 0.0
    """Mean over those: standard deviation over the nodes of the share in use."""
    our_imbalance: float = 0.0
    """The same with those jobs on the nodes we would have taken."""
    idle_gpu_s: float = 0.0
    """GPU-seconds idle though a waiting job could have had them by our decision."""


class Shadow:
    """Keeps the comparison and writes it to a file after each cycle.

    Args:
        path: the report, JSON; the one that is there is gone on with.
        decide: decides on a snapshot.
    """

    def __init__(self, path: Path, decide: Callable[[Snapshot, Context], tuple[Decision, ...]]) -> None:
        self.path, self._decide = path, decide
        kept = read_report(path)
        self.report = _report_of(kept)
        self._wishes = {JobId(name): _Wish(**wish) for name, wish in kept.get("wishes", {}).items()}
        self._jobs: list[dict[str, Any]] = kept.get("jobs", [])
        #: Of the look before; None: there was none.
        self._last_s: float | None = None
        self._running: frozenset[JobId] = frozenset()
        self._idle_gpus = 0

    def cycle(self, report: CycleReport) -> None:
        """One cycle of ours was decided."""
        assert report.look is not None
        self.compare(report.look.snapshot, report.context or Context(), report.decisions)
        self.save()

    def save(self) -> None:
        """Write the report; where that fails, the next cycle will try again."""
        with suppress(OSError):
            write_atomic(self.path, json.dumps(self._document(), indent=1) + "\n")

    def compare(self, snapshot: Snapshot, context: Context, decisions: tuple[Decision, ...]) -> None:
        """What became of the jobs since the last look, and what we would do now."""
        report = self.report
        report.since_s = report.since_s or snapshot.now_s
        report.until_s = snapshot.now_s
        report.n_cycles += 1
        self._settle(snapshot)
        if self._last_s is not None:
            passed_s = max(0.0, snapshot.now_s - self._last_s)
            report.watched_s += passed_s
            report.idle_gpu_s += self._idle_gpus * passed_s
            started = [job for job in snapshot.running if job.allocated_slots and job.id not in self._running]
            if started:
                self._judge(started, snapshot, self._decide(*_before(started, snapshot, context)))
        self._wish(snapshot.now_s, decisions)
        self._last_s = snapshot.now_s
        self._running = frozenset(job.id for job in snapshot.running)

    def end(self) -> None:
        """The daemon ends: say what came of it."""
        for line in words_of(self._document()):
            logger.info("%s", line)

    def _settle(self, snapshot: Snapshot) -> None:
        """What became of the jobs we wanted to start."""
        for name, wish in tuple(self._wishes.items()):
            job = snapshot.job_by_id.get(name)
            if job is not None and job.state is JobState.QUEUED:
                continue
            del self._wishes[name]
            if job is None or not job.allocated_slots:
                self.report.n_withdrawn += 1
                continue
            started_s = job.start_s if job.start_s is not None else snapshot.now_s
            later_s = max(0.0, started_s - wish.first_s)
            self.report.n_started += 1
            self.report.waited_s += max(later_s, started_s - job.queued_s if job.queued_s else 0.0)
            self.report.waited_longer_s += later_s
            theirs = sorted(job.slots_by_node())
            judged = {"job": name, "ours": wish.hosts, "theirs": theirs, "later_s": round(later_s, 3)}
            self._jobs = [*self._jobs[-_KEPT_JOBS + 1 :], judged]

    def _judge(self, started: Sequence[Job], snapshot: Snapshot, decisions: tuple[Decision, ...]) -> None:
        """Compare what the real scheduler just started with what we would have in the same state."""
        report = self.report
        by_job = {decision.job: decision for decision in decisions}
        theirs: Counter[NodeName] = Counter()
        ours: Counter[NodeName] = Counter()
        n_moved = 0
        for job in started:
            decision = by_job.get(job.id)
            if decision is None:
                continue
            report.n_judged += 1
            if not isinstance(decision, Start):
                report.n_held += 1
                why = decision.reason.value
                report.held[why] = report.held.get(why, 0) + 1
                continue
            slots = {share.node: share.slots for share in decision.allocation}
            report.n_same_nodes += slots.keys() == job.slots_by_node().keys()
            theirs.update(job.slots_by_node())
            ours.update(slots)
            n_moved += 1
        if n_moved:
            report.n_compared += 1
            real, other = _spread(snapshot, {}, {}), _spread(snapshot, minus=theirs, plus=ours)
            report.real_imbalance += (real - report.real_imbalance) / report.n_compared
            report.our_imbalance += (other - report.our_imbalance) / report.n_compared

    def _wish(self, now_s: float, decisions: tuple[Decision, ...]) -> None:
        starts = [each for each in decisions if isinstance(each, Start)]
        self._idle_gpus = sum(share.gpus for start in starts for share in start.allocation)
        for start in starts:
            if start.job not in self._wishes:
                self._wishes[start.job] = _Wish(now_s, hosts_text(start.allocation))
                self.report.n_wished += 1
                logger.info("would start %s on %s", start.job, hosts_text(start.allocation))

    def _document(self) -> dict[str, Any]:
        wishes = {name: asdict(wish) for name, wish in self._wishes.items()}
        return {**asdict(self.report), "wishes": wishes, "jobs": self._jobs}


def read_report(path: Path) -> dict[str, Any]:
    """What a shadow wrote; empty where there is none, or nothing of use."""
    try:
        found = json.loads(read_plain(path))
        _report_of(found)
        for wish in found["wishes"].values():
            _Wish(**wish)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        logger.warning("%s is no report of a shadow, it begins anew: %s", path, error)
        return {}
    return dict(found)


def _report_of(kept: Mapping[str, Any]) -> ShadowReport:
    return ShadowReport(**{each.name: kept[each.name] for each in fields(ShadowReport) if each.name in kept})


def words_of(kept: Mapping[str, Any]) -> list[str]:
    """A report file in sentences, for people; empty where nothing was watched."""
    report = _report_of(kept)
    if not report.n_cycles:
        return []
    lines = [
        f"watched {_span(report.watched_s)} in {report.n_cycles} looks: each step is compared by itself "
        "from the state the real scheduler made, what would have followed is not known"
    ]
    if report.n_started:
        mean_s, less_s = report.waited_s / report.n_started, report.waited_longer_s / report.n_started
        lines.append(
            f"{report.n_started} jobs we would have started before it did: they waited {_span(mean_s)} on "
            f"average, {_span(less_s)} of it longer than with us ({_span(report.waited_longer_s)} in all)"
        )
    if report.n_judged:
        reasons = sorted(report.held.items(), key=lambda each: (-each[1], each[0]))
        why = ", ".join(f"{name}: {n}" for name, n in reasons)
        n_other = report.n_judged - report.n_same_nodes - report.n_held
        lines.append(
            f"of {report.n_judged} jobs it started we would in the same state have started "
            f"{report.n_same_nodes} on the same nodes, {n_other} on others, and held {report.n_held}"
            + (f" ({why})" if why else "")
        )
    if report.n_compared:
        lines.append(
            f"spread of the load over the nodes (standard deviation) after its starts: "
            f"{report.real_imbalance:.3f}, with our nodes {report.our_imbalance:.3f}, "
            f"mean of {report.n_compared} looks"
        )
    lines.append(
        f"GPUs idle though a waiting job could have had them: {report.idle_gpu_s / _HOUR_S:.3g} GPU hours"
    )
    if report.n_withdrawn:
        lines.append(f"{report.n_withdrawn} jobs we would have started went, or were held, before they ran")
    return lines


def _span(time_s: float) -> str:
    """A length of time to two or three digits."""
    if time_s < 120:
        return f"{time_s:.1f} s"
    return f"{time_s / 60:.1f} min" if time_s < 2 * _HOUR_S else f"{time_s / _HOUR_S:.1f} h"


def _before(started: Iterable[Job], snapshot: Snapshot, context: Context) -> tuple[Snapshot, Context]:
    """The same state with these jobs still waiting; load that they already caused stays in the samples."""
    waiting = {
        job.id: replace(job, state=JobState.QUEUED, allocated_slots=(), allocated_gpus=(), start_s=None)
        for job in started
    }
    jobs = tuple(waiting.get(job.id, job) for job in snapshot.jobs)
    nodes = tuple(_without(node, waiting.keys()) for node in snapshot.nodes)
    placed = tuple(each for each in context.placed if each.job not in waiting)
    return replace(snapshot, jobs=jobs, nodes=nodes), replace(context, placed=placed)


def _without(node: Node, jobs: Set[JobId]) -> Node:
    left = tuple(part for part in node.jobs if part.job not in jobs)
    if len(left) == len(node.jobs):
        return node
    return replace(node, jobs=left, states=node.states - {NodeState.JOB_EXCLUSIVE})


def _spread(snapshot: Snapshot, minus: Mapping[NodeName, int], plus: Mapping[NodeName, int]) -> float:
    """Standard deviation of the share in use over the nodes that are up, with slots less or more in use."""
    values = [
        _share(node) + (plus.get(node.name, 0) - minus.get(node.name, 0)) / node.slots
        for node in snapshot.nodes
        if node.is_up and node.slots
    ]
    return statistics.pstdev(values) if values else 0.0


def _share(node: Node) -> float:
    """Slots in use of all, or load of processors where that is higher (what Torque does not know of)."""
    status = node.status
    load = 0.0 if status is None else (status.loadave or 0.0) / (status.ncpus or node.slots)
    return max(node.slots_used / node.slots, load)
