"""What of this site's nodes is free when: from one look at the server and from reservations.

The grid gets whole nodes. A node is free for a claim when nothing runs on it at any time of the claim, as far
as the jobs' limits tell, and nobody has reserved it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from torque_sched.core.handshake import Claim, Grant, Spare
from torque_sched.core.model import Job, Node, NodeName
from torque_sched.core.snapshot import Snapshot
from torque_sched.policies.context import Reservation

__all__ = ["NodeBooks", "nodes_of"]

_NO_LIMIT_S = 365 * 86400.0
_LATE_S = 60.0
"""A job past its limit is believed to run for so long still."""


@dataclass
class NodeBooks:
    """The holder's `Books`; `renew` it under the cycle's lock before anything is decided on it."""

    _busy: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    _slots: dict[str, int] = field(default_factory=dict)
    seen_s: float = 0.0

    def renew(
        self, snapshot: Snapshot, reservations: Iterable[Reservation], grants: Iterable[Grant] = ()
    ) -> None:
        """Take in a look, the reservations that are not the holder's own, and what the holder has granted."""
        self.seen_s = snapshot.now_s
        self._slots = {node.name: node.np for node in snapshot.nodes if node.is_up and node.np}
        self._busy = {name: [] for name in self._slots}
        for job in (*snapshot.running, *snapshot.suspended):
            end_s = _end_s(job, snapshot.now_s)
            for name in job.slots_by_node():
                self._note(name, snapshot.now_s - _LATE_S, end_s)
        for node in snapshot.nodes:
            if _has_unknown_work(node, snapshot):
                self._note(node.name, snapshot.now_s - _LATE_S, snapshot.now_s + _LATE_S)
        for kept in reservations:
            for name in kept.nodes:
                self._note(name, kept.start_s, kept.end_s)
        for grant in grants:
            self.add(grant)

    def add(self, grant: Grant) -> None:
        """Something the holder has granted since."""
        for piece in grant.pieces:
            self._note(piece.node, grant.claim.start_s, grant.claim.end_s)

    def _note(self, name: str, start_s: float, end_s: float) -> None:
        if name in self._busy:
            self._busy[name].append((start_s, end_s))

    def spare(self, node: str, start_s: float, end_s: float) -> Spare:
        """All slots of a node, or none; as `Books` says."""
        is_free = node in self._slots and not any(
            begun_s < end_s and start_s < over_s for begun_s, over_s in self._busy[node]
        )
        return Spare(self._slots[node] if is_free else 0)

    def nodes(self, claim: Claim) -> tuple[str, ...]:
        """Nodes for the pieces that name none; as `Books` says."""
        ppn = max(piece.slots for piece in claim.pieces)
        return tuple(self.free(ppn, claim.start_s, claim.end_s))

    def usable(self, ppn: int) -> list[str]:
        """Nodes that are up and have so many slots, in the server's order."""
        return [name for name, slots in self._slots.items() if slots >= ppn]

    def free(self, ppn: int, start_s: float, end_s: float) -> list[str]:
        """Nodes free for the whole time."""
        return [name for name in self.usable(ppn) if self.spare(name, start_s, end_s).slots]

    def earliest_s(self, n: int, ppn: int, not_before_s: float, length_s: float) -> float | None:
        """When so many nodes are free at once for so long; None: never."""
        if n > len(self.usable(ppn)):
            return None
        ends = {over_s for spans in self._busy.values() for _, over_s in spans}
        for at_s in sorted({not_before_s, *(end for end in ends if end > not_before_s)}):
            if len(self.free(ppn, at_s, at_s + length_s)) >= n:
                return at_s
        return None


def _end_s(job: Job, now_s: float) -> float:
    started_s = job.start_s if job.start_s is not None else now_s
    end_s = started_s + (job.walltime_s if job.walltime_s is not None else _NO_LIMIT_S)
    return max(end_s, now_s + _LATE_S)


def _has_unknown_work(node: Node, snapshot: Snapshot) -> bool:
    """Slots in use by a job the look does not show."""
    return any(part.job not in snapshot.job_by_id for part in node.jobs)


def nodes_of(grant: Grant) -> frozenset[NodeName]:
    """Names of a grant's nodes."""
    return frozenset(NodeName(piece.node) for piece in grant.pieces)
