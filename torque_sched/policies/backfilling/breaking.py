"""Why a promise could not be kept: found from what stands in its way now."""

from __future__ import annotations

from torque_sched.core.decisions import Promise
from torque_sched.core.model import Job
from torque_sched.core.reasons import Broken
from torque_sched.policies.backfilling.lengths import Lengths
from torque_sched.policies.cycle import Cycle
from torque_sched.policies.node_ledger import NodeLedger
from torque_sched.policies.refusals import Refusal


class Breaking:
    """Finds causes in one cycle."""

    def __init__(self, cycle: Cycle, lengths: Lengths) -> None:
        self._cycle, self._lengths = cycle, lengths

    def cause(self, job: Job, promise: Promise) -> tuple[Broken, str]:
        """The cause and a sentence that names node, reservation or job."""
        for share in promise.allocation:
            entry = self._cycle.ledger.by_name.get(share.node)
            if entry is None:
                return Broken.NODE_FAILED, f"node {share.node} is gone"
            if entry.blocked is not None:
                kind = Broken.NODE_FAILED if entry.blocked is Refusal.UNUSABLE else Broken.NODES
                return kind, f"node {share.node}: {entry.why or entry.blocked.value}"
        kept = self._reservation(job, promise)
        if kept:
            return Broken.RESERVATION, kept
        if promise.length_s < self._lengths.length_s(job):
            return Broken.SETTINGS, "it is to run longer than when the start was guaranteed"
        for share in promise.allocation:
            late = self._overran(self._cycle.ledger.by_name[share.node], promise)
            if late:
                return Broken.OVERRUN, late
        return Broken.NODES, "its nodes are less free than they were planned to be"

    def _reservation(self, job: Job, promise: Promise) -> str:
        nodes = {share.node for share in promise.allocation}
        end_s = promise.start_s + promise.length_s
        for kept in self._cycle.context.reservations:
            overlaps = kept.start_s < end_s and max(promise.start_s, self._cycle.snapshot.now_s) < kept.end_s
            if overlaps and job.user not in kept.users and nodes & kept.nodes:
                return f"reservation {kept.name} keeps its nodes"
        for window in self._cycle.context.dedicated:
            if window.start_s < end_s and promise.start_s < window.end_s:
                return "dedicated time was set"
        return ""

    def _overran(self, entry: NodeLedger, promise: Promise) -> str:
        for held in self._cycle.ledger.held.get(entry.name, ()):
            if self._lengths.end_s(held.job) > promise.start_s and self._lengths.overran(held.job):
                return f"job {held.job.id} on {entry.name} runs longer than planned"
        return ""
