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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from torque_sched.decide.context import Context, Pause
from torque_sched.decide.ledger import Ledger
from torque_sched.decide.needs import Fit, ResourceChunk, Shape, joined, matches, times
from torque_sched.decide.node_ledger import NodeLedger
from torque_sched.model.cluster import Job, NodeName
from torque_sched.model.decisions import NodeShare, Start

if TYPE_CHECKING:
    from torque_sched.decide.table import Booking


class Scorer(Protocol):
    """Ranks nodes for one cycle. A node's score may depend on that node and the piece only."""

    def score(self, node: NodeLedger, piece: ResourceChunk) -> float:
        """The smaller the better; equal scores go in the order of the server's nodes file."""
        ...

    def terms(self, node: NodeLedger, piece: ResourceChunk) -> tuple[tuple[str, float], ...]:
        """The figures behind the score, by name, for `explain`."""
        ...


class Placement(Protocol):
    """Where a job would run best."""

    def scorer(self, nodes: Sequence[NodeLedger], context: Context) -> Scorer:
        """The ranking for one cycle over these nodes."""
        ...


@dataclass(frozen=True, slots=True)
class Placed:
    """Nodes found for a job; the first becomes mother superior."""

    parts: tuple[tuple[NodeLedger, ResourceChunk], ...]
    score: float

    def start(self, job: Job) -> Start:
        """The decision to start the job there."""
        shares = tuple(NodeShare(node.name, piece.slots, piece.gpus) for node, piece in self.parts)
        return Start(job.id, merged(shares), self.score)


@dataclass(frozen=True, slots=True)
class StartNow:
    """A start that is possible now: its nodes, and what it takes of the table of the future."""

    placed: Placed
    booking: Booking


def merged(shares: tuple[NodeShare, ...]) -> tuple[NodeShare, ...]:
    """Shares of one node joined, in the order in which the nodes first appear."""
    if len(shares) < 2:
        return shares
    by_node: dict[str, NodeShare] = {}
    for share in shares:
        before = by_node.get(share.node)
        if before is not None:
            share = NodeShare(share.node, before.slots + share.slots, before.gpus + share.gpus)
        by_node[share.node] = share
    return tuple(by_node.values())


Parts = list[tuple[NodeLedger, ResourceChunk]]


@dataclass(frozen=True, slots=True)
class SearchConstraints:
    """What of a job matters beside its shape."""

    user: str
    now_s: float
    until_s: float
    pauses: Mapping[NodeName, Pause]
    has_capacity: Callable[[int, ResourceChunk], bool] | None = None
    """Whether the node of this index takes it beside what is planned there; None: as its account says."""

    def is_kept_out(self, node: NodeLedger, piece: ResourceChunk) -> bool:
        """Whether time or an earlier failure keeps this job from a node that fits."""
        if self.has_capacity is not None and not self.has_capacity(node.index, piece):
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

    def best(self, n: int, who: SearchConstraints, taken: set[int]) -> list[tuple[float, NodeLedger]]:
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
        self._has_parts = any(node.parts is not None for node in ledger.nodes)
        self._has_own = any(node.node.only_for for node in ledger.nodes)
        self._capable: dict[tuple[object, ...], tuple[NodeLedger, ...]] = {}
        self._least_memory: dict[int, float] = {}
        self._capable_indices: dict[int, frozenset[int]] = {}
        self._apart: dict[Fit, tuple[ResourceChunk, ...]] = {}
        self._candidates: dict[tuple[Fit, int], tuple[list[NodeLedger], int]] = {}
        """By fit and piece: nodes that took it when last asked, and how many had changed by then."""
        self._rankings: dict[tuple[Shape, int], Ranking] = {}
        self._groups: dict[Shape, tuple[Shape, ...]] = {}

    def who(self, job: Job, until_s: float) -> SearchConstraints:
        """What of this job matters beside its shape."""
        pauses = self._pauses.get(job.id, {})
        return SearchConstraints(job.user, self.ledger.snapshot.now_s, until_s, pauses)

    def matching(self, piece: ResourceChunk, shape: Shape) -> tuple[NodeLedger, ...]:
        """Nodes of the right name and kind, whatever their size."""
        is_node = piece.name is not None and piece.name in self._names
        key = ("kind", piece.name, piece.properties, shape.host, shape.opsys)
        found = self._capable.get(key)
        is_asked = bool(piece.name or piece.properties or shape.host or shape.opsys or self._has_own)
        if found is None and not is_asked:
            found = self._capable[key] = self.ledger.nodes
        if found is None:
            found = self._capable[key] = tuple(
                node
                for node in self.ledger.nodes
                if matches(piece, node.name, node.properties, is_node)
                and (shape.host is None or _is_host(node, shape.host))
                and (not node.node.only_for or node.node.only_for in piece.properties)
                and (not shape.opsys or operating_system(node) in {"", shape.opsys.lower()})
            )
        return found

    def capable(self, piece: ResourceChunk, shape: Shape) -> tuple[NodeLedger, ...]:
        """Matching nodes that could run the piece when idle."""
        of_kind = self.matching(piece, shape)
        key: tuple[object, ...] = (id(of_kind), piece.slots, piece.gpus)
        found = self._capable.get(key)
        if found is None:
            wide = tuple(n for n in of_kind if n.slots >= piece.slots and n.node.gpus >= piece.gpus)
            found = self._capable[key] = of_kind if len(wide) == len(of_kind) else wide
        if self._has_parts:
            key = (id(found), piece)
            whole = self._capable.get(key)
            if whole is None:
                whole = self._capable[key] = tuple(n for n in found if not n.too_small(piece))
            return whole
        if piece.others:
            key = (id(found), piece.mem_bytes, piece.vmem_bytes, piece.others)
            known = self._capable.get(key)
            if known is None:
                known = self._capable[key] = tuple(n for n in found if not n.too_small(piece))
            return known
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
        large = self._capable.get(key)
        if large is None:
            large = self._capable[key] = tuple(n for n in found if not n.too_small(piece))
        return large

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
            nodes = self.with_free_slots(piece, shape)
        found = [node for node in nodes if node.refusal(piece, shape) is None]
        self._candidates[shape.fit, place] = (found, changed)
        return found

    def with_free_slots(self, piece: ResourceChunk, shape: Shape) -> list[NodeLedger]:
        """Capable nodes that are open and have the slots, or had them earlier in this cycle."""
        capable = self.capable(piece, shape)
        free = self.ledger.with_free_slots(piece.slots)
        if len(capable) == len(self.ledger.nodes):
            return free
        if len(capable) <= len(free):
            return [node for node in capable if node.blocked is None and node.slots_free >= piece.slots]
        indices = self._capable_indices.get(id(capable))
        if indices is None:
            indices = self._capable_indices[id(capable)] = frozenset(node.index for node in capable)
        return [node for node in free if node.index in indices]

    def find(self, job: Job, shape: Shape, until_s: float) -> Placed | None:
        """The best nodes for the job now; None: it does not fit now."""
        if self.is_hopeless(job, shape, until_s):
            return None
        who = self.who(job, until_s)
        placed = self.find_for(who, shape)
        if placed is None and not who.pauses:
            # Free amounts only shrink: what did not fit now fits no longer job of this shape either.
            shape.fit.hopeless_s[self._alike(job)] = until_s
        return placed

    def is_hopeless(self, job: Job, shape: Shape, until_s: float) -> bool:
        """Whether there surely are no nodes now, without a look at what is expected of the job."""
        hopeless_s = shape.fit.hopeless_s.get(self._alike(job))
        if hopeless_s is not None and until_s >= hopeless_s:
            return True
        if len(shape.pieces) > 1 or shape.procs or shape.may_share:
            return False
        self.prepare(shape)
        return len(self.candidates(shape, 0)) < shape.pieces[0].count

    def _alike(self, job: Job) -> str:
        return job.user if self._has_reservations else ""

    def find_for(self, who: SearchConstraints, shape: Shape) -> Placed | None:
        """The best nodes now, whatever was found for jobs of this shape before."""
        if shape.node_group:
            found = [placed for each in self.groups(shape) if (placed := self._find(who, each)) is not None]
            return min(found, key=lambda placed: placed.score, default=None)
        return self._find(who, shape)

    def groups(self, shape: Shape) -> tuple[Shape, ...]:
        """The shape on the nodes of each value of its group alone, those first that have most of them."""
        known = self._groups.get(shape)
        if known is None:
            values: Counter[str] = Counter()
            for node in self.ledger.nodes:
                values.update(each for each in node.properties if each.startswith(f"{shape.node_group}="))
            known = self._groups[shape] = tuple(
                replace(
                    shape, node_group="", fit=Fit(shape.fit.may_use_kept),
                    pieces=tuple(replace(p, properties=p.properties | {value}) for p in shape.pieces),
                )
                for value in sorted(values, key=lambda value: (-values[value], value))
            )  # fmt: skip
        return known

    def _find(self, who: SearchConstraints, shape: Shape) -> Placed | None:
        self.prepare(shape)
        if shape.procs or shape.may_share:
            parts = Spread(self.ledger, self.scorer, who.is_kept_out).find(shape, self._nodes_by_piece(shape))
            if parts is None and shape.mixes_tasks and len(shape.pieces) > 1:
                parts = self._find_packed(shape, who)
        else:
            parts = self._find_apart(shape, who)
        if parts is None:
            return None
        score = math.fsum(self.scorer.score(node, piece) for node, piece in parts) / len(parts)
        return Placed(tuple(parts), score)

    def _nodes_by_piece(self, shape: Shape) -> list[tuple[ResourceChunk, list[NodeLedger]]]:
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
        if not self.ledger.keeps_slots:
            return
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
                left = node.slots - min(node.kept_per_gpu * node.node.gpus, node.slots - 1)
                if left >= piece.slots:
                    open_to_it.add(node.index)
                    wanted -= left // piece.slots if may_share else 1
            is_too_wide |= wanted > 0
        if is_too_wide or (not may_share and len(open_to_it) < shape.n_shares and not names):
            shape.fit.may_use_kept = True

    def _find_apart(self, shape: Shape, who: SearchConstraints) -> Parts | None:
        """Every piece on a node of its own, if possible; the pieces with the fewest nodes choose first."""
        if len(shape.pieces) == 1:
            if len(self.candidates(shape, 0)) < shape.pieces[0].count:
                return None
            best = self._ranking(shape, 0).best(shape.pieces[0].count, who, set())
            is_enough = len(best) == shape.pieces[0].count
            return [(node, shape.pieces[0]) for _, node in best] if is_enough else None
        places = sorted(range(len(shape.pieces)), key=lambda i: len(self.capable(shape.pieces[i], shape)))
        taken: set[int] = set()
        chosen: dict[int, list[NodeLedger]] = {}
        for place in places:
            best = self._ranking(shape, place).best(shape.pieces[place].count, who, taken)
            if len(best) < shape.pieces[place].count:
                together = None if shape.is_scattered else self._find_together
                return self._match(shape, who) or (together and together(shape, who, places))
            chosen[place] = [node for _, node in best]
            taken.update(node.index for node in chosen[place])
        return [(node, shape.pieces[place]) for place in sorted(chosen) for node in chosen[place]]

    def _find_together(self, shape: Shape, who: SearchConstraints, places: list[int]) -> Parts | None:
        def candidates(place: int) -> list[NodeLedger]:
            return self.candidates(shape, place)

        def takes(node: NodeLedger, piece: ResourceChunk, is_more: bool) -> bool:
            return not (is_more and node.refusal(piece, shape)) and not who.is_kept_out(node, piece)

        return together(shape.pieces, places, candidates, takes, self.scorer.score)

    def apart(self, shape: Shape) -> tuple[ResourceChunk, ...]:
        """The pieces, for a plan that gives each a node of its own.

        Those that not even the idle cluster has nodes of their own for are joined, in one way of several.
        """
        pieces = shape.pieces
        if len(pieces) < 2 or shape.procs or shape.may_share or shape.is_scattered:
            return pieces
        known = self._apart.get(shape.fit)
        if known is None:
            capable = [self.capable(piece, shape) for piece in pieces]
            is_possible = _matched(pieces, [[node.index for node in nodes] for nodes in capable]) is not None
            known = self._apart[shape.fit] = pieces if is_possible else self._joined(pieces, capable)
        return known

    def has_nodes_apart(self, shape: Shape) -> bool:
        """Whether the idle cluster has a node of its own for each piece."""
        capable = [[node.index for node in self.capable(piece, shape)] for piece in shape.pieces]
        return _matched(shape.pieces, capable) is not None

    def _joined(
        self, pieces: tuple[ResourceChunk, ...], capable: list[tuple[NodeLedger, ...]]
    ) -> tuple[ResourceChunk, ...]:
        def takes(node: NodeLedger, piece: ResourceChunk, _is_more: bool) -> bool:
            return not node.too_small(piece)

        places = sorted(range(len(pieces)), key=lambda place: len(capable[place]))
        found = together(pieces, places, lambda place: capable[place], takes, lambda node, _: node.index)
        if found is None:
            return pieces
        joined: Counter[ResourceChunk] = Counter()
        for node, piece in found:
            if piece not in pieces and piece.name is not None:
                piece = replace(piece, name=str(node.name), properties=frozenset())
            joined[replace(piece, count=1, load=None)] += 1
        return tuple(replace(piece, count=n) for piece, n in joined.items())

    def _find_packed(self, shape: Shape, who: SearchConstraints) -> Parts | None:
        """Pieces of several kinds that may share nodes: the largest first, on nodes in use before others."""
        held: dict[int, ResourceChunk] = {}
        pieces = shape.pieces
        places = sorted(range(len(pieces)), key=lambda i: (-pieces[i].gpus, -pieces[i].slots, i))
        for place in places:
            piece, left = pieces[place], pieces[place].count
            nodes = self.candidates(shape, place)
            for node in sorted(
                nodes, key=lambda n: (n.index not in held, self.scorer.score(n, piece), n.index)
            ):
                before = held.get(node.index)

                def whole(n: int) -> ResourceChunk:
                    more = times(piece, n)  # noqa: B023 -- used within this turn of the loop
                    return more if before is None else joined(before, more)  # noqa: B023

                n = _most(left, lambda n: self._takes(node, whole(n), shape, who))  # noqa: B023
                if n:
                    held[node.index] = whole(n)
                    left -= n
                if not left:
                    break
            if left:
                return None
        return [(self.ledger.nodes[index], piece) for index, piece in held.items()]

    def _takes(self, node: NodeLedger, piece: ResourceChunk, shape: Shape, who: SearchConstraints) -> bool:
        return node.refusal(piece, shape) is None and not who.is_kept_out(node, piece)

    def _match(self, shape: Shape, who: SearchConstraints) -> Parts | None:
        """Choosing greedily failed: try every exchange (augmenting paths) before giving up."""
        options = [
            [node.index for node in self.candidates(shape, place) if not who.is_kept_out(node, piece)]
            for place, piece in enumerate(shape.pieces)
        ]
        matched = _matched(shape.pieces, options)
        return None if matched is None else [(self.ledger.nodes[i], shape.pieces[p]) for p, i in matched]


def _matched(pieces: tuple[ResourceChunk, ...], options: list[list[int]]) -> list[tuple[int, int]] | None:
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


def operating_system(node: NodeLedger) -> str:
    """As the node reported it; empty: it did not."""
    status = node.node.status
    return status.values.get("opsys", "").lower() if status is not None else ""


_Rank = Callable[[bool, NodeLedger, ResourceChunk], tuple[float, ...]]


def together(
    pieces: Sequence[ResourceChunk],
    places: Sequence[int],
    candidates: Callable[[int], Iterable[NodeLedger]],
    takes: Callable[[NodeLedger, ResourceChunk, bool], bool],
    score: Callable[[NodeLedger, ResourceChunk], float],
) -> list[tuple[NodeLedger, ResourceChunk]] | None:
    """Nodes that may take several pieces of a job, in the order of the request; None: none were found.

    A request of two chunks, two nodes with two slots each and one with a GPU, needs two nodes, not three: the
    server keeps the nodes of one chunk apart, but not those of several (observed on Torque 6.1.3 and 4.2.10).

    Finding some where there are any is bin packing. Tried are spreading, piling, and last the server's own
    first fit, so that a job it would start by itself is started here, too.

    Args:
        pieces: of the job.
        places: the pieces' indices, those with the fewest nodes first.
        candidates: the nodes that take a piece by itself, in the server's order.
        takes: whether such a node takes this; last: whether it is more than the piece by itself.
        score: the smaller the better.
    """

    def spread(is_used: bool, node: NodeLedger, piece: ResourceChunk) -> tuple[float, ...]:
        return is_used, score(node, piece), node.index

    def pile(is_used: bool, node: NodeLedger, piece: ResourceChunk) -> tuple[float, ...]:
        return not is_used, score(node, piece), node.index

    def first(_is_used: bool, node: NodeLedger, _piece: ResourceChunk) -> tuple[float, ...]:
        return (node.index,)

    def place_all(order: Sequence[int], rank: _Rank) -> list[tuple[NodeLedger, ResourceChunk]] | None:
        held: dict[int, ResourceChunk] = {}
        chosen: dict[int, list[NodeLedger]] = {}
        for place in order:
            piece = pieces[place]
            fitting: list[tuple[tuple[float, ...], NodeLedger, ResourceChunk]] = []
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


class Spread:
    """As few nodes as possible: the best that takes all, else the one that takes most; again for the rest."""

    def __init__(
        self, ledger: Ledger, scorer: Scorer, is_kept_out: Callable[[NodeLedger, ResourceChunk], bool]
    ) -> None:
        self._ledger, self._scorer, self._is_kept_out = ledger, scorer, is_kept_out

    def find(
        self, shape: Shape, candidates: Sequence[tuple[ResourceChunk, list[NodeLedger]]]
    ) -> list[tuple[NodeLedger, ResourceChunk]] | None:
        """Nodes with what each takes; several kinds of pieces never share a node here."""
        taken: set[int] = set()
        parts: list[tuple[NodeLedger, ResourceChunk]] = []
        for piece, nodes in candidates:
            found = self._fill(shape, piece, [node for node in nodes if node.index not in taken])
            if found is None:
                return None
            parts += found
            taken.update(node.index for node, _ in found)
        return parts

    def _fill(
        self, shape: Shape, piece: ResourceChunk, nodes: Sequence[NodeLedger]
    ) -> list[tuple[NodeLedger, ResourceChunk]] | None:
        left = piece.count
        parts: list[tuple[NodeLedger, ResourceChunk]] = []
        if shape.gpus_anywhere:
            found = self._with_gpus(shape, piece, nodes)
            if found is None:
                return None
            parts, left = found
            if left < 0:
                return None
        used = {node.index for node, _ in parts}
        open_nodes = [node for node in nodes if node.index not in used and self._takes(node, piece, shape)]
        ranked = (
            [
                (-self._most(node, piece, shape, left), self._scorer.score(node, piece), node.index)
                for node in open_nodes
            ]
            if left
            else []
        )
        heapq.heapify(ranked)
        while left and ranked:
            # All that take the rest are alike; the placement says which is best.
            whole = [item for item in ranked if -item[0] >= left]
            most, _, index = min(whole, key=lambda item: item[1:]) if whole else heapq.heappop(ranked)
            n = min(-most, left)
            parts.append((self._ledger.nodes[index], times(piece, n)))
            left -= n
        return None if left else parts

    def _with_gpus(
        self, shape: Shape, piece: ResourceChunk, nodes: Sequence[NodeLedger]
    ) -> tuple[list[tuple[NodeLedger, ResourceChunk]], int] | None:
        """The GPUs of ``-l procs=N,gpus=M``: as few nodes as possible, and those that take most of N.

        The processors of a node without the GPUs cannot use them.
        """
        gpus, left = shape.gpus_anywhere, piece.count
        parts: list[tuple[NodeLedger, ResourceChunk]] = []
        one, plain = replace(piece, gpus=1), replace(piece, gpus=0)
        most = {
            node.index: self._most(node, plain, shape, left)
            for node in nodes
            if self._takes(node, one, shape)
        }
        fitting = [node for node in nodes if node.index in most]
        fitting.sort(
            key=lambda node: (
                -min(_clean_gpus(node), gpus), -most[node.index], self._scorer.score(node, one), node.index
            )
        )  # fmt: skip
        for node in fitting:
            if not gpus or not left:
                break
            here = min(gpus, _clean_gpus(node))
            gpus -= here
            # Processors are left over for the GPUs that still have no node.
            n = min(most[node.index], left if not gpus else 1)
            parts.append((node, times(piece, n, here)))
            left -= n
        return None if gpus else (parts, left)

    def _takes(self, node: NodeLedger, piece: ResourceChunk, shape: Shape) -> bool:
        return node.refusal(piece, shape) is None and not self._is_kept_out(node, piece)

    def _most(self, node: NodeLedger, piece: ResourceChunk, shape: Shape, limit: int) -> int:
        """How many pieces the node takes; at least one, which was asked before."""
        high = min(limit, max(1, node.slots_free // piece.slots))
        return max(1, _most(high, lambda n: self._takes(node, times(piece, n), shape)))


def _most(limit: int, takes: Callable[[int], bool]) -> int:
    """The largest number up to ``limit`` that is taken, where each smaller one is, too; 0: none."""
    if takes(limit):
        return limit
    low, high = 0, limit - 1
    while low < high:
        middle = (low + high + 1) // 2
        if takes(middle):
            low = middle
        else:
            high = middle - 1
    return low


def _clean_gpus(node: NodeLedger) -> int:
    """Free GPUs that may be handed out: the server gives the lowest first."""
    clean = next((i for i, ok in enumerate(node.gpus_clean) if not ok), len(node.gpus_clean))
    return min(clean, node.gpus_free)
