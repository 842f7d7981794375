"""Finding room: one block on some cluster, or f blocks with a common start.

Fewest blocks first (more are only looked at where they may win), then the biggest free cluster, and no block
is empty.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from torque_sched.core.grid.model import FreeTable, Table


def fewest_blocks(capacities: Sequence[int], procs: int) -> int:
    """Into how many blocks a job must be split at least; 0 when all clusters together cannot hold it."""
    room = 0
    for n_blocks, capacity in enumerate(sorted(capacities, reverse=True), start=1):
        room += capacity
        if room >= procs:
            return n_blocks
    return 0


def one_block(
    tables: Sequence[FreeTable], procs: int, length_s: float, not_before_s: float, no_later_s: float
) -> tuple[float, int]:
    """Return the earliest start on one cluster and which; (inf, -1) when none starts by ``no_later_s``.

    Among clusters with the same start it is the one with the most free processors.
    """
    best_s, best, most = math.inf, -1, -1
    for index, table in enumerate(tables):
        if procs > table.capacity:
            continue
        start_s = table.earliest(procs, length_s, not_before_s, no_later_s)
        if start_s < best_s:
            best_s, best, most = start_s, index, -1
            no_later_s = start_s
        elif start_s == math.inf or start_s > best_s:
            continue
        else:
            if most < 0:
                most = tables[best].free_at(best_s)
            free = table.free_at(start_s)
            if free > most:
                best, most = index, free
    return best_s, best


Look = tuple[list[int], list[float]]
"""For each table the fewest it has free throughout a job, and until when a later start can offer no more."""


def look_at(tables: Sequence[Table], start_s: float, length_s: float) -> Look:
    """Look at all tables for a job from ``start_s`` on; it bounds what they offer to any longer job, too."""
    seen = [table.bottleneck(start_s, start_s + length_s) for table in tables]
    return [offer for offer, _ in seen], [rise_s for _, rise_s in seen]


def split_blocks(
    tables: Sequence[Table],
    procs: int,
    n_blocks: int,
    length_s: float,
    not_before_s: float,
    no_later_s: float,
    look: Look | None = None,
) -> tuple[float, tuple[tuple[int, int], ...]]:
    """Return the first common start of ``n_blocks`` blocks of any sizes, and (cluster, processors) of each.

    The paper (section 3.2.1) takes the latest of the blocks' earliest starts and asks all tables again from
    there on until it stays, for a block that can start at t need not be able to start later. Here the sizes
    of the blocks are open, too: the start moves on to the next instant at which some cluster offers more,
    until what the biggest offer together is enough. At every instant a cluster offers the least it has free
    throughout the job. That figure is kept as an upper bound while the start moves on, and looked up again
    only where it may have risen or is about to be used.

    Args:
        tables: the clusters.
        procs: the job's width.
        n_blocks: on how many clusters.
        length_s: how long it runs so.
        not_before_s: the earliest start.
        no_later_s: the last start of interest.
        look: at these tables for a job from ``not_before_s`` on that is not longer; saves looking anew.

    Returns:
        ``(inf, ())`` when there is no such start by ``no_later_s``.
    """
    if len(tables) < n_blocks or not_before_s > no_later_s:
        return math.inf, ()
    start_s = not_before_s
    seen = look_at(tables, start_s, length_s) if look is None else look
    offers, rises_s = seen[0].copy(), seen[1].copy()
    looked_s = [start_s if look is None else -math.inf] * len(tables)
    indices = range(len(tables))
    while True:
        biggest = sorted(indices, key=offers.__getitem__, reverse=True)[:n_blocks]
        if sum([offers[i] for i in biggest]) >= procs:
            again = [i for i in biggest if looked_s[i] < start_s]
            if not again:
                return start_s, _fill(biggest, offers, procs)
            for i in again:
                offers[i], rises_s[i] = tables[i].bottleneck(start_s, start_s + length_s)
                looked_s[i] = start_s
            continue
        next_s = min(rises_s)
        has_more = False
        while not has_more or next_s == start_s:  # go on until some cluster offers more than before
            start_s = next_s
            if start_s > no_later_s or start_s == math.inf:
                return math.inf, ()
            i = rises_s.index(start_s)
            before = offers[i]
            offers[i], rises_s[i] = tables[i].bottleneck(start_s, start_s + length_s)
            looked_s[i] = start_s
            has_more = has_more or offers[i] > before
            next_s = min(rises_s)


def _fill(biggest: Sequence[int], offers: Sequence[int], procs: int) -> tuple[tuple[int, int], ...]:
    """Give the job to the clusters in this order, each all it offers, until it is placed."""
    blocks = []
    for index in biggest:
        share = min(offers[index], procs)
        if share == 0:
            break
        blocks.append((index, share))
        procs -= share
    return tuple(blocks)
