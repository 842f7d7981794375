"""What is free on every node over future time: one step function for each node, all in the same arrays.

Theory of operation. Row i of `at` holds the times at which something changes on node i, rising, the rest
infinite; `free` holds the amounts from that time until the next. Rows have as many columns as the longest
needs, so a question about all nodes is a handful of array operations, and a change touches the rows of its
nodes only. Amounts are slots, GPUs, memory and memory with swap in bytes, the site's own resources, and a set
of bits: the advance reservations that keep jobs out then. Bits are added and taken away like amounts, each
once for a time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence, Set
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

SLOTS, GPUS, MEMORY, SWAP = range(4)
BITS, PLANNED = -2, -1
"""The last ones; between, there is an amount for each of the site's own resources that is counted."""
N_AMOUNTS = 6
"""Without any of these."""
PLENTY = 1 << 60
"""Stands for an amount without a known bound; no sum of real demands comes near it."""

Times: TypeAlias = NDArray[np.float64]
Amounts: TypeAlias = NDArray[np.int64]
Indices: TypeAlias = NDArray[np.intp]
Mask: TypeAlias = NDArray[np.bool_]

_FIRST_WIDTH = 8
_FEW = 8
"""So many rows are changed one by one rather than all at once."""


def rounded(at_s: float, resolution_s: float) -> float:
    """The next multiple of the resolution."""
    return at_s if math.isinf(at_s) else math.ceil(at_s / resolution_s) * resolution_s


class NodeSteps:
    """The free amounts of all nodes at every time.

    Args:
        capacity: (n_nodes, n_amounts), free when nothing runs.
    """

    def __init__(self, capacity: Amounts) -> None:
        n_nodes = len(capacity)
        #: (n_nodes, width) times; the first of each row is minus infinity.
        self.at: Times = np.full((n_nodes, _FIRST_WIDTH), np.inf)
        self.at[:, 0] = -np.inf
        #: (n_amounts, n_nodes, width).
        self.free: Amounts = np.zeros((capacity.shape[1], n_nodes, _FIRST_WIDTH), np.int64)
        self.free[:, :, 0] = capacity.T
        #: Columns in use by the longest row.
        self.width = 1

    @property
    def n_nodes(self) -> int:
        """Rows."""
        return len(self.at)

    def copy(self) -> NodeSteps:
        """Independent steps, equal to these."""
        twin = object.__new__(NodeSteps)
        twin.width = self.width
        spare = self.width + _FIRST_WIDTH
        twin.at = np.full((self.n_nodes, spare), np.inf)
        twin.at[:, : self.width] = self.at[:, : self.width]
        twin.free = np.zeros((len(self.free), self.n_nodes, spare), np.int64)
        twin.free[:, :, : self.width] = self.free[:, :, : self.width]
        return twin

    def add(self, nodes: Indices, start_s: float, end_s: float, more: Amounts) -> None:
        """From `start_s` to `end_s` there is `more` (n_amounts, n_nodes of `nodes`) free on these nodes."""
        if end_s <= start_s or not len(nodes):
            return
        if len(nodes) <= _FEW:
            for place, node in enumerate(nodes.tolist()):
                first, last = self._step(node, start_s), self._step(node, end_s)
                self.free[:, node, first:last] += more[:, place, None]
            return
        self._split(nodes, start_s)
        self._split(nodes, end_s)
        at = self.at[nodes, : self.width]
        inside = (at >= start_s) & (at < end_s)
        self.free[:, nodes, : self.width] += more[:, :, None] * inside[None]

    def _step(self, node: int, at_s: float) -> int:
        """The column of the step that begins at this time on one node; made if there is none."""
        if at_s == -math.inf:
            return 0
        row = self.at[node, : self.width]
        place = int(row.searchsorted(at_s))
        if at_s == math.inf or (place < self.width and row[place] == at_s):
            return place
        length = int(row.searchsorted(math.inf))
        self._widen(length + 1)
        at, free = self.at[node], self.free[:, node]
        at[place + 1 : length + 1] = at[place:length].copy()
        at[place] = at_s
        free[:, place + 1 : length + 1] = free[:, place:length].copy()
        free[:, place] = free[:, place - 1]
        return place

    def _split(self, nodes: Indices, at_s: float) -> None:
        """Let a step begin at this time in each of these rows."""
        if not np.isfinite(at_s):
            return
        at = self.at[nodes, : self.width]
        place = (at < at_s).sum(axis=1)
        has = (at == at_s).any(axis=1)
        if has.all():
            return
        rows, place = nodes[~has], place[~has]
        at = at[~has]
        lengths = (at < np.inf).sum(axis=1) + 1
        self._widen(int(lengths.max()))
        columns = np.arange(self.width)
        source = columns[None, :] - (columns[None, :] >= place[:, None])
        old_at = self.at[rows, : self.width]
        new_at = np.take_along_axis(old_at, source, axis=1)
        new_at[np.arange(len(rows)), place] = at_s
        self.at[rows, : self.width] = new_at
        old = self.free[:, rows, : self.width]
        self.free[:, rows, : self.width] = np.take_along_axis(old, source[None], axis=2)

    def _widen(self, width: int) -> None:
        have = self.at.shape[1]
        if width > have:
            self.at = np.pad(self.at, ((0, 0), (0, have)), constant_values=np.inf)
            self.free = np.pad(self.free, ((0, 0), (0, 0), (0, have)))
        self.width = max(self.width, width)

    def join(self, nodes: Indices, since_s: float) -> None:
        """Shorten these rows: forget what ended by `since_s`, join equal neighbours."""
        width = self.width
        at, free = self.at[nodes, :width], self.free[:, nodes, :width]
        following = np.concatenate([at[:, 1:], np.full((len(nodes), 1), np.inf)], axis=1)
        stays = (at < np.inf) & (following > since_s)
        first = stays.argmax(axis=1)
        differs = (free[:, :, 1:] != free[:, :, :-1]).any(axis=0)
        stays[:, 1:] &= differs
        stays[np.arange(len(nodes)), first] = True
        at[np.arange(len(nodes)), first] = -np.inf
        order = np.argsort(~stays, axis=1, kind="stable")
        n_stay = stays.sum(axis=1)
        at = np.take_along_axis(at, order, axis=1)
        at[np.arange(width)[None, :] >= n_stay[:, None]] = np.inf
        self.at[nodes, :width] = at
        self.free[:, nodes, :width] = np.take_along_axis(free, order[None], axis=2)
        if n_stay.max(initial=1) < width and len(nodes) == self.n_nodes:
            self.width = int(n_stay.max(initial=1))

    def tidy(self, since_s: float, changed: Set[int]) -> None:
        """Shorten the rows that changed, and those of which something ended by `since_s`."""
        is_due = np.zeros(self.n_nodes, bool)
        is_due[list(changed)] = True
        if self.width > 1:
            is_due |= self.at[:, 1] <= since_s
        rows = np.flatnonzero(is_due)
        if len(rows):
            self.join(rows, since_s)
            self.width = self.width_until(math.inf)

    # -- questions

    def width_until(self, at_s: float) -> int:
        """How many columns hold all steps that begin before this time."""
        if at_s == math.inf:
            return self.width
        return max(1, int((self.at[:, : self.width] < at_s).sum(axis=1).max(initial=1)))

    def lacking(self, nodes: Indices | None, wanted: Sequence[int | Amounts], bits: int) -> Mask:
        """(n, width): the steps that have too little, or whose reservations are among `bits`.

        `wanted` are the amounts, each one number for all nodes or one for each; of the amounts other than
        slots, 0 asks for nothing.
        """
        width = self.width

        def rows(amount: int) -> Amounts:
            return self.free[amount, :, :width] if nodes is None else self.free[amount, nodes, :width]

        bad: Mask | None = None
        for amount, want in enumerate(wanted):
            if isinstance(want, int):
                if amount and not want:
                    continue
                less = rows(amount) < want
            else:
                less = rows(amount) < want[:, None]
                if amount:
                    # What nobody asks for may be overdrawn: GPUs or memory gone while jobs run there.
                    less &= want[:, None] > 0
            bad = less if bad is None else bad | less
        if bits:
            kept = (rows(BITS) & bits) != 0
            bad = kept if bad is None else bad | kept
        assert bad is not None
        return bad

    def times(self, nodes: Indices | None) -> Times:
        """(n, width): when the steps begin."""
        return self.at[:, : self.width] if nodes is None else self.at[nodes, : self.width]

    def least(self, nodes: Indices, amount: int, start_s: float, end_s: float) -> Amounts:
        """The least there is of an amount during [start_s, end_s), for each node."""
        inside = self.during(nodes, start_s, end_s)
        found: Amounts = np.where(inside, self.free[amount, nodes, : self.width], PLENTY).min(axis=1)
        return found

    def during(self, nodes: Indices | None, start_s: float, end_s: float) -> Mask:
        """(n, width): the steps that touch [start_s, end_s)."""
        at = self.times(nodes)
        touches = at < end_s
        touches[:, :-1] &= at[:, 1:] > start_s
        return touches
