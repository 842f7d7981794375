"""Finds the nodes for a job: which could ever take it, which can now, and which of these suits best.

Theory of operation. Nodes are asked three questions of growing cost. Which nodes a piece could ever run on is
found once per cycle and kind of piece (`Capable`). Which of these take it now is found once per shape
(`Ranking`), with their scores in a heap; a start changes a few nodes only, so these alone are scored anew.
What depends on the job itself (how long it runs, where it failed before) is asked last, of the best nodes.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from torque_sched.core.model import Job, NodeName
from torque_sched.policies.context import Context, Pause
from torque_sched.policies.ledger import Ledger
from torque_sched.policies.needs import Fit, Piece, Shape, matches
from torque_sched.policies.node_ledger import NodeLedger
from torque_sched.policies.scoring import Scorer
from torque_sched.policies.spread import Spread
from torque_sched.policies.together import together

Parts = list[tuple[NodeLedger, Piece]]


@dataclass(frozen=True, slots=True)
class Placed:
    """Nodes found for a job; the first becomes mother superior."""

    parts: tuple[tuple[NodeLedger, Piece], ...]
    score: float


@dataclass(frozen=True, slots=True)
class Who:
    """What of a job matters beside its shape."""

    user: str
    now_s: float
    until_s: float
    pauses: Mapping[NodeName, Pause]
    has_room: Callable[[int, Piece], bool] | None = None
    """Whether a node, by its index, has room beside what is planned there; None: as its account says."""

    def is_kept_out(self, node: NodeLedger, piece: Piece) -> bool:
        """Whether time or an earlier failure keeps this job from a node that fits."""
        if self.has_room is not None and not self.has_room(node.index, piece):
            return True
        pause = self.pauses.get(node.name) if self.pauses else None
        if pause is not None and pause.until_s > self.now_s:
            return True
        return node.is_kept_at(piece, self.now_s, self.until_s, self.user)


class Ranking:
    """The nodes that take one piece now, best first."""

    def __init__(self, search: Search, shape: Shape, place: int) -> None:
        self._ledger, self._scorer = search.ledger, search.scorer
        self._piece, self._shape = shape.pieces[place], shape
        nodes = search.candidates(shape, place)
        piece, score = self._piece, search.scorer.score
        self._indices = {node.index for node in nodes}
        self._heap = [(score(node, piece), node.index, node.version) for node in nodes]
        heapq.heapify(self._heap)
        self._seen = len(self._ledger.changed)

    def _refresh(self) -> None:
        """Score the nodes anew that changed since."""
        changed = self._ledger.changed
        for index in set(changed[self._seen :]) & self._indices:
            node = self._ledger.nodes[index]
            if node.refusal(self._piece, self._shape) is None:
                heapq.heappush(self._heap, (self._scorer.score(node, self._piece), index, node.version))
        self._seen = len(changed)

    def best(self, n: int, who: Who, taken: set[int]) -> list[tuple[float, NodeLedger]]:
        """Up to ``n`` nodes outside of ``taken``, best first."""
        self._refresh()
        found: list[tuple[float, NodeLedger]] = []
        looked_at = []
        while self._heap and len(found) < n:
            item = heapq.heappop(self._heap)
            score, index, version = item
            node = self._ledger.nodes[index]
            if version != node.version:
                continue
            looked_at.append(item)
            if index not in taken and not who.is_kept_out(node, self._piece):
                found.append((score, node))
        for item in looked_at:
            heapq.heappush(self._heap, item)
        return found


class Search:
    """The search of one cycle."""

    def __init__(self, ledger: Ledger, scorer: Scorer, context: Context) -> None:
        self.ledger, self.scorer = ledger, scorer
        self._pauses = context.back_off.pairs
        self._has_reservations = bool(context.reservations)
        self._names = frozenset(ledger.by_name)
        self._capable: dict[tuple[object, ...], tuple[NodeLedger, ...]] = {}
        self._least_memory: dict[int, float] = {}
        self._capable_indices: dict[int, frozenset[int]] = {}
        self._apart: dict[Fit, tuple[Piece, ...]] = {}
        self._candidates: dict[tuple[Fit, int], tuple[list[NodeLedger], int]] = {}
        """By fit and piece: nodes that took it when last asked, and how many had changed by then."""
        self._rankings: dict[tuple[Shape, int], Ranking] = {}

    def who(self, job: Job, until_s: float) -> Who:
        """What of this job matters beside its shape."""
        pauses = self._pauses.get(job.id, {})
        return Who(job.user, self.ledger.snapshot.now_s, until_s, pauses)

    def matching(self, piece: Piece, shape: Shape) -> tuple[NodeLedger, ...]:
        """Nodes of the right name and kind, whatever their size."""
        is_node = piece.name is not None and piece.name in self._names
        key = ("kind", piece.name, piece.properties, shape.host, shape.opsys)
        found = self._capable.get(key)
        if found is None:
            found = self._capable[key] = tuple(
                node
                for node in self.ledger.nodes
                if matches(piece, node.name, node.properties, is_node)
                and (shape.host is None or _is_host(node, shape.host))
                and (not shape.opsys or _opsys(node) in {"", shape.opsys.lower()})
            )
        return found

    def capable(self, piece: Piece, shape: Shape) -> tuple[NodeLedger, ...]:
        """Matching nodes that could run the piece when idle."""
        of_kind = self.matching(piece, shape)
        key: tuple[object, ...] = (id(of_kind), piece.ppn, piece.gpus)
        found = self._capable.get(key)
        if found is None:
            wide = tuple(n for n in of_kind if n.np >= piece.ppn and n.node.gpus >= piece.gpus)
            found = self._capable[key] = of_kind if len(wide) == len(of_kind) else wide
        if not (piece.mem_bytes or piece.vmem_bytes):
            return found
        least = self._least_memory.get(id(found))
        if least is None:
            least = min((n.most_mem_bytes for n in found), default=0.0)
            least = self._least_memory[id(found)] = min(
                least, min((n.most_vmem_bytes for n in found), default=0.0)
            )
        if piece.mem_bytes <= least and piece.vmem_bytes <= least:
            return found
        key = (id(found), piece.mem_bytes, piece.vmem_bytes, "memory")
        roomy = self._capable.get(key)
        if roomy is None:
            roomy = self._capable[key] = tuple(n for n in found if not n.too_small(piece))
        return roomy

    def candidates(self, shape: Shape, place: int) -> list[NodeLedger]:
        """Nodes that take a piece now, by the nodes alone."""
        piece = shape.pieces[place]
        known = self._candidates.get((shape.fit, place))
        changed = len(self.ledger.changed)
        if known is not None and known[1] == changed:
            return known[0]
        if known is not None:
            nodes: Iterable[NodeLedger] = known[0]
        else:
            nodes = self.roomy(piece, shape)
        found = [node for node in nodes if node.refusal(piece, shape) is None]
        self._candidates[shape.fit, place] = (found, changed)
        return found

    def roomy(self, piece: Piece, shape: Shape) -> list[NodeLedger]:
        """Capable nodes that are open and have the slots, or had them earlier in this cycle."""
        capable = self.capable(piece, shape)
        roomy = self.ledger.roomy(piece.ppn)
        if len(capable) == len(self.ledger.nodes):
            return roomy
        if len(capable) <= len(roomy):
            return [node for node in capable if node.blocked is None and node.slots_free >= piece.ppn]
        indices = self._capable_indices.get(id(capable))
        if indices is None:
            indices = self._capable_indices[id(capable)] = frozenset(node.index for node in capable)
        return [node for node in roomy if node.index in indices]

    def find(self, job: Job, shape: Shape, until_s: float) -> Placed | None:
        """The best nodes for the job now; None: it does not fit now."""
        same = job.user if self._has_reservations else ""
        hopeless_s = shape.fit.hopeless_s.get(same)
        if hopeless_s is not None and until_s >= hopeless_s:
            return None
        who = self.who(job, until_s)
        placed = self.find_for(who, shape)
        if placed is None and not who.pauses:
            # Free amounts only shrink: what did not fit now fits no longer job of this shape either.
            shape.fit.hopeless_s[same] = until_s
        return placed

    def find_for(self, who: Who, shape: Shape) -> Placed | None:
        """The best nodes now, whatever was found for jobs of this shape before."""
        self.prepare(shape)
        if shape.procs or shape.may_share:
            parts = Spread(self.ledger, self.scorer, who.is_kept_out).find(shape, self._nodes_by_piece(shape))
        else:
            parts = self._find_apart(shape, who)
        if parts is None:
            return None
        score = math.fsum(self.scorer.score(node, piece) for node, piece in parts) / len(parts)
        return Placed(tuple(parts), score)

    def _nodes_by_piece(self, shape: Shape) -> list[tuple[Piece, list[NodeLedger]]]:
        return [(piece, self.candidates(shape, place)) for place, piece in enumerate(shape.pieces)]

    def _ranking(self, shape: Shape, place: int) -> Ranking:
        key = (shape, place)
        ranking = self._rankings.get(key)
        if ranking is None:
            ranking = self._rankings[key] = Ranking(self, shape, place)
        return ranking

    def prepare(self, shape: Shape) -> None:
        """A job too wide to ever leave the kept slots free may use them, or it would wait for ever."""
        if shape.fit.is_prepared:
            return
        shape.fit.is_prepared = True
        may_share = bool(shape.procs) or shape.may_share
        names = [piece.name for piece in shape.pieces if piece.name in self._names]
        # Pieces that name one node lie there together.
        is_too_wide = len(set(names)) < len(names)
        open_to_it: set[int] = set()
        for piece in shape.pieces:
            wanted = piece.count
            for node in self.capable(piece, shape):
                if wanted <= 0 and len(shape.pieces) == 1:
                    break
                left = node.np - min(node.kept_per_gpu * node.node.gpus, node.np - 1)
                if left >= piece.ppn:
                    open_to_it.add(node.index)
                    wanted -= left // piece.ppn if may_share else 1
            is_too_wide |= wanted > 0
        if is_too_wide or (not may_share and len(open_to_it) < shape.n_shares and not names):
            shape.fit.may_use_kept = True

    def _find_apart(self, shape: Shape, who: Who) -> Parts | None:
        """Every piece on a node of its own, if possible; the pieces with the fewest nodes choose first."""
        if len(shape.pieces) == 1:
            best = self._ranking(shape, 0).best(shape.pieces[0].count, who, set())
            is_enough = len(best) == shape.pieces[0].count
            return [(node, shape.pieces[0]) for _, node in best] if is_enough else None
        places = sorted(range(len(shape.pieces)), key=lambda i: len(self.capable(shape.pieces[i], shape)))
        taken: set[int] = set()
        chosen: dict[int, list[NodeLedger]] = {}
        for place in places:
            best = self._ranking(shape, place).best(shape.pieces[place].count, who, taken)
            if len(best) < shape.pieces[place].count:
                return self._match(shape, who) or self._find_together(shape, who, places)
            chosen[place] = [node for _, node in best]
            taken.update(node.index for node in chosen[place])
        return [(node, shape.pieces[place]) for place in sorted(chosen) for node in chosen[place]]

    def _find_together(self, shape: Shape, who: Who, places: list[int]) -> Parts | None:
        def candidates(place: int) -> list[NodeLedger]:
            return self.candidates(shape, place)

        def takes(node: NodeLedger, piece: Piece, is_more: bool) -> bool:
            return not (is_more and node.refusal(piece, shape)) and not who.is_kept_out(node, piece)

        return together(shape.pieces, places, candidates, takes, self.scorer.score)

    def apart(self, shape: Shape) -> tuple[Piece, ...]:
        """The pieces, for a plan that gives each a node of its own.

        Those that not even the idle cluster has nodes of their own for are joined, in one way of several.
        """
        pieces = shape.pieces
        if len(pieces) < 2 or shape.procs or shape.may_share:
            return pieces
        known = self._apart.get(shape.fit)
        if known is None:
            capable = [self.capable(piece, shape) for piece in pieces]
            is_possible = _matched(pieces, [[node.index for node in nodes] for nodes in capable]) is not None
            known = self._apart[shape.fit] = pieces if is_possible else self._joined(pieces, capable)
        return known

    def _joined(self, pieces: tuple[Piece, ...], capable: list[tuple[NodeLedger, ...]]) -> tuple[Piece, ...]:
        def takes(node: NodeLedger, piece: Piece, _is_more: bool) -> bool:
            return not node.too_small(piece)

        places = sorted(range(len(pieces)), key=lambda place: len(capable[place]))
        found = together(pieces, places, lambda place: capable[place], takes, lambda node, _: node.index)
        if found is None:
            return pieces
        joined: Counter[Piece] = Counter()
        for node, piece in found:
            if piece not in pieces and piece.name is not None:
                piece = replace(piece, name=str(node.name), properties=frozenset())
            joined[replace(piece, count=1, load=None)] += 1
        return tuple(replace(piece, count=n) for piece, n in joined.items())

    def _match(self, shape: Shape, who: Who) -> Parts | None:
        """Choosing greedily failed: try every exchange (augmenting paths) before giving up."""
        options = [
            [node.index for node in self.candidates(shape, place) if not who.is_kept_out(node, piece)]
            for place, piece in enumerate(shape.pieces)
        ]
        matched = _matched(shape.pieces, options)
        return None if matched is None else [(self.ledger.nodes[i], shape.pieces[p]) for p, i in matched]


def _matched(pieces: tuple[Piece, ...], options: list[list[int]]) -> list[tuple[int, int]] | None:
    """For each share of each piece a node of its own, as (piece, node); None: there are too few."""
    wanted = [place for place, piece in enumerate(pieces) for _ in range(piece.count)]
    owner: dict[int, int] = {}
    for seeker in range(len(wanted)):
        if not _augment(seeker, wanted, options, owner):
            return None
    node_of = {seeker: index for index, seeker in owner.items()}
    return [(place, node_of[i]) for i, place in enumerate(wanted)]


def _augment(seeker: int, wanted: list[int], options: list[list[int]], owner: dict[int, int]) -> bool:
    """Give the seeker a node, moving others along a path of exchanges, breadth first."""
    came_from: dict[int, int] = {}
    queue = [seeker]
    for current in queue:
        for index in options[wanted[current]]:
            if index in came_from:
                continue
            came_from[index] = current
            holder = owner.get(index)
            if holder is not None:
                queue.append(holder)
                continue
            _hand_over(index, seeker, came_from, owner)
            return True
    return False


def _hand_over(index: int, seeker: int, came_from: dict[int, int], owner: dict[int, int]) -> None:
    """Walk the path back: each on it takes the node it reached and gives up the one it had."""
    held = {holder: node for node, holder in owner.items()}
    while True:
        current = came_from[index]
        owner[index] = current
        if current == seeker:
            return
        index = held[current]


def _is_host(node: NodeLedger, host: str) -> bool:
    """``host=`` names a node with or without its domain, several joined by ``+``."""
    short = node.name.partition(".")[0]
    return any(name in {node.name, short} for name in host.replace(",", "+").split("+"))


def _opsys(node: NodeLedger) -> str:
    status = node.node.status
    return status.values.get("opsys", "").lower() if status is not None else ""
