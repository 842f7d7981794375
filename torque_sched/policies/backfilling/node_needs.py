"""From what a job needs (`Shape`) to what is asked of the node-aware table; alike jobs share all of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from torque_sched.core.decisions import NodeShare
from torque_sched.core.model import NodeName
from torque_sched.core.request import AccessPolicy
from torque_sched.policies.backfilling.node_steps import Amounts, Indices
from torque_sched.policies.backfilling.node_table import NodeNeed, NodeSpot, NodeTable, Part
from torque_sched.policies.needs import Fit, Piece, Shape
from torque_sched.policies.node_ledger import NodeLedger
from torque_sched.policies.search import Search


class Needs:
    """The needs of one cycle."""

    def __init__(self, search: Search) -> None:
        self._search = search
        self._parts: dict[Fit, tuple[Part, ...]] = {}
        self._keys: dict[tuple[Fit, int], object] = {}

    def of(
        self, shape: Shape, kept_out_by: int, pauses: Iterable[NodeName] = (), subject: object = None
    ) -> NodeNeed:
        """The need of a job of this shape.

        Args:
            kept_out_by: bits, see `opening.KeptOut`.
            pauses: nodes that failed to start this very job lately.
            subject: see `NodeNeed`.
        """
        parts = self._parts.get(shape.fit)
        if parts is None:
            self._search.prepare(shape)
            parts = self._parts[shape.fit] = tuple(self._part(piece, shape) for piece in self._pieces(shape))
        names = frozenset(pauses)
        if names:
            parts = tuple(_without(part, self._indices(names)) for part in parts)
            return NodeNeed(parts, kept_out_by, subject)
        key = self._keys.setdefault((shape.fit, kept_out_by), object())
        return NodeNeed(parts, kept_out_by, subject, key)

    def _indices(self, names: frozenset[NodeName]) -> Indices:
        by_name = self._search.ledger.by_name
        return np.array([by_name[name].index for name in names if name in by_name], np.intp)

    def _pieces(self, shape: Shape) -> list[Piece]:
        """The shape's pieces, each for a node of its own; GPUs anywhere as pieces of their own."""
        pieces = list(self._search.apart(shape))
        if shape.gpus_anywhere and shape.procs:
            (piece,) = pieces
            n = min(piece.count, shape.gpus_anywhere)
            gpus = -(-shape.gpus_anywhere // n)
            pieces = [replace(piece, count=n, gpus=gpus)]
            if shape.procs > n:
                pieces.append(replace(piece, count=shape.procs - n))
        return pieces

    def _part(self, piece: Piece, shape: Shape) -> Part:
        nodes = sorted(self._search.capable(piece, shape), key=lambda node: _preference(node, piece))
        indices = np.array([node.index for node in nodes], np.intp)
        whole = shape.empty or shape.access in _ALONE
        return Part(
            indices,
            piece.ppn,
            piece.gpus,
            piece.count,
            int(piece.mem_bytes),
            int(piece.with_swap_bytes),
            whole,
            bool(shape.procs) or shape.may_share,
            _kept_slots(nodes, piece, shape),
        )

    def spot(
        self, table: NodeTable, need: NodeNeed, start_s: float, end_s: float, shares: tuple[NodeShare, ...]
    ) -> NodeSpot | None:
        """The place promised before; None where its nodes are not what the job needs any more."""
        nodes: list[int] = []
        held: list[tuple[int, int, int, int]] = []
        for share in shares:
            entry = self._search.ledger.by_name.get(share.node)
            part = None if entry is None else _part_for(need, entry.index, share)
            if entry is None or part is None:
                return None
            nodes.append(entry.index)
            held.append(table.held(part, entry.index, -(-share.ppn // part.ppn)))
        if sum(share.ppn for share in shares) != sum(part.ppn * part.count for part in need.parts):
            return None
        return NodeSpot(start_s, end_s, tuple(nodes), tuple(held), shares, need.kept_out_by)

    def spot_now(
        self,
        need: NodeNeed,
        start_s: float,
        end_s: float,
        placed: Iterable[tuple[NodeLedger, Piece]],
    ) -> NodeSpot:
        """The place the search found for a start now; who wants to be alone gets all, whoever is there."""
        is_whole = need.parts[0].whole
        nodes: list[int] = []
        held: list[tuple[int, int, int, int]] = []
        shares: list[NodeShare] = []
        for entry, piece in placed:
            slots = entry.np if is_whole else piece.ppn
            vmem = int(piece.with_swap_bytes)
            nodes.append(entry.index)
            held.append((slots, piece.gpus, int(piece.mem_bytes), vmem))
            shares.append(NodeShare(entry.name, piece.ppn, piece.gpus))
        return NodeSpot(start_s, end_s, tuple(nodes), tuple(held), tuple(shares), need.kept_out_by)


_ALONE = frozenset({AccessPolicy.SINGLE_USER, AccessPolicy.UNIQUE_USER})
"""Who else will be there later is not known: planned as if they needed the node alone."""


def _preference(node: NodeLedger, piece: Piece) -> tuple[bool, bool, int]:
    """GPU nodes and reserved ones last, where they are not needed; else the server's order."""
    return bool(node.node.gpus) and not piece.gpus, bool(node.reserved), node.index


def _kept_slots(nodes: list[NodeLedger], piece: Piece, shape: Shape) -> Amounts | None:
    """Slots that must be left for idle GPUs, as `NodeLedger.refusal` has it when all are idle."""
    if piece.gpus or shape.wants_gpus or shape.fit.may_use_kept:
        return None
    kept = [min(node.kept_per_gpu * node.node.gpus, node.np - 1) for node in nodes]
    return np.array(kept, np.int64) if any(kept) else None


def _without(part: Part, nodes: Indices) -> Part:
    stays = ~np.isin(part.nodes, nodes)
    kept = None if part.kept_slots is None else part.kept_slots[stays]
    return replace(part, nodes=part.nodes[stays], kept_slots=kept)


def _part_for(need: NodeNeed, node: int, share: NodeShare) -> Part | None:
    """The part of the need this share is of."""
    for part in need.parts:
        n = share.ppn // part.ppn
        is_alike = n * part.ppn == share.ppn and n * part.gpus == share.gpus
        if is_alike and (n == 1 or part.may_share) and node in part.nodes:
            return part
    return None
