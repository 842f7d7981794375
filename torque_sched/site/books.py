"""What of this site's nodes is free when: from one look at the server and from reservations.

The grid gets whole nodes, with all their slots and GPUs. A node is free for a claim when nothing runs on it
at any time of the claim, as far as the jobs' limits tell, and nobody has reserved it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain

from torque_sched.core.handshake import Claim, Grant, Spare
from torque_sched.core.model import Job, Node, NodeName
from torque_sched.core.snapshot import Snapshot
from torque_sched.policies.context import Reservation

_NO_LIMIT_S = 365 * 86400.0
_LATE_S = 60.0
"""A job past its limit is believed to run for so long still."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What a node must have."""

    ppn: int
    gpus: int = 0
    properties: tuple[str, ...] = ()


@dataclass
class NodeBooks:
    """The holder's `Books`; `renew` it under the cycle's lock before anything is decided on it."""

    _busy: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    _granted: dict[tuple[str, str], dict[str, list[tuple[float, float]]]] = field(default_factory=dict)
    """Home and job -> node -> when it is kept for it."""
    _nodes: dict[str, Node] = field(default_factory=dict)

    def renew(
        self, snapshot: Snapshot, reservations: Iterable[Reservation], grants: Iterable[Grant] = ()
    ) -> None:
        """Take in a look, the reservations that are not the holder's own, and what the holder has granted."""
        self._nodes = {node.name: node for node in snapshot.nodes if node.is_up and node.np}
        self._busy = {name: [] for name in self._nodes}
        self._granted = {}
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
        kept = self._granted.setdefault((grant.token.home, grant.token.job), {})
        for piece in grant.pieces:
            kept.setdefault(piece.node, []).append((grant.claim.start_s, grant.claim.end_s))

    def _spans(self, name: str, but: tuple[str, str] | None = None) -> list[tuple[float, float]]:
        """When a node is not free; what is kept for one job may be left out."""
        kept = (spans.get(name, ()) for job, spans in self._granted.items() if job != but)
        return [*self._busy[name], *chain.from_iterable(kept)]

    def _note(self, name: str, start_s: float, end_s: float) -> None:
        if name in self._busy:
            self._busy[name].append((start_s, end_s))

    def spare(self, node: str, start_s: float, end_s: float) -> Spare:
        """All of a node, or nothing; as `Books` says."""
        found = self._nodes.get(node)
        if found is None or any(begun < end_s and start_s < over for begun, over in self._spans(node)):
            return Spare(0)
        return Spare(found.np, found.gpus)

    def nodes(self, claim: Claim) -> tuple[str, ...]:
        """Nodes for the pieces that name none; as `Books` says."""
        shape = Shape(
            max(piece.slots for piece in claim.pieces),
            max(piece.gpus for piece in claim.pieces),
            tuple(name for piece in claim.pieces for name in piece.properties),
        )
        return tuple(self.free(shape, claim.start_s, claim.end_s))

    def usable(self, shape: Shape) -> list[str]:
        """Nodes that are up and have what it takes, in the server's order."""
        wanted = frozenset(shape.properties)
        return [
            name
            for name, node in self._nodes.items()
            if node.np >= shape.ppn and node.gpus >= shape.gpus and wanted <= {*node.properties}
        ]

    def free(self, shape: Shape, start_s: float, end_s: float) -> list[str]:
        """Nodes free for the whole time."""
        return [name for name in self.usable(shape) if self.spare(name, start_s, end_s).slots]

    def outlook(
        self, shape: Shape, length_s: float, now_s: float, most: int, but: tuple[str, str] | None = None
    ) -> list[tuple[float, int]]:
        """From when on how many nodes could be had at once for so long, `most` at most.

        A node cannot be had from `length_s` before something begins on it until that is over. Steps of equal
        numbers are one; the first is at `now_s`. What is kept for the job `but` (home, job) counts as free.
        """
        usable = self.usable(shape)
        edges: dict[float, int] = {now_s: 0}
        for name in usable:
            for begin_s, end_s in _merged(self._spans(name, but), length_s, now_s):
                edges[begin_s] = edges.get(begin_s, 0) - 1
                edges[end_s] = edges.get(end_s, 0) + 1
        steps: list[tuple[float, int]] = []
        free = len(usable)
        for at_s in sorted(edges):
            free += edges[at_s]
            n = min(free, most)
            if not steps or steps[-1][1] != n:
                steps.append((at_s, n))
        return steps


def _merged(busy: Iterable[tuple[float, float]], length_s: float, now_s: float) -> list[tuple[float, float]]:
    """When one node cannot be had for so long, as spans that neither touch nor overlap."""
    spans: list[tuple[float, float]] = []
    for begun_s, over_s in sorted(busy):
        # Just before something begins it would do; half-open spans, so the next number.
        begin_s = max(now_s, math.nextafter(begun_s - length_s, math.inf))
        if over_s <= begin_s:
            continue
        if spans and begin_s <= spans[-1][1]:
            spans[-1] = (spans[-1][0], max(spans[-1][1], over_s))
        else:
            spans.append((begin_s, over_s))
    return spans


def _end_s(job: Job, now_s: float) -> float:
    started_s = job.start_s if job.start_s is not None else now_s
    end_s = started_s + (job.walltime_s if job.walltime_s is not None else _NO_LIMIT_S)
    return end_s if end_s > now_s else now_s + _LATE_S


def _has_unknown_work(node: Node, snapshot: Snapshot) -> bool:
    """Slots in use by a job the look does not show."""
    return any(part.job not in snapshot.job_by_id for part in node.jobs)


def nodes_of(grant: Grant) -> frozenset[NodeName]:
    """Names of a grant's nodes."""
    return frozenset(NodeName(piece.node) for piece in grant.pieces)
