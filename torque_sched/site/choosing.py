"""Where a job could run: the ways to try, best first, from what the sites offer.

As the grid paper orders them: one site now, several sites now, one site later, several sites later. Fewer
blocks come before more, home before another site, and of others the one with the most free nodes. A job of f
blocks is believed to run T * f**p (`SplitCost`), and a split must be worth it (its gain rule).
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from torque_sched.core.grid.formulas import SplitCost
from torque_sched.core.grid.search import split_blocks
from torque_sched.core.handshake import Ask, Candidate, Piece, SiteId
from torque_sched.core.model import Job
from torque_sched.site.books import Shape
from torque_sched.site.config import SiteConfig
from torque_sched.site.messages import Offer, Offered, Outlook

MARGIN_S = 30.0
"""A claim ends so much later than its block has to."""
_MOST_NODES = 20_000
_LATER_WAYS = 3
"""Common starts tried for each number of blocks: when a site refuses the first, the next."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What a job asks for: so many nodes of this shape, for so long."""

    nodes: int
    shape: Shape
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
    if len(request.chunks) != 1 or request.tasks or request.procs or request.gres:
        return "ask for it as nodes=N:ppn=P[:gpus=G][:PROPERTY...]"
    chunk = request.chunks[0]
    if chunk.mics or chunk.name or chunk.gpu_mode or chunk.resets_gpu_errors:
        return "nodes=N:ppn=P[:gpus=G][:PROPERTY...] without names and modes"
    if job.walltime_s is None or job.walltime_s <= 0:
        return "give a walltime"
    shape = Shape(chunk.ppn, chunk.gpus, chunk.properties)
    return Wish(int(nodes) if nodes else chunk.count, shape, job.walltime_s)


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
        user=user, job=job, nodes=wish.nodes, ppn=shape.ppn, gpus=shape.gpus, properties=shape.properties,
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
            Ask(SiteId(site), (Piece("", shape.ppn, shape.gpus, count=n, properties=shape.properties),))
            for site, n in sorted(start.parts.items())
        )
        return Candidate(asks, start.start_s, _claim_s(config, wish, start.n_blocks))

    return tuple(way(start) for start in _Search(config, wish, offers, now_s).candidates(now_s + later_s))
