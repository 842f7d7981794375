"""Processors and tasks that may share nodes: ``procs=N`` and ``-L tasks=N``."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import replace

from torque_sched.policies.ledger import Ledger
from torque_sched.policies.needs import Piece, Shape
from torque_sched.policies.node_ledger import NodeLedger
from torque_sched.policies.scoring import Scorer


def times(piece: Piece, n: int, gpus: int | None = None) -> Piece:
    """``n`` equal pieces on one node as a single piece, with as many GPUs instead if given."""
    load = None if piece.load is None else piece.load.scaled(float(n))
    return replace(
        piece,
        ppn=piece.ppn * n,
        gpus=piece.gpus * n if gpus is None else gpus,
        count=1,
        mem_bytes=piece.mem_bytes * n,
        vmem_bytes=piece.vmem_bytes * n,
        learned_bytes=piece.learned_bytes * n,
        load=load,
    )


class Spread:
    """As few nodes as possible: the best that has room for all, else the roomiest and again for the rest."""

    def __init__(
        self, ledger: Ledger, scorer: Scorer, is_kept_out: Callable[[NodeLedger, Piece], bool]
    ) -> None:
        self._ledger, self._scorer, self._is_kept_out = ledger, scorer, is_kept_out

    def find(
        self, shape: Shape, candidates: Sequence[tuple[Piece, list[NodeLedger]]]
    ) -> list[tuple[NodeLedger, Piece]] | None:
        """Nodes with what each takes; several kinds of pieces never share a node here."""
        taken: set[int] = set()
        parts: list[tuple[NodeLedger, Piece]] = []
        for piece, nodes in candidates:
            found = self._fill(shape, piece, [node for node in nodes if node.index not in taken])
            if found is None:
                return None
            parts += found
            taken.update(node.index for node, _ in found)
        return parts

    def _fill(
        self, shape: Shape, piece: Piece, nodes: Sequence[NodeLedger]
    ) -> list[tuple[NodeLedger, Piece]] | None:
        left = piece.count
        parts: list[tuple[NodeLedger, Piece]] = []
        if shape.gpus_anywhere:
            found = self._with_gpus(shape, piece, nodes)
            if found is None:
                return None
            parts, left = found
            if left < 0:
                return None
        used = {node.index for node, _ in parts}
        open_nodes = [node for node in nodes if node.index not in used and self._takes(node, piece, shape)]
        roomy = (
            [
                (-self._most(node, piece, shape, left), self._scorer.score(node, piece), node.index)
                for node in open_nodes
            ]
            if left
            else []
        )
        heapq.heapify(roomy)
        while left and roomy:
            # All that have room for the rest are alike; the placement says which is best.
            whole = [item for item in roomy if -item[0] >= left]
            room, _, index = min(whole, key=lambda item: item[1:]) if whole else heapq.heappop(roomy)
            n = min(-room, left)
            parts.append((self._ledger.nodes[index], times(piece, n)))
            left -= n
        return None if left else parts

    def _with_gpus(
        self, shape: Shape, piece: Piece, nodes: Sequence[NodeLedger]
    ) -> tuple[list[tuple[NodeLedger, Piece]], int] | None:
        """The GPUs of ``-l procs=N,gpus=M``: as few nodes as possible, and those with room for most of N.

        The processors of a node without the GPUs cannot use them.
        """
        gpus, left = shape.gpus_anywhere, piece.count
        parts: list[tuple[NodeLedger, Piece]] = []
        one, plain = replace(piece, gpus=1), replace(piece, gpus=0)
        room = {
            node.index: self._most(node, plain, shape, left)
            for node in nodes
            if self._takes(node, one, shape)
        }
        fitting = [node for node in nodes if node.index in room]
        fitting.sort(
            key=lambda node: (
                -min(_clean_gpus(node), gpus), -room[node.index], self._scorer.score(node, one), node.index
            )
        )  # fmt: skip
        for node in fitting:
            if not gpus or not left:
                break
            here = min(gpus, _clean_gpus(node))
            gpus -= here
            # Processors are left over for the GPUs that still have no node.
            n = min(room[node.index], left if not gpus else 1)
            parts.append((node, times(piece, n, here)))
            left -= n
        return None if gpus else (parts, left)

    def _takes(self, node: NodeLedger, piece: Piece, shape: Shape) -> bool:
        return node.refusal(piece, shape) is None and not self._is_kept_out(node, piece)

    def _most(self, node: NodeLedger, piece: Piece, shape: Shape, limit: int) -> int:
        """How many pieces the node takes; at least one, which was asked before."""
        low, high = 1, min(limit, max(1, node.slots_free // piece.ppn))
        if self._takes(node, times(piece, high), shape):
            return high
        while low < high:
            middle = (low + high + 1) // 2
            if self._takes(node, times(piece, middle), shape):
                low = middle
            else:
                high = middle - 1
        return low


def _clean_gpus(node: NodeLedger) -> int:
    """Free GPUs that may be handed out: the server gives the lowest first."""
    clean = next((i for i, ok in enumerate(node.gpus_clean) if not ok), len(node.gpus_clean))
    return min(clean, node.gpus_free)
