"""Where a job could run: the ways to try, best first, from what the sites offer.

As the grid paper orders them: one site before several, and fewer blocks before more. Home comes before
another site, and of others the one with the most free nodes. A job of f blocks is believed to run T *
f**p.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate

from torque_sched.core.grid.formulas import SplitCost
from torque_sched.core.handshake import Ask, Candidate, Piece, SiteId
from torque_sched.core.model import Job
from torque_sched.site.config import SiteConfig
from torque_sched.site.messages import Offered

__all__ = ["MARGIN_S", "Wish", "candidates", "wish_of"]

MARGIN_S = 30.0
"""A claim ends so much later than its block has to."""
_MOST_NODES = 20_000


@dataclass(frozen=True, slots=True)
class Wish:
    """What a job asks for: so many nodes with so many slots each, for so long."""

    nodes: int
    ppn: int
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
        return "ask for it as nodes=N:ppn=P"
    chunk = request.chunks[0]
    if chunk.gpus or chunk.mics or chunk.properties or chunk.name:
        return "nodes=N:ppn=P without names, properties and GPUs"
    if job.walltime_s is None or job.walltime_s <= 0:
        return "give a walltime"
    return Wish(int(nodes) if nodes else chunk.count, chunk.ppn, job.walltime_s)


def candidates(
    config: SiteConfig, wish: Wish, offers: Mapping[str, Offered], now_s: float
) -> tuple[Candidate, ...]:
    """The ways to run it, best first; none when it has to wait.

    One site now, several sites now, and, where the settings allow it, one site later.
    """
    cost = SplitCost(
        config.grid.split_formula, config.grid.split_overhead, config.grid.max_blocks, config.grid.min_gain
    )

    def way(parts: Mapping[str, int], start_s: float = now_s) -> Candidate:
        asks = tuple(Ask(SiteId(site), (Piece("", wish.ppn, count=n),)) for site, n in sorted(parts.items()))
        length_s = cost.length_s(wish.length_s, len(parts)) + config.grid.start_s + MARGIN_S
        return Candidate(asks, start_s, length_s)

    free = {site: offered.free for site, offered in offers.items() if offered.free > 0}
    whole = [site for site in free if free[site] >= wish.nodes]
    ways = [way({site: wish.nodes}) for site in sorted(whole, key=lambda s: (s != config.name, -free[s], s))]
    later = sorted(
        (offered.earliest_s, site != config.name, site)
        for site, offered in offers.items()
        if offered.earliest_s is not None and offered.earliest_s > now_s
    )
    whole_end_s = math.inf
    if whole or later:
        whole_end_s = (now_s if whole else later[0][0]) + wish.length_s
    parts = _parts(config, wish.nodes, free)
    if parts and _is_worth_it(cost, wish.length_s, len(parts), now_s, whole_end_s):
        ways.append(way(parts))
    if not ways:
        until_s = now_s + config.grid.reserve_hours * 3600.0
        ways = [way({site: wish.nodes}, at_s) for at_s, _, site in later if at_s <= until_s]
    return tuple(ways)


def _is_worth_it(cost: SplitCost, length_s: float, f: int, now_s: float, whole_end_s: float) -> bool:
    """The gain rule: a split job also takes more from all others, so it has to end that much earlier."""
    longer_s = cost.length_s(length_s, f) - length_s
    return whole_end_s - (now_s + length_s + longer_s) >= cost.min_gain * longer_s


def _parts(config: SiteConfig, nodes: int, free: Mapping[str, int]) -> dict[str, int]:
    """The fewest sites, at least two, that have so many nodes now; none when they have not."""
    by_size = sorted(free, key=lambda site: (-free[site], site != config.name, site))
    reach = list(accumulate(free[site] for site in by_size))
    for n_blocks in range(2, min(config.grid.max_blocks, len(by_size), nodes) + 1):
        if reach[n_blocks - 1] >= nodes:
            return _split(nodes, {site: free[site] for site in by_size[:n_blocks]})
    return {}


def _split(nodes: int, free: Mapping[str, int]) -> dict[str, int]:
    """The biggest first, but every block has at least one node."""
    parts, left = {}, nodes
    sites = list(free)
    for place, site in enumerate(sites):
        parts[site] = min(free[site], left - (len(sites) - 1 - place))
        left -= parts[site]
    return parts
