"""Pieces of one job on one node: ``nodes=2:ppn=2+1:gpus=1`` needs two nodes, not three.

The server keeps the nodes of one element of a request apart, but not those of elements joined by ``+``
(observed on 6.1.3 and 4.2.10).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from torque_sched.policies.needs import Piece, joined
from torque_sched.policies.node_ledger import NodeLedger


def together(
    pieces: Sequence[Piece],
    places: Sequence[int],
    candidates: Callable[[int], Iterable[NodeLedger]],
    takes: Callable[[NodeLedger, Piece, bool], bool],
    score: Callable[[NodeLedger, Piece], float],
) -> list[tuple[NodeLedger, Piece]] | None:
    """Nodes with all that each takes, in the order of the request; None: none were found.

    Finding some where there are any is bin packing. Tried are spreading, piling, and last the server's own
    first fit, so that a job it would start by itself is started here, too.

    Args:
        pieces: of the job.
        places: the pieces' indices, those with the fewest nodes first.
        candidates: the nodes that take a piece by itself, in the server's order.
        takes: whether such a node takes this; last: whether it is more than the piece by itself.
        score: the smaller the better.
    """

    def spread(is_used: bool, node: NodeLedger, piece: Piece) -> tuple[float, ...]:
        return is_used, score(node, piece), node.index

    def pile(is_used: bool, node: NodeLedger, piece: Piece) -> tuple[float, ...]:
        return not is_used, score(node, piece), node.index

    def first(_is_used: bool, node: NodeLedger, _piece: Piece) -> tuple[float, ...]:
        return (node.index,)

    def place_all(order: Sequence[int], rank: _Rank) -> list[tuple[NodeLedger, Piece]] | None:
        held: dict[int, Piece] = {}
        chosen: dict[int, list[NodeLedger]] = {}
        for place in order:
            piece = pieces[place]
            fitting: list[tuple[tuple[float, ...], NodeLedger, Piece]] = []
            for node in candidates(place):
                before = held.get(node.index)
                whole = piece if before is None else joined(before, piece)
                if takes(node, whole, before is not None):
                    fitting.append((rank(before is not None, node, whole), node, whole))
            if len(fitting) < piece.count:
                return None
            best = sorted(fitting, key=lambda entry: entry[0])[: piece.count]
            chosen[place] = [node for _, node, _ in best]
            held.update((node.index, whole) for _, node, whole in best)
        nodes = {node.index: node for place in sorted(chosen) for node in chosen[place]}
        return [(node, held[index]) for index, node in nodes.items()]

    as_asked = range(len(pieces))
    return place_all(places, spread) or place_all(places, pile) or place_all(as_asked, first)


_Rank = Callable[[bool, NodeLedger, Piece], tuple[float, ...]]
