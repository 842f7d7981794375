"""Nodes for a grid job: the offers of one site, and the choice that the job's home makes among all offers.

The grid gets whole nodes, with all their slots and GPUs. A node is free for a claim when nothing runs on it
at any time of the claim, as far as the jobs' limits tell, and nobody has reserved it. An offer binds nobody.

Home orders the ways to run a job as the grid paper does: one site now, several sites now, one site later,
several sites later. Fewer blocks come before more, home before another site, and of others the one with the
most free nodes. A job of f blocks counts as T * f**p long (`SplitCost`), and a split must be worth it (its
gain rule).
"""

from __future__ import annotations

import bisect
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from torque_sched.grid.handshake.blocks import Admission, Denial
from torque_sched.grid.handshake.coordinator import Ask, Candidate
from torque_sched.grid.handshake.holder import FreeCapacity, Grant
from torque_sched.grid.handshake.messages import Claim, Piece, SiteId, Token
from torque_sched.grid.search import SplitCost, split_blocks
from torque_sched.grid.site.config import SiteConfig
from torque_sched.grid.site.messages import MOST_STEPS, Offer, Offered, Outlook
from torque_sched.model.cluster import Job, Node, NodeName
from torque_sched.model.snapshot import Reservation, Snapshot

_NO_LIMIT_S = 365 * 86400.0
_LATE_S = 60.0
"""A job past its limit is believed to run for so long still."""


@dataclass(frozen=True, slots=True)
class NodeShape:
    """What a node must have."""

    slots: int
    gpus: int = 0
    properties: tuple[str, ...] = ()


@dataclass
class NodeInventory:
    """The holder's `Inventory`; `renew` it under the cycle's lock before anything is decided on it."""

    _busy: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    _granted: dict[tuple[str, str], dict[str, list[tuple[float, float]]]] = field(default_factory=dict)
    """Home and job -> node -> when it is kept for it."""
    _nodes: dict[str, Node] = field(default_factory=dict)

    def renew(
        self, snapshot: Snapshot, reservations: Iterable[Reservation], grants: Iterable[Grant] = ()
    ) -> None:
        """Take in a look, the reservations that are not the holder's own, and what the holder has granted."""
        whole = (node for node in snapshot.nodes if node.is_up and not node.only_for)
        self._nodes = {node.name: node for node in whole if node.slots}
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

    def spare(self, node: str, start_s: float, end_s: float) -> FreeCapacity:
        """All of a node, or nothing; as `Inventory` says."""
        found = self._nodes.get(node)
        if found is None or any(begun < end_s and start_s < over for begun, over in self._spans(node)):
            return FreeCapacity(0)
        return FreeCapacity(found.slots, found.gpus)

    def nodes(self, claim: Claim) -> tuple[str, ...]:
        """Nodes for the pieces that name none; as `Inventory` says."""
        shape = NodeShape(
            max(piece.slots for piece in claim.pieces),
            max(piece.gpus for piece in claim.pieces),
            tuple(name for piece in claim.pieces for name in piece.properties),
        )
        return tuple(self.free(shape, claim.start_s, claim.end_s))

    def usable(self, shape: NodeShape) -> list[str]:
        """Nodes that are up and have what it takes, in the server's order."""
        wanted = frozenset(shape.properties)
        return [
            name
            for name, node in self._nodes.items()
            if node.slots >= shape.slots and node.gpus >= shape.gpus and wanted <= _words(node)
        ]

    def free(self, shape: NodeShape, start_s: float, end_s: float) -> list[str]:
        """Nodes free for the whole time."""
        return [name for name in self.usable(shape) if self.spare(name, start_s, end_s).slots]

    def outlook(
        self, shape: NodeShape, length_s: float, now_s: float, most: int, but: tuple[str, str] | None = None
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


def _words(node: Node) -> set[str]:
    """The properties of a node as sites ask for them: of OpenPBS's ``feature=fast`` and ``big=True`` too."""
    return {*node.properties, *map(_word, node.properties)}


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


def offered(
    inventory: NodeInventory,
    admission: Admission,
    grants: Sequence[Grant],
    peer: SiteId,
    asked: Offer,
    now_s: float,
) -> Offered:
    """For each length from when on how many nodes this user could have, and why not as many as asked for.

    Args:
        inventory: of the last look.
        admission: the rules for peers.
        grants: what is kept for others already.
        peer: who asks.
        asked: what for.
        now_s: seconds since the epoch.
    """
    token, shape = Token(peer, asked.job, 1), NodeShape(asked.ppn, asked.gpus, asked.properties)
    most_steps = MOST_STEPS // len(asked.lengths_s)

    def denied(n: int, length_s: float) -> str:
        claim = Claim((Piece("", asked.ppn, asked.gpus, n),), now_s, length_s)
        allowed = admission.admit(peer, token, asked.user, claim, grants)
        return allowed.why if isinstance(allowed, Denial) else ""

    def outlook(length_s: float) -> tuple[tuple[float, int], ...]:
        counts = range(1, asked.nodes + 1)
        most = bisect.bisect_left(counts, True, key=lambda n: bool(denied(n, length_s)))
        return tuple(inventory.outlook(shape, length_s, now_s, most, (peer, asked.job))[:most_steps])

    why = denied(asked.nodes, asked.lengths_s[0])
    return Offered(outlooks=tuple(outlook(length_s) for length_s in asked.lengths_s), why=why[:500])


MARGIN_S = 30.0
"""A claim ends so much later than its block has to."""
_MOST_NODES = 20_000
_PROPERTY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}", re.ASCII)
_OF_ONE_NODE = frozenset({"host", "vnode"})
_LATER_WAYS = 3
"""Common starts tried for each number of blocks: when a site refuses the first, the next."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What a job asks for: so many nodes of this shape, for so long."""

    nodes: int
    shape: NodeShape
    length_s: float


def wish_of(job: Job, nodes: str = "") -> Wish | str:
    """What a job asks for; a text says why the grid cannot give it.

    Args:
        job: held and marked.
        nodes: instead of its own number of nodes, for one that is too large for the home server's qsub.
    """
    request = job.request
    if job.user in {"root", ""}:
        return "root has no jobs in the grid"
    if nodes and not (nodes.isascii() and nodes.isdigit() and 0 < int(nodes) <= _MOST_NODES):
        return f"{nodes[:20]!r} is no number of nodes"
    if request.trouble:
        return request.trouble
    if job.array is not None or job.depend or job.interactive:
        return "arrays, interactive jobs and jobs with dependencies run at home"
    # Chunks that OpenPBS may place freely may as well lie on a node each.
    chunks = request.tasks if request.mixes_tasks and not request.chunks else request.chunks
    if len(chunks) != 1 or (request.tasks and chunks is not request.tasks) or request.procs or request.gres:
        return "ask for it as nodes=N:ppn=P[:gpus=G][:PROPERTY...], or as one kind of chunk of a select"
    chunk = chunks[0]
    if chunk.mics or chunk.name or chunk.gpu_mode or chunk.resets_gpu_errors:
        return "nodes=N:ppn=P[:gpus=G][:PROPERTY...] without names and modes"
    if chunk.mem_bytes or chunk.others or request.node_group:
        return "mem, group and resources of this site's own are not known elsewhere: leave them out"
    properties = tuple(_word(each) for each in chunk.properties)
    if not all(properties):
        return "of properties each node may have NAME=VALUE or NAME=True, but no host and no vnode"
    if job.walltime_s is None or job.walltime_s <= 0:
        return "give a walltime"
    shape = NodeShape(chunk.slots, chunk.gpus, properties)
    return Wish(int(nodes) if nodes else chunk.count, shape, job.walltime_s)


def _word(text: str) -> str:
    """A property as sites say it to each other, Torque's way; empty: it cannot be said.

    >>> _word("fast"), _word("feature=fast"), _word("big=True"), _word("big=False"), _word("host=n1")
    ('fast', 'fast', 'big', '', '')
    """
    name, sign, value = text.partition("=")
    if sign and (name in _OF_ONE_NODE or value == "False"):
        return ""
    word = value if sign and value != "True" else name
    return word if _PROPERTY.fullmatch(word) else ""


def _cost(config: SiteConfig) -> SplitCost:
    grid = config.grid
    return SplitCost(grid.split_formula, grid.split_overhead, grid.max_blocks, grid.min_gain)


def _claim_s(config: SiteConfig, wish: Wish, n_blocks: int) -> float:
    """How long a claim of a block is: it runs T', after a start that takes its time."""
    return _cost(config).length_s(wish.length_s, n_blocks) + config.grid.barrier_timeout_s + MARGIN_S


def offer_of(config: SiteConfig, wish: Wish, user: str, job: str) -> Offer:
    """What sites are asked before a job is placed."""
    shape = wish.shape
    counts = range(1, min(config.grid.max_blocks, wish.nodes) + 1)
    return Offer(
        user=user, job=job, nodes=wish.nodes, ppn=shape.slots, gpus=shape.gpus, properties=shape.properties,
        lengths_s=tuple(_claim_s(config, wish, f) for f in counts),
    )  # fmt: skip


class _Steps:
    """An outlook as the search for a common start wants it, for the length it was asked for."""

    def __init__(self, outlook: Outlook) -> None:
        self._starts_s = [at_s for at_s, _ in outlook]
        self._free = [n for _, n in outlook]

    def bottleneck(self, start_s: float, end_s: float, /) -> tuple[int, float]:
        """What could be had from then on, and until when a later start offers no more."""
        at = bisect.bisect_right(self._starts_s, start_s) - 1
        free = self._free[at] if at >= 0 else 0
        rise = next((i for i in range(at + 1, len(self._free)) if self._free[i] > free), None)
        return free, math.inf if rise is None else self._starts_s[rise]


@dataclass(frozen=True, slots=True)
class _Start:
    """A way with its score; smaller is better (`SplitCost.score_s`)."""

    score_s: float
    n_blocks: int
    start_s: float
    parts: Mapping[str, int]


class _Search:
    """Looks for starts in what the sites offer."""

    def __init__(self, config: SiteConfig, wish: Wish, offers: Mapping[str, Offered], now_s: float) -> None:
        self._home, self._wish, self._now_s, self._cost = config.name, wish, now_s, _cost(config)
        self._sites = sorted(offers, key=lambda site: (site != config.name, site))
        self._outlooks = [offers[site].outlooks for site in self._sites]
        self._most_blocks = min(config.grid.max_blocks, len(self._sites), wish.nodes)

    def _tables(self, n_blocks: int) -> list[_Steps]:
        """Of a site that answered for fewer lengths than were asked nothing is known for the others."""
        return [
            _Steps(outlooks[n_blocks - 1] if len(outlooks) >= n_blocks else ()) for outlooks in self._outlooks
        ]

    def _score_s(self, start_s: float, n_blocks: int) -> float:
        return self._cost.score_s(start_s, self._cost.length_s(self._wish.length_s, n_blocks))

    def whole(self) -> list[_Start]:
        """The earliest start at each site that can hold all of it; home first, then the emptiest."""
        found: list[tuple[tuple[float, bool, int], _Start]] = []
        for site, table in zip(self._sites, self._tables(1), strict=True):
            start_s, shares = split_blocks([table], self._wish.nodes, 1, 0.0, self._now_s, math.inf)
            if shares:
                parts = {site: self._wish.nodes}
                start = _Start(self._score_s(start_s, 1), 1, start_s, parts)
                rank = start_s, site != self._home, -table.bottleneck(start_s, start_s)[0]
                found.append((rank, start))
        return [start for _, start in sorted(found, key=lambda pair: pair[0])]

    def splits(self, n_blocks: int, not_before_s: float, no_later_s: float) -> Iterator[_Start]:
        """Common starts of so many blocks, one after the other."""
        tables = self._tables(n_blocks)
        while True:
            start_s, shares = split_blocks(tables, self._wish.nodes, n_blocks, 0.0, not_before_s, no_later_s)
            if len(shares) < 2:
                return
            parts = {self._sites[index]: n for index, n in shares}
            yield _Start(self._score_s(start_s, len(parts)), len(parts), start_s, parts)
            not_before_s = min(table.bottleneck(start_s, start_s)[1] for table in tables)
            if not_before_s == math.inf:
                return

    def candidates(self, until_s: float) -> Sequence[_Start]:
        """All ways; later starts only where none is now, and only until then."""
        whole = self.whole()
        best_s = min((start.score_s for start in whole), default=math.inf)
        counts = range(2, self._most_blocks + 1)
        now = [start for start in whole if start.start_s <= self._now_s]
        for f in counts:
            split = next(self.splits(f, self._now_s, self._now_s), None)
            if split is not None:
                now += [split] if split.score_s < best_s else []
                break
        if now:
            return now
        later = [start for start in whole if start.start_s <= until_s]
        for f in counts:
            for _, split in zip(range(_LATER_WAYS), self.splits(f, self._now_s, until_s), strict=False):
                later += [split] if split.score_s < best_s else []
        return sorted(later, key=lambda start: (start.score_s, start.n_blocks))


def candidates(
    config: SiteConfig, wish: Wish, offers: Mapping[str, Offered], now_s: float, *, may_reserve: bool = True
) -> tuple[Candidate, ...]:
    """The ways to run it, best first; none when it has to wait.

    Args:
        config: of this site.
        wish: the job's.
        offers: answers to `offer_of`, by site.
        now_s: seconds since the epoch.
        may_reserve: whether a start up to ``grid.reserve_hours`` later will do.
    """
    later_s = config.grid.reserve_hours * 3600.0 if may_reserve else 0.0
    shape = wish.shape

    def way(start: _Start) -> Candidate:
        asks = tuple(
            Ask(SiteId(site), (Piece("", shape.slots, shape.gpus, count=n, properties=shape.properties),))
            for site, n in sorted(start.parts.items())
        )
        return Candidate(asks, start.start_s, _claim_s(config, wish, start.n_blocks))

    return tuple(way(start) for start in _Search(config, wish, offers, now_s).candidates(now_s + later_s))
